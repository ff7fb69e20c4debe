//! A job's shared secret: read, compared and kept without ever being shown.

use std::{fmt, fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use thiserror::Error;

use crate::seal;

/// Shorter secrets can be guessed from a recorded exchange; they are accepted with a warning.
const RECOMMENDED_LEN: usize = 16;

/// Why a secret cannot be used.
#[derive(Debug, Error)]
pub enum SecretError {
    /// It has no bytes.
    #[error("the shared secret is empty; make one with `head -c 32 /dev/urandom | base64`")]
    Empty,
    /// Its file cannot be read.
    #[error("cannot read the shared secret from {path}: {source}; give the file to the user that runs this")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// A secret that all workers of a job and its aggregator share. It is never sent.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// As [`Secret::is`].
impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl Secret {
    /// Takes the bytes as they are.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Secret, SecretError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(SecretError::Empty);
        }
        if bytes.len() < RECOMMENDED_LEN {
            tracing::warn!(bytes = bytes.len(), "the shared secret is short enough to be guessed");
        }
        Ok(Secret(bytes))
    }

    /// Reads a file, without white space at its end. Warns when others than its owner may open it.
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let bytes = fs::read(path)
            .map_err(|source| SecretError::Unreadable { path: path.display().to_string(), source })?;
        if let Ok(metadata) = fs::metadata(path)
            && open_to_others(metadata.permissions().mode())
        {
            let path = path.display();
            tracing::warn!("others can open the shared secret in {path}; run `chmod 600 {path}`");
        }
        Secret::new(bytes.trim_ascii_end())
    }

    /// Whether somebody has given this secret. Takes the same time wherever two of one length differ, and says nothing in
    /// the log about a guess.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        seal::verify(&[], &[&self.0], &seal::authenticate(&[], &[given])).is_ok()
    }

    /// The key for message authentication.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whether a file with this mode is open to its group or to everybody.
fn open_to_others(mode: u32) -> bool {
    mode & 0o077 != 0
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_shown_and_not_empty() {
        let secret = Secret::new("correct horse battery").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(matches!(Secret::new(""), Err(SecretError::Empty)));
        assert_eq!(secret, secret.clone());
        assert!(secret.is(b"correct horse battery") && !secret.is(b"") && !secret.is(b"correct"));
        for other in ["correct horse batterz", "correct horse batter", "correct horse battery\0"] {
            assert_ne!(secret, Secret::new(other).unwrap(), "{other:?}");
        }
    }

    #[test]
    fn only_its_owner_should_be_able_to_open_the_file() {
        assert!(!open_to_others(0o100600) && !open_to_others(0o100400));
        assert!(open_to_others(0o100644) && open_to_others(0o100640));
    }

    #[test]
    fn files_lose_their_newline() {
        let path = std::env::temp_dir().join(format!("sumac-secret-{}", std::process::id()));
        fs::write(&path, "correct horse battery\n").unwrap();
        let read = Secret::from_file(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), Secret::new("correct horse battery").unwrap());
        assert!(matches!(Secret::from_file(&path), Err(SecretError::Unreadable { .. })));
    }
}
