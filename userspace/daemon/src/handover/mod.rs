//! The live upgrade: a new daemon, the successor, takes over from a running one, its predecessor.
//!
//! ```text
//!  successor                                   predecessor
//!     | --- offer: versions, settings ---------> |  compares them, and looks for what cannot be handed over
//!     | <-- compatible, or refused, with why --- |
//!     | --- freeze ----------------------------> |  stops between two packets
//!     | <-- state, file descriptors ------------ |
//!     | --- close the interface (AF_XDP) ------> |  closes its sockets, releases the program
//!     | <-- closed ----------------------------- |
//!     | --- ready -----------------------------> |  has all it needs, and has touched nothing
//!     | <-- go --------------------------------- |  ends
//! ```
//!
//! Until `ready` the predecessor goes on when the successor ends or is silent. Nothing was lost: the
//! successor neither sends nor receives before `go`.

mod channel;
mod predecessor;
mod state;
mod successor;
mod versions;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::backend::BackendError;

pub(crate) use self::predecessor::{Parts, Predecessor, listen};
pub(crate) use self::successor::{Successor, Takeover};
pub use self::versions::Versions;

/// The reason for which a successor does not take over; the predecessor goes on.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    #[error("no daemon to take over from at {path}: {source}; start this one without --take-over")]
    NoDaemon { path: PathBuf, source: std::io::Error },
    #[error(
        "the daemon at {path} runs as user {uid}, and neither as root nor as this one's; it is not trusted"
    )]
    Foreign { path: PathBuf, uid: u32 },
    #[error("the running daemon refuses to hand over: {0}. It goes on, and nothing was touched")]
    Refused(String),
    #[error("cannot take over: {0}. The running daemon goes on")]
    State(String),
    #[error("the running daemon no longer answers: {0}; see its log")]
    Silent(String),
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The sockets at which a daemon listens.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) trainers: OwnedFd,
    pub(crate) successors: OwnedFd,
}

/// Returns the socket at which a daemon hands over, beside that of the trainers.
pub(crate) fn path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".upgrade");
    name.into()
}
