//! A job and its operations.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::{Allreduce, AllreduceReply, Cancel, CancelReply, Close, Command, Failure, OpenReply};

use crate::client::body;
use crate::connection::Connection;
use crate::tensor::{Element, Tensor};
use crate::{ClientError, Failed};

/// A job that this trainer is a worker of. Dropping it without [`Job::close`] leaves the job open until the connection
/// ends, which then fails it for the others.
#[derive(Debug)]
pub struct Job {
    connection: Arc<Connection>,
    opened: OpenReply,
    bell: OwnedFd,
}

/// How an operation is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpOptions {
    /// The tensor's number in error messages and statistics; the daemon counts them otherwise.
    pub tensor: Option<u32>,
    /// The layer's priority, 0 (least) to 7 (most urgent).
    pub priority: u8,
    /// The fraction of contributions that may be missing; 0 for exact sums.
    pub loss_bound: f32,
}

impl Job {
    pub(crate) fn new(connection: Arc<Connection>, opened: OpenReply, bell: OwnedFd) -> Job {
        Job { connection, opened, bell }
    }

    /// What was agreed on with the aggregator.
    #[must_use]
    pub fn opened(&self) -> &OpenReply {
        &self.opened
    }

    /// The eventfd that counts finished operations, for a trainer's own event loop.
    ///
    /// After it is readable, [`Pending::wait_timeout`] with no time tells which operation it was.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Why the job has ended, as far as the daemon's messages have been read.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.connection.job_failure(self.opened.job)
    }

    /// Sums a tensor over all workers, in place. All workers hand in the same shapes in the same order.
    ///
    /// # Errors
    /// When the operation was not accepted; the tensor comes back with the error.
    pub fn allreduce<T: Element>(&self, tensor: Tensor<T>) -> Result<Pending<T>, Box<Failed<T>>> {
        self.allreduce_with(tensor, OpOptions::default())
    }

    /// As [`Job::allreduce`], with options.
    ///
    /// # Errors
    /// When the operation was not accepted; the tensor comes back with the error.
    pub fn allreduce_with<T: Element>(
        &self,
        tensor: Tensor<T>,
        options: OpOptions,
    ) -> Result<Pending<T>, Box<Failed<T>>> {
        let command = Command::Allreduce(Allreduce {
            job: self.opened.job,
            region: tensor.region.handle,
            dtype: T::DTYPE,
            offset: tensor.offset as u64,
            count: tensor.count as u64,
            out_region: None,
            out_offset: None,
            tensor: options.tensor,
            priority: options.priority,
            loss_bound: options.loss_bound,
        });
        let reply =
            self.connection.call(command, &[]).and_then(|answer| body::<AllreduceReply>(answer.value));
        match reply {
            Ok(AllreduceReply { op, .. }) => {
                Ok(Pending { connection: self.connection.clone(), op, tensor: Some(tensor), duration: None })
            }
            Err(error) => Err(Failed::new(error, Some(tensor))),
        }
    }

    /// Leaves the job in good order, after its last operation.
    ///
    /// # Errors
    /// `job_busy` while operations are outstanding; the job's own error when it had failed.
    pub fn close(self) -> Result<(), ClientError> {
        let reply = self.connection.call(Command::Close(Close { job: self.opened.job }), &[]);
        self.connection.forget_job(self.opened.job);
        reply.map(|_| ())
    }
}

/// An operation on its way; owns the tensor until it has ended.
#[derive(Debug)]
#[must_use = "the tensor comes back from wait()"]
pub struct Pending<T> {
    connection: Arc<Connection>,
    op: u64,
    tensor: Option<Tensor<T>>,
    duration: Option<Duration>,
}

impl<T: Element> Pending<T> {
    /// The operation's handle.
    #[must_use]
    pub fn op(&self) -> u64 {
        self.op
    }

    /// Waits for the sum.
    ///
    /// # Errors
    /// The operation's error (`job_failed` names the rank at fault, `saturated` the element), with the tensor.
    pub fn wait(self) -> Result<Tensor<T>, Box<Failed<T>>> {
        self.wait_timed().map(|(tensor, _)| tensor)
    }

    /// As [`Pending::wait`], and how long the operation took, by the daemon's clock.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_timed(mut self) -> Result<(Tensor<T>, Duration), Box<Failed<T>>> {
        self.finish(None)?;
        match (self.tensor.take(), self.duration) {
            (Some(tensor), Some(duration)) => Ok((tensor, duration)),
            (tensor, _) => Err(Failed::new(ClientError::Protocol("the operation has no end".into()), tensor)),
        }
    }

    /// Whether the operation ends within this time; then [`Pending::wait`] returns at once.
    ///
    /// # Errors
    /// As [`Pending::wait`]; a time that runs out is not an error.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool, Box<Failed<T>>> {
        // A time beyond the clock's end is no deadline.
        self.finish(Some(Instant::now().checked_add(timeout)).flatten())
    }

    /// Gives the operation up. Its job ends with it, on all workers, who are told which rank cancelled.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn cancel(&self) -> Result<bool, ClientError> {
        let answer = self.connection.call(Command::Cancel(Cancel { op: self.op }), &[])?;
        Ok(body::<CancelReply>(answer.value)?.cancelled)
    }

    fn finish(&mut self, deadline: Option<Instant>) -> Result<bool, Box<Failed<T>>> {
        if self.duration.is_some() {
            return Ok(true);
        }
        match self.connection.finished(self.op, deadline) {
            Ok(None) => Ok(false),
            Ok(Some(Ok(duration))) => {
                self.duration = Some(duration);
                Ok(true)
            }
            Ok(Some(Err(failure))) => Err(Failed::new(failure, self.tensor.take())),
            // The daemon may be gone, or only deaf: the memory may still change, so the tensor stays here.
            Err(error) => Err(Failed::new(error, None)),
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.duration.is_none() && self.tensor.is_some() {
            self.connection.abandon(self.op);
        }
    }
}
