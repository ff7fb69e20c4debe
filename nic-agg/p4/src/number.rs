//! Numbers that a switch sends, as both protocols carry them.

/// Returns the number that big-endian bytes hold.
///
/// # Errors
/// In words, when it has more than so many bits, or more than 64.
pub fn number(bytes: &[u8], bits: u32) -> Result<u64, String> {
    let (high, low) = bytes.split_at(bytes.len().saturating_sub(8));
    let number = low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let fits = high.iter().all(|byte| *byte == 0) && number.checked_shr(bits).unwrap_or(0) == 0;
    let most = bits.min(u64::BITS);
    if fits { Ok(number) } else { Err(format!("the switch sends a number of more than {most} bits")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_bits_of_its_field() {
        assert_eq!(number(&[0, 0, 7], 3), Ok(7), "with leading zeros, as some servers write");
        let wide = |bits| Err(format!("the switch sends a number of more than {bits} bits"));
        assert_eq!(number(&[0, 0, 8], 3), wide(3), "wider than its field");
        assert_eq!(number(&[1, 0, 0, 0, 0, 0, 0, 0, 0], 128), wide(64), "wider than any");
        assert_eq!(number(&[0xff; 8], 128), Ok(u64::MAX));
    }
}
