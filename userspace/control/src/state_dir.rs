//! The state directory of a control plane: its identity and secrets, in files that only their owner can open.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
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

/// Options for files that only their owner can open, made where there are none. A symbolic link in their
/// place is not followed.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    options.write(true).create(true).mode(0o600).custom_flags(no_follow);
    options
}

/// Makes the directory, where there is none, for its owner alone.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Checks that no other user can replace the files of a directory: who could would be believed about jobs and
/// their tokens.
pub(crate) fn check_directory(directory: &File) -> io::Result<()> {
    let metadata = directory.metadata()?;
    check_owner("the directory", metadata.uid())?;
    let mode = metadata.mode() & 0o7777;
    // With the sticky bit (as of /tmp) others can add files, and not replace these.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(refused(format!("others can change the directory (mode {mode:o}); `chmod go-w` it")));
    }
    Ok(())
}

/// Checks that an open file is its owner's alone, and that this is root or the user of this process.
pub(crate) fn check_file(file: &File, path: &Path) -> io::Result<()> {
    let metadata = file.metadata()?;
    let name = path.display();
    if !metadata.is_file() {
        return Err(refused(format!("{name} is no regular file; remove it")));
    }
    check_owner(&name.to_string(), metadata.uid())?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(refused(format!("others can open {name} (mode {mode:o}); `chmod 600 {name}`")));
    }
    Ok(())
}

fn check_owner(name: &str, owner: u32) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if owner == 0 || owner == own {
        return Ok(());
    }
    Err(refused(format!("{name} belongs to user {owner}; run this as that user, or `chown {own}` it")))
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Makes a private file of the state directory where there is none, and one only where several processes
/// start together: the others would pin a key that is then replaced.
fn make_once(path: &Path, make: impl FnOnce() -> Result<(), TlsError>) -> Result<(), TlsError> {
    if path.exists() {
        return Ok(());
    }
    let lock = path.with_extension("lock");
    let locked = || {
        create_directory(path.parent().unwrap_or(Path::new(".")))?;
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
        // An earlier process may have left one. A link of this name is removed, not followed.
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private().create_new(true).open(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    written().map_err(|source| TlsError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::journal::Journal;

    #[test]
    fn a_directory_or_journal_that_others_can_change_is_refused_with_the_remedy() {
        let directory = std::env::temp_dir().join(format!("sumac-modes-{}", std::process::id()));
        let journal = directory.join("journal");
        let open = || Journal::open(&directory).map(drop).map_err(|error| error.to_string());
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open().unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        for (path, mode, remedy) in [
            (&directory, 0o777, Some("chmod go-w")),
            (&directory, 0o770, Some("chmod go-w")),
            (&directory, 0o1777, None),
            (&directory, 0o755, None),
            (&journal, 0o644, Some("chmod 600")),
            (&journal, 0o660, Some("chmod 600")),
            (&journal, 0o600, None),
        ] {
            set(path, mode);
            match (open(), remedy) {
                (Ok(()), None) => {}
                (Err(why), Some(remedy)) => assert!(why.contains(remedy), "{mode:o}: {why}"),
                (other, _) => panic!("{} {mode:o}: {other:?}", path.display()),
            }
            set(path, if path == &journal { 0o600 } else { 0o700 });
        }
        if rustix::process::geteuid().is_root() {
            for path in [&journal, &directory] {
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
                assert!(open().unwrap_err().contains("belongs to user 65534"));
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn links_in_the_place_of_the_journals_files_are_not_followed() {
        let directory = std::env::temp_dir().join(format!("sumac-links-{}", std::process::id()));
        create_directory(&directory).unwrap();
        let victim = directory.join("victim");
        fs::write(&victim, "precious").unwrap();
        for name in ["lock", "journal"] {
            symlink(&victim, directory.join(name)).unwrap();
            assert!(Journal::open(&directory).is_err(), "{name}");
            fs::remove_file(directory.join(name)).unwrap();
        }
        let (mut journal, _) = Journal::open(&directory).unwrap();
        for link in [|a: &Path, b: &Path| symlink(a, b), |a: &Path, b: &Path| fs::hard_link(a, b)] {
            link(&victim, &directory.join("journal.part")).unwrap();
            journal.compact(&[]).unwrap();
            link(&victim, &directory.join("secret.part")).unwrap();
            write_private(&directory.join("secret"), b"a secret").unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"precious");
            assert!(fs::symlink_metadata(directory.join("journal")).unwrap().is_file());
        }
        fs::remove_dir_all(&directory).unwrap();
    }

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
