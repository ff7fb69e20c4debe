//! Secrets of jobs and racks, and the join token that carries one with the server's fingerprint.

use std::{fmt, fs, io, io::Read as _, os::unix::fs::MetadataExt as _, path::Path, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// Shorter secrets can be guessed; they are accepted with a warning.
const RECOMMENDED_LEN: usize = 16;
const TOKEN_PREFIX: &str = "sumac1";

#[derive(Debug, Error)]
pub enum SecretError {
    #[error("the shared secret is empty; make one with `head -c 32 /dev/urandom | base64`")]
    Empty,
    /// The text starts like a join token and is none.
    #[error("the join token is damaged; print it again with `sumac-agg token`")]
    Damaged,
    #[error("cannot read the shared secret from {path}: {source}; give the file to the user that runs this")]
    Unreadable { path: String, source: io::Error },
    #[error(
        "others than its owner can open {path} (mode {mode:04o}), which has a secret in it; run `chmod 600 \
        {path}`"
    )]
    Exposed { path: String, mode: u32 },
    #[error(
        "{path}, which has a secret in it, belongs to user {owner}, who can replace it; run `chown {own} \
        {path}` and `chmod 600 {path}`"
    )]
    Foreign { path: String, owner: u32, own: u32 },
}

/// A secret that the workers of a job share with the coordinator. It is sent inside TLS only, and never
/// shown.
#[derive(Clone, ZeroizeOnDrop)]
pub struct Secret(Vec<u8>);

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl Secret {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Secret, SecretError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(Secret(bytes))
    }

    /// Compares in a time that depends on the lengths only.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let bytes = BASE64.decode(&*text).map_err(|_| D::Error::custom("a secret that is no base64"))?;
        Secret::new(bytes).map_err(D::Error::custom)
    }
}

/// SHA-256 of the server's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The fingerprint of an aggregator's certificate with the secret of a job, or of its racks, as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    pub fingerprint: Fingerprint,
    pub secret: Secret,
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fingerprint, secret) = (BASE64.encode(self.fingerprint.0), BASE64.encode(&self.secret.0));
        write!(f, "{TOKEN_PREFIX}.{fingerprint}.{secret}")
    }
}

impl FromStr for JoinToken {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<JoinToken, SecretError> {
        let mut parts = text.split('.');
        let decoded = |part: Option<&str>| part.and_then(|part| BASE64.decode(part).ok());
        let (prefix, fingerprint, secret) = (parts.next(), decoded(parts.next()), decoded(parts.next()));
        match (prefix, fingerprint.and_then(|bytes| bytes.try_into().ok()), secret, parts.next()) {
            (Some(TOKEN_PREFIX), Some(fingerprint), Some(secret), None) => {
                Ok(JoinToken { fingerprint: Fingerprint(fingerprint), secret: Secret::new(secret)? })
            }
            _ => Err(SecretError::Damaged),
        }
    }
}

/// A secret as users give it: alone, or in a join token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub secret: Secret,
    pub fingerprint: Option<Fingerprint>,
}

impl Credential {
    pub fn new(bytes: &[u8]) -> Result<Credential, SecretError> {
        let text = std::str::from_utf8(bytes).ok();
        match text.filter(|text| text.starts_with(&format!("{TOKEN_PREFIX}."))) {
            Some(token) => {
                let JoinToken { fingerprint, secret } = token.parse()?;
                Ok(Credential { secret, fingerprint: Some(fingerprint) })
            }
            None => {
                if bytes.len() < RECOMMENDED_LEN {
                    tracing::warn!(bytes = bytes.len(), "the shared secret is short enough to be guessed");
                }
                Ok(Credential { secret: Secret::new(bytes)?, fingerprint: None })
            }
        }
    }

    /// Reads a file, without white space at its end. It must be its owner's alone.
    pub fn from_file(path: &Path) -> Result<Credential, SecretError> {
        let mut file = fs::File::open(path).map_err(|source| unreadable(path, source))?;
        check_owner(&file, path)?;
        let mut bytes = Zeroizing::new(Vec::new());
        file.read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
        Credential::new(bytes.trim_ascii_end())
    }
}

/// Checks that a file with a secret in it is its owner's alone, and that this is root or the user of this
/// process.
pub fn check_private(path: &Path) -> Result<(), SecretError> {
    let file = fs::File::open(path).map_err(|source| unreadable(path, source))?;
    check_owner(&file, path)
}

/// Checks an open file: its name may lead to another one by now.
fn check_owner(file: &fs::File, path: &Path) -> Result<(), SecretError> {
    let metadata = file.metadata().map_err(|source| unreadable(path, source))?;
    // A pipe or terminal (`/dev/stdin`, a shell's `<(...)`) has the mode of its maker.
    if !metadata.is_file() {
        return Ok(());
    }
    let (mode, owner, own) = (metadata.mode() & 0o7777, metadata.uid(), rustix::process::geteuid().as_raw());
    let path = || path.display().to_string();
    if owner != 0 && owner != own {
        return Err(SecretError::Foreign { path: path(), owner, own });
    }
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path(), mode });
    }
    Ok(())
}

fn unreadable(path: &Path, source: io::Error) -> SecretError {
    SecretError::Unreadable { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_secret_is_not_shown_and_not_empty() {
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
    fn a_token_survives_the_way_to_text_and_back() {
        let token =
            JoinToken { fingerprint: Fingerprint([7; 32]), secret: Secret::new([0, 255, b'.']).unwrap() };
        let text = token.to_string();
        assert_eq!(text.parse::<JoinToken>().unwrap(), token);
        let credential = Credential::new(text.as_bytes()).unwrap();
        assert_eq!((credential.fingerprint, credential.secret), (Some(token.fingerprint), token.secret));
        for damaged in [&text[..text.len() - 5], &text[..50], "sumac1.", &format!("{text}.x")] {
            assert!(matches!(Credential::new(damaged.as_bytes()), Err(SecretError::Damaged)), "{damaged}");
        }
        let plain = Credential::new(b"sumac1 and other words").unwrap();
        assert_eq!(plain.fingerprint, None);
    }

    #[test]
    fn a_file_that_others_can_open_is_refused_with_the_remedy() {
        let path = std::env::temp_dir().join(format!("sumac-open-secret-{}", std::process::id()));
        fs::write(&path, "correct horse battery").unwrap();
        for (mode, is_private) in
            [(0o600, true), (0o400, true), (0o640, false), (0o644, false), (0o602, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match Credential::from_file(&path) {
                Ok(_) => assert!(is_private, "{mode:o}"),
                Err(refused) => {
                    let remedy = format!("chmod 600 {}", path.display());
                    assert!(!is_private && refused.to_string().contains(&remedy), "{mode:o}: {refused}");
                }
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(matches!(
                Credential::from_file(&path),
                Err(SecretError::Foreign { owner: 65534, own: 0, .. })
            ));
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_lose_their_newline() {
        let path = std::env::temp_dir().join(format!("sumac-secret-{}", std::process::id()));
        fs::write(&path, "correct horse battery\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let read = Credential::from_file(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap().secret, Secret::new("correct horse battery").unwrap());
        assert!(matches!(Credential::from_file(&path), Err(SecretError::Unreadable { .. })));
    }
}
