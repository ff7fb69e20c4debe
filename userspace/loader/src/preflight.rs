//! Requirements of the system for attaching: capabilities, a bpffs, a recent kernel. Each error has its
//! remedy.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sys::{
        statfs::{BPF_FS_MAGIC, statfs},
        utsname::uname,
    },
};
use thiserror::Error;

use crate::mounts::{self, Lifetime};

/// The oldest kernel that Sumac's programs load on.
pub const OLDEST_KERNEL: (u32, u32) = (5, 15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The bit in the sets of `/proc/self/status`.
    pub bit: u32,
    pub name: &'static str,
    /// For a message: the use that Sumac makes of it.
    pub purpose: &'static str,
}

pub const NET_ADMIN: Capability =
    Capability { bit: 12, name: "CAP_NET_ADMIN", purpose: "to attach a program to an interface" };
/// The capabilities for attaching. `CAP_SYS_ADMIN` includes the first two, which were split from it.
pub const NEEDED: [Capability; 3] = [
    Capability { bit: 39, name: "CAP_BPF", purpose: "to load programs and maps" },
    Capability { bit: 38, name: "CAP_PERFMON", purpose: "to let a program measure its packet" },
    NET_ADMIN,
];
pub const NET_RAW: Capability =
    Capability { bit: 13, name: "CAP_NET_RAW", purpose: "to open AF_XDP sockets (the daemon)" };
/// Lifts the limit on locked memory.
pub const IPC_LOCK: Capability =
    Capability { bit: 14, name: "CAP_IPC_LOCK", purpose: "to lock packet memory beyond the limit" };
/// Includes `CAP_BPF` and `CAP_PERFMON`, and mounts a bpffs.
pub const SYS_ADMIN: Capability = Capability { bit: 21, name: "CAP_SYS_ADMIN", purpose: "to mount a bpffs" };

#[derive(Debug, Error)]
pub enum PreflightError {
    #[error(
        "not allowed to load XDP programs: {missing} missing; run as root, or give the binary what it needs: \
        setcap cap_bpf,cap_perfmon,cap_net_admin,cap_net_raw+ep"
    )]
    Capabilities { missing: String },
    #[error(
        "kernel {found} is too old: XDP links and ring buffers as Sumac uses them need 5.15 or newer; use \
        the daemon's UDP backend here"
    )]
    Kernel { found: String },
    #[error("no bpffs at {path}: {source}; mount it: mount -t bpf bpf /sys/fs/bpf")]
    BpfFs { path: PathBuf, source: io::Error },
    #[error(
        "the bpffs at {path} {state} in a mount namespace of its own, as `ip netns exec`, a container or a \
        unit with its own mounts has: the program would end with this command. Enter the network namespace \
        alone: nsenter --net=/run/netns/NAME COMMAND; or give the container or unit the machine's /sys/fs/bpf"
    )]
    PrivateMounts { path: PathBuf, state: &'static str },
    #[error("could not read {path}: {source}")]
    Read { path: &'static str, source: io::Error },
}

/// Checks the requirements for attaching below `pin_root`, and mounts the bpffs when it is missing.
pub fn check(pin_root: &Path) -> Result<(), PreflightError> {
    check_capabilities(effective_capabilities()?)?;
    let found = kernel_release();
    if kernel_version(&found).is_some_and(|version| version < OLDEST_KERNEL) {
        return Err(PreflightError::Kernel { found });
    }
    ensure_bpffs(pin_root)?;
    check_lifetime(pin_root)
}

pub fn effective_capabilities() -> Result<u64, PreflightError> {
    const PATH: &str = "/proc/self/status";
    let status = fs::read_to_string(PATH).map_err(|source| PreflightError::Read { path: PATH, source })?;
    parse_capabilities(&status).ok_or_else(|| PreflightError::Read {
        path: PATH,
        source: io::Error::new(io::ErrorKind::InvalidData, "no line CapEff"),
    })
}

fn parse_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

pub fn holds(set: u64, capability: Capability) -> bool {
    set >> capability.bit & 1 == 1
}

/// Returns those of [`NEEDED`] that a set lacks.
pub fn missing(set: u64) -> Vec<Capability> {
    let admin = holds(set, SYS_ADMIN);
    let has = |needed| holds(set, needed) || (admin && needed != NET_ADMIN);
    NEEDED.into_iter().filter(|needed| !has(*needed)).collect()
}

fn check_capabilities(set: u64) -> Result<(), PreflightError> {
    let missing: Vec<&str> = missing(set).iter().map(|capability| capability.name).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(PreflightError::Capabilities { missing: missing.join(", ") })
    }
}

pub fn kernel_release() -> String {
    uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default()
}

pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

/// Returns the soft limit on locked memory in bytes, of the text of `/proc/self/limits`.
pub fn memory_lock_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Returns whether a path, or the nearest of its parents that exists, is on a bpffs.
pub fn is_on_bpffs(path: &Path) -> bool {
    path.ancestors()
        .find_map(|path| statfs(path).ok())
        .is_some_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

/// Mounts a bpffs at `/sys/fs/bpf` when `pin_root` is below it and there is none.
fn ensure_bpffs(pin_root: &Path) -> Result<(), PreflightError> {
    const MOUNT_POINT: &str = "/sys/fs/bpf";
    if is_on_bpffs(pin_root) {
        return Ok(());
    }
    let failed = |source| PreflightError::BpfFs { path: pin_root.to_owned(), source };
    if !pin_root.starts_with(MOUNT_POINT) {
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, "not a bpf file system")));
    }
    if mounts::is_private() {
        let path = PathBuf::from(MOUNT_POINT);
        return Err(PreflightError::PrivateMounts { path, state: "is missing, and would be mounted" });
    }
    mount(Some("bpf"), MOUNT_POINT, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .map_err(|error| failed(error.into()))?;
    tracing::info!("mounted a bpffs at {MOUNT_POINT}, for pins");
    Ok(())
}

/// Refuses a bpffs that ends with the calling process, and names the process that another one ends with.
fn check_lifetime(pin_root: &Path) -> Result<(), PreflightError> {
    match mounts::lifetime(pin_root) {
        Lifetime::Machine => Ok(()),
        Lifetime::Processes { pid, name } => {
            tracing::warn!(
                "the bpffs at {} is of this mount namespace alone: pins and programs end with its last \
                process, such as {pid} ({name})",
                pin_root.display()
            );
            Ok(())
        }
        Lifetime::Caller => {
            Err(PreflightError::PrivateMounts { path: pin_root.to_owned(), state: "is mounted" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        assert_eq!(parse_capabilities("Name:\tx\nCapEff:\t000001fffeffffff\n"), Some(0x1ff_feff_ffff));
        assert_eq!(parse_capabilities("CapEff:\tnonsense"), None);
        assert_eq!(parse_capabilities(""), None);
    }

    #[test]
    fn missing_capabilities_are_named() {
        let names = |set| missing(set).iter().map(|capability| capability.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!(names(1 << 39 | 1 << 38), ["CAP_NET_ADMIN"]);
        assert_eq!(names(1 << 21), ["CAP_NET_ADMIN"], "CAP_SYS_ADMIN includes the newer two");
        assert!(names(1 << 21 | 1 << 12).is_empty());
        let text = check_capabilities(0).unwrap_err().to_string();
        assert!(text.contains("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN missing"), "{text}");
    }

    #[test]
    fn releases() {
        assert_eq!(kernel_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(kernel_version("5.15.0"), Some((5, 15)));
        assert_eq!(kernel_version("6.1"), Some((6, 1)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn a_directory_elsewhere_is_no_bpffs() {
        let error = ensure_bpffs(&std::env::temp_dir().join("not/there")).unwrap_err();
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
    }
}
