//! The connection to systemd.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};

/// The connection to systemd of a daemon that it has started. A successor continues with it: systemd
/// passes it to the first process of a service, and lets only the main process use it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Service {
    socket: Option<PathBuf>,
    /// The interval of the watchdog.
    pub(crate) watchdog: Option<Duration>,
}

impl Service {
    /// Returns that of this process's environment.
    pub(crate) fn of_environment() -> Service {
        Service {
            socket: std::env::var_os("NOTIFY_SOCKET").map(PathBuf::from),
            watchdog: sd_notify::watchdog_enabled(),
        }
    }

    pub(crate) fn notify(&self, state: &NotifyState<'_>) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket, &state.to_string()) {
            tracing::warn!(%error, "cannot notify systemd");
        }
    }
}

fn send(socket: &Path, message: &str) -> io::Result<()> {
    let path = socket.as_os_str().as_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}
