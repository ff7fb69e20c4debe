//! What the members of a job tell each other through the control plane.

/// Longest text of a notice, in bytes; more is cut off.
pub const NOTICE_LEN: usize = 1024;
/// Longest name of an operation, in bytes.
pub const OPERATION_NAME_LEN: usize = 256;
/// Longest description of an operation, in bytes; more is cut off.
pub const DESCRIPTION_LEN: usize = 512;

pub use sumac_job::OperationOrder;

/// A message to all other members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is about; means nothing here.
    pub key: u64,
    /// For people: at most [`NOTICE_LEN`] bytes.
    pub text: String,
}

/// An operation that a worker is ready for, in a job of [`OperationOrder::Name`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Its name: 1 to [`OPERATION_NAME_LEN`] bytes. May come again once it was released.
    pub name: String,
    /// Equal on all workers if and only if they mean the same.
    pub signature: u32,
    /// What it is, for people: at most [`DESCRIPTION_LEN`] bytes.
    pub description: String,
    /// Of those that are released together, the higher comes first.
    pub priority: u8,
}

/// Cuts a text at a character's border.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let end = (0..=text.len().min(most)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// What a peer says, fit for logs and terminals: cut at `most` bytes, control characters become spaces.
pub(crate) fn printable(text: &str, most: usize) -> String {
    shortened(text, most).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_write_no_lines_into_the_log() {
        assert_eq!(printable("a\nWARN \x1b[2Jäb\u{9b}", 13), "a WARN  [2Jä");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("abc", 5), "abc");
        assert_eq!(shortened("aäb", 2), "a");
        assert_eq!(shortened("aäb", 3), "aä");
        assert_eq!(shortened("ä", 0), "");
    }
}
