//! How a range of UDP ports is written.

/// The ports of so many shards from the first on: `48700`, or `48700-48703`.
pub fn range(first: u16, shards: u16) -> String {
    match u32::from(shards).saturating_sub(1) {
        0 => first.to_string(),
        more => format!("{first}-{}", u32::from(first) + more),
    }
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn one_port_is_no_range() {
        assert_eq!(range(48700, 1), "48700");
        assert_eq!(range(48700, 4), "48700-48703");
        assert_eq!(range(65535, 1), "65535");
        assert_eq!(range(0, 0), "0", "settings of another hand");
    }
}
