//! What a client's call can come to.

use sumac_api::{Code, Failure, FrameError};
use sumac_memory::{LeaseError, RegionError};

use crate::Tensor;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Daemon(#[from] Failure),
    /// The socket failed.
    #[error("talking to the daemon: {0}")]
    Socket(#[from] FrameError),
    /// The daemon said something that this version does not understand.
    #[error("the daemon's message is not understood: {0}; do client and daemon have the same version?")]
    Protocol(String),
    /// The connection ended; every later call fails with the same words.
    #[error("the connection to the daemon is gone: {0}; connect and open the job again")]
    Lost(String),
    /// The shared memory could not be made.
    #[error("making a tensor: {0}")]
    Memory(#[from] RegionError),
    /// The shared memory could not be divided.
    #[error("dividing a region: {0}")]
    Divide(#[from] LeaseError),
    /// More elements than addresses.
    #[error("the tensors have more bytes than this machine can address")]
    TooLarge,
}

impl ClientError {
    /// The daemon's code, where the error is the daemon's.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            ClientError::Daemon(failure) => Some(failure.code),
            _ => None,
        }
    }
}

/// An operation that did not happen, with its tensor.
///
/// The tensor's contents are what they were, except where an operation failed half way: then some chunks hold sums
/// and the others inputs, and only a new value makes sense of them.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed<T> {
    /// Why.
    #[source]
    pub error: ClientError,
    /// The tensor that was handed over; none when the daemon may still be using it.
    pub tensor: Option<Tensor<T>>,
}

impl<T> Failed<T> {
    pub(crate) fn new(error: impl Into<ClientError>, tensor: Option<Tensor<T>>) -> Box<Failed<T>> {
        Box::new(Failed { error: error.into(), tensor })
    }
}

impl<T> From<Box<Failed<T>>> for ClientError {
    fn from(failed: Box<Failed<T>>) -> ClientError {
        failed.error
    }
}
