//! A failed operation, with its tensor.

use crate::{ClientError, tensor::Tensor};

/// A failed operation, with its tensor.
///
/// The tensor is unchanged if the operation was not accepted. After an operation that failed later its
/// contents are undefined: some chunks hold sums, others inputs.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed<T> {
    /// The reason.
    #[source]
    pub error: ClientError,
    /// The submitted tensor; `None` if the daemon may still use it.
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
