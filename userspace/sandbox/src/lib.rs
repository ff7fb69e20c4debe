//! The privileges of a process that runs for long: capabilities, `no_new_privs` and a filter of system calls
//! (seccomp); and its limit of open files.
//!
//! Linux keeps all three per thread, and a new thread has those of its creator. So a process calls these
//! functions before it starts threads.
#![forbid(unsafe_code)]

mod open_files;
mod system_calls;

use caps::{CapSet, CapsHashSet};
use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter};
use serde::{Deserialize, Serialize};

pub use caps::Capability;
pub use open_files::raise_open_files;

/// The capabilities that loading and attaching programs, AF_XDP sockets and large socket buffers need.
pub const NETWORK: [Capability; 5] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    // UMEMs are locked memory.
    Capability::CAP_IPC_LOCK,
];

/// Capabilities that a start needs besides: some kernels open pinned programs, and all open a program's log,
/// with CAP_SYS_ADMIN; the others are for the socket's group, the limit of locked memory, ports below 1024,
/// and for dropping the rest.
pub const START: [Capability; 5] = [
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_CHOWN,
    Capability::CAP_SYS_RESOURCE,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_SETPCAP,
];

/// The privileges that a process has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// The names of the capabilities it keeps.
    pub capabilities: Vec<String>,
    /// Whether no program that it executes may gain privileges.
    pub no_new_privs: bool,
    /// Whether its system calls are restricted; `false` where the configuration says so.
    pub seccomp: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot drop capabilities: {0}; please report it")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("cannot set no_new_privs: {0}; please report it")]
    NoNewPrivs(std::io::Error),
    #[error(
        "cannot restrict system calls: {0}; without seccomp in this kernel set `seccomp` to false \
        (sumac-agg: --no-seccomp)"
    )]
    Filter(#[from] seccompiler::Error),
    #[error("cannot build the filter of system calls: {0}; set `seccomp` to false (sumac-agg: --no-seccomp)")]
    Build(#[from] BackendError),
}

/// Drops this thread's capabilities except those of `keep` that it has. Returns these.
pub fn limit_capabilities(keep: &[Capability]) -> Result<Vec<Capability>, SandboxError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let left: CapsHashSet = keep.iter().copied().filter(|kept| permitted.contains(kept)).collect();
    // Without CAP_SETPCAP the bounding set stays. It limits what executed programs may gain, as no_new_privs
    // does.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for bound in caps::read(None, CapSet::Bounding)? {
            if !keep.contains(&bound) {
                caps::drop(None, CapSet::Bounding, bound)?;
            }
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Effective capabilities are permitted ones.
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)?;
    let mut left: Vec<_> = left.into_iter().collect();
    left.sort_by_key(Capability::index);
    Ok(left)
}

/// Keeps the capabilities of `keep`, sets `no_new_privs`, and with `seccomp` restricts this thread's system
/// calls.
pub fn confine(keep: &[Capability], seccomp: bool) -> Result<Sandbox, SandboxError> {
    let left = limit_capabilities(keep)?;
    rustix::thread::set_no_new_privs(true).map_err(|errno| SandboxError::NoNewPrivs(errno.into()))?;
    if seccomp {
        seccompiler::apply_filter(&filter()?)?;
    }
    let capabilities = left.iter().map(ToString::to_string).collect();
    Ok(Sandbox { capabilities, no_new_privs: true, seccomp })
}

/// Builds the filter: a system call that is not listed fails with EPERM.
fn filter() -> Result<BpfProgram, SandboxError> {
    let rules = system_calls::allowed().map(|number| (number, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refused, SeccompAction::Allow, std::env::consts::ARCH.try_into()?);
    Ok(filter?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Privileges are a thread's: this one ends with the test.
    fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().unwrap()
    }

    #[test]
    fn capabilities_that_are_not_kept_are_gone_from_all_sets() {
        let keep = Capability::CAP_NET_RAW;
        let had = caps::has_cap(None, CapSet::Permitted, keep).unwrap();
        let left = in_a_thread(move || {
            let left = limit_capabilities(&[keep]).unwrap();
            for set in [CapSet::Permitted, CapSet::Effective, CapSet::Inheritable, CapSet::Ambient] {
                assert!(caps::read(None, set).unwrap().iter().all(|left| *left == keep), "{set:?}");
            }
            if had {
                let bounding = caps::read(None, CapSet::Bounding).unwrap();
                assert!(bounding.iter().all(|left| *left == keep), "{bounding:?}");
            }
            left
        });
        assert_eq!(left, if had { vec![keep] } else { vec![] });
        assert_eq!(caps::has_cap(None, CapSet::Permitted, keep).unwrap(), had, "only that thread's");
    }

    #[test]
    fn system_calls_that_are_not_listed_fail_and_new_threads_have_the_filter() {
        in_a_thread(|| {
            let sandbox = confine(&[], true).unwrap();
            assert!(sandbox.no_new_privs && sandbox.seccomp && sandbox.capabilities.is_empty());
            let refused = || {
                std::process::Command::new("cat")
                    .stdin(std::process::Stdio::null())
                    .status()
                    .map_err(|error| error.kind())
            };
            assert_eq!(refused().err(), Some(std::io::ErrorKind::PermissionDenied));
            let in_child = std::thread::spawn(refused).join().unwrap();
            assert_eq!(in_child.err(), Some(std::io::ErrorKind::PermissionDenied));
            std::fs::read_to_string("/proc/self/status").unwrap();
        });
    }

    #[test]
    fn without_seccomp_system_calls_stay() {
        in_a_thread(|| {
            assert!(!confine(&[], false).unwrap().seccomp);
            assert!(
                std::process::Command::new("cat")
                    .stdin(std::process::Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            );
        });
    }

    #[test]
    fn no_system_call_is_listed_twice() {
        let mut numbers: Vec<_> = system_calls::allowed().collect();
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
