//! A job that is being opened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::Open;

use crate::connection::{Answer, Connection, body};
use crate::{ClientError, Job};

/// A job that waits for its other workers. Dropped before it is open, it is withdrawn: its rank is free
/// again.
#[derive(Debug)]
#[must_use = "a job that is not waited for is withdrawn"]
pub struct Opening {
    connection: Arc<Connection>,
    /// The request; `None` once it was answered.
    request: Option<u64>,
}

impl Opening {
    pub(crate) fn begin(connection: &Arc<Connection>, open: Open) -> Result<Opening, ClientError> {
        let request = connection.begin_open(open)?;
        Ok(Opening { connection: connection.clone(), request: Some(request) })
    }

    /// Waits until all workers have joined.
    ///
    /// # Errors
    /// As [`crate::Client::open`].
    pub fn wait(mut self) -> Result<Job, ClientError> {
        self.answered(None)?.ok_or_else(|| ClientError::Protocol("a wait without a deadline ended".into()))
    }

    /// Waits for at most `timeout`; `None`: not all workers have joined yet.
    ///
    /// # Errors
    /// As [`crate::Client::open`]; a timeout is not an error.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Job>, ClientError> {
        // A timeout beyond the clock's range is none.
        self.answered(Some(Instant::now().checked_add(timeout)).flatten())
    }

    fn answered(&mut self, deadline: Option<Instant>) -> Result<Option<Job>, ClientError> {
        let Some(request) = self.request else {
            return Err(ClientError::Protocol("the open was answered before".into()));
        };
        let Some(answer) = self.connection.answered(request, deadline)? else { return Ok(None) };
        self.request = None;
        entered(&self.connection, answer?).map(Some)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            // Fails with the connection, and with it the job ends.
            let _ = self.connection.withdraw(request);
        }
    }
}

/// Returns the job of the reply to `open` or `attach`.
pub(crate) fn entered(
    connection: &Arc<Connection>,
    Answer { value, fds }: Answer,
) -> Result<Job, ClientError> {
    let opened = body(value)?;
    let event = fds.into_iter().next();
    let event = event.ok_or_else(|| ClientError::Protocol("the job came without eventfd".into()))?;
    Ok(Job::new(connection.clone(), opened, event))
}
