//! Reads the list of sources that cargo writes beside a binary.

/// Returns the sources in a Makefile-like `object: source source ...`, where `\ ` is a space in a name.
pub fn sources(text: &str) -> Vec<String> {
    let Some((_, list)) = text.lines().next().unwrap_or_default().split_once(": ") else {
        return Vec::new();
    };
    const SPACE: &str = "\u{0}";
    let list = list.replace("\\ ", SPACE);
    list.split(' ').filter(|name| !name.is_empty()).map(|name| name.replace(SPACE, " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::sources;

    #[test]
    fn names_with_and_without_spaces() {
        let text = "/t/x: /a/lib.rs /b\\ c/main.rs\n\n/t/y: /z\n";
        assert_eq!(sources(text), ["/a/lib.rs", "/b c/main.rs"]);
        assert!(sources("").is_empty());
    }
}
