//! The daemon's privileges, at its start and while it runs.

use sumac_sandbox::{Capability, NETWORK, START, Sandbox, SandboxError};

/// Drops what not even the start needs: files of other users, above all. A secret that the running daemon
/// could not read again fails the start.
pub fn limit_start() -> Result<(), SandboxError> {
    sumac_sandbox::limit_capabilities(&[NETWORK, START].concat()).map(drop)
}

/// Keeps what a running daemon needs: one that never uses XDP only large socket buffers.
pub(crate) fn confine(may_be_xdp: bool, seccomp: bool) -> Result<Sandbox, SandboxError> {
    let keep = if may_be_xdp { &NETWORK[..] } else { &[Capability::CAP_NET_ADMIN] };
    let sandbox = sumac_sandbox::confine(keep, seccomp)?;
    if !seccomp {
        tracing::warn!("system calls are not restricted: `seccomp` is false in the configuration");
    }
    Ok(sandbox)
}
