//! Errors of the client.

use sumac_api::{Code, Failure, FrameError};
use sumac_memory::{LeaseError, RegionError};

/// An error of a client's call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Daemon(#[from] Failure),
    /// The socket failed.
    #[error("the daemon's socket failed: {0}")]
    Socket(#[from] FrameError),
    /// A message of the daemon is invalid in this version.
    #[error("invalid message of the daemon: {0}; do client and daemon have the same version?")]
    Protocol(String),
    /// The connection is lost; every later call fails with the same reason.
    #[error("the connection to the daemon is lost: {0}; connect and open the job again")]
    Lost(String),
    /// The shared memory could not be allocated.
    #[error("cannot allocate a tensor: {0}")]
    Memory(#[from] RegionError),
    /// The shared memory could not be divided.
    #[error("cannot divide a region: {0}")]
    Divide(#[from] LeaseError),
    /// The tensors exceed the address space.
    #[error("the tensors exceed this machine's address space")]
    TooLarge,
}

impl ClientError {
    /// The error code, if the daemon returned the error.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            ClientError::Daemon(failure) => Some(failure.code),
            _ => None,
        }
    }
}
