//! The state directory of a control plane: its identity and secrets, in files that only their owner can open.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use rand::{TryRngCore as _, rngs::OsRng};
use zeroize::Zeroizing;

use crate::{
    secret::Secret,
    tls::{Identity, TlsError},
};

const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";

impl Identity {
    /// Reads the self-signed identity of a state directory; makes it at the first call.
    pub fn of_state_dir(directory: &Path) -> Result<Identity, TlsError> {
        let (certificate, key) = (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        make_once(&certificate, || {
            let made = rcgen::generate_simple_self_signed(["sumac-agg".to_owned()])?;
            write_private(&key, made.signing_key.serialize_pem().as_bytes())?;
            write_private(&certificate, made.cert.pem().as_bytes())
        })?;
        Identity::from_files(&certificate, &key, None)
    }
}

impl Secret {
    /// Reads the secret in a file of the state directory; makes it at the first call.
    pub fn of_state_dir(directory: &Path, file: &str) -> Result<Secret, TlsError> {
        let path = directory.join(file);
        make_once(&path, || {
            let mut bytes = [0; 32];
            OsRng.try_fill_bytes(&mut bytes).map_err(|error| TlsError::Random(error.to_string()))?;
            write_private(&path, BASE64.encode(bytes).as_bytes())
        })?;
        let read = fs::read(&path).map_err(|source| TlsError::Write { path: path.clone(), source })?;
        Ok(Secret::new(Zeroizing::new(read).trim_ascii_end())?)
    }
}

/// Options for files that only their owner can open, made where there are none.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

/// Makes a private file of the state directory where there is none, and one only where several processes
/// start together: the others would pin a key that is then replaced.
fn make_once(path: &Path, make: impl FnOnce() -> Result<(), TlsError>) -> Result<(), TlsError> {
    if path.exists() {
        return Ok(());
    }
    let lock = path.with_extension("lock");
    let locked = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        let file = private().open(&lock)?;
        file.lock()?;
        Ok(file)
    };
    let _held = locked().map_err(|source| TlsError::Write { path: lock.clone(), source })?;
    if path.exists() { Ok(()) } else { make() }
}

/// Writes a file that only its owner can open, whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), TlsError> {
    let part = path.with_extension("part");
    let written = || {
        let mut file = private().truncate(true).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    written().map_err(|source| TlsError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_start_together_make_one_key() {
        let directory = std::env::temp_dir().join(format!("sumac-keys-{}", std::process::id()));
        for _ in 0..20 {
            let start = std::sync::Barrier::new(8);
            let made: Vec<_> = std::thread::scope(|scope| {
                let make = || {
                    start.wait();
                    let identity = Identity::of_state_dir(&directory).unwrap();
                    (identity.fingerprint(), Secret::of_state_dir(&directory, "job.secret").unwrap())
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(made.windows(2).all(|pair| pair[0] == pair[1]), "{made:?}");
            fs::remove_dir_all(&directory).unwrap();
        }
    }
}
