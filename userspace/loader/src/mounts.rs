//! The lifetime of a bpffs: it ends with the last process of the mount namespaces that have it.
//!
//! `ip netns exec`, a container and a systemd unit with mounts of its own have a mount namespace of their
//! own. A bpffs that only such a namespace has takes its pins, and with them the programs, along when it
//! ends.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process};

use nix::sys::stat::{major, minor};

/// The end of the pins on a bpffs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The machine's, or the container's, or unknown.
    Machine,
    /// The last process of the calling one's mount namespace, of which one is named.
    Processes { pid: u32, name: String },
    /// The calling process.
    Caller,
}

/// Returns whether the calling process has another mount namespace than the first process that it sees.
pub fn is_private() -> bool {
    let [own, first] = ["/proc/self", "/proc/1"].map(|process| root_mount(&mounts(Path::new(process))));
    matches!((own, first), (Some(own), Some(first)) if own != first)
}

/// Returns the lifetime of the bpffs that has the nearest existing parent of `path`.
pub fn lifetime(path: &Path) -> Lifetime {
    if !is_private() {
        return Lifetime::Machine;
    }
    let Some(metadata) = path.ancestors().find_map(|path| fs::metadata(path).ok()) else {
        return Lifetime::Machine;
    };
    let device = format!("{}:{}", major(metadata.dev()), minor(metadata.dev()));
    let own = root_mount(&mounts(Path::new("/proc/self")));
    let mut companion = None;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
        let pid = process.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let mounts = mounts(&process);
        let (Some(pid), Some(root)) = (pid, root_mount(&mounts)) else { continue };
        if Some(root) != own {
            if mounts.lines().any(|line| line.split(' ').nth(2) == Some(&device)) {
                return Lifetime::Machine;
            }
        } else if pid != process::id() {
            companion = companion.or(Some((pid, process)));
        }
    }
    match companion {
        Some((pid, process)) => {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            Lifetime::Processes { pid, name: name.trim().to_owned() }
        }
        None => Lifetime::Caller,
    }
}

/// Returns the mounts of a process, as text; empty when they are hidden.
fn mounts(process: &Path) -> String {
    fs::read_to_string(process.join("mountinfo")).unwrap_or_default()
}

/// Returns the number of the first mount, which no other mount namespace has. It is readable where the link
/// to the namespace is not, as that of a process with more capabilities.
fn root_mount(mounts: &str) -> Option<u32> {
    mounts.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_first_process_sees_too_outlives_a_command() {
        // Without privileges the first process's namespace is unknown.
        if !is_private() {
            assert_eq!(lifetime(Path::new("/sys/fs/bpf/x")), Lifetime::Machine);
        }
    }
}
