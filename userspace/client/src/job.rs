//! A job and its operations.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::{
    Cancel, CancelReply, Close, Collective, CollectiveKind, Command, Failure, JobStats, Loss, OpenReply,
    OperationReply, PollCq, PollCqReply, PostRecv, PostSend, Timing, TransferCompletion, WORD_COMPLETE,
};

use crate::connection::{Connection, Done, body};
use crate::place::Place;
use crate::tensor::{Element, SharedTensor, Tensor};
use crate::{ClientError, Failed, OpOptions, RecvOptions, SendOptions};

/// A submitted operation; the error returns the tensor of one that was not accepted.
pub type Submitted<T> = Result<Pending<T>, Box<Failed<T>>>;

/// A job with this trainer as a worker. Without [`Job::close`] it stays open until the connection ends, which
/// fails it on the other workers (for an attached client only if operations of its own are outstanding).
#[derive(Debug)]
pub struct Job {
    pub(crate) connection: Arc<Connection>,
    opened: OpenReply,
    completion_event: OwnedFd,
}

impl Job {
    pub(crate) fn new(connection: Arc<Connection>, opened: OpenReply, completion_event: OwnedFd) -> Job {
        Job { connection, opened, completion_event }
    }

    /// This job's counters; `None` if it has left the data path.
    ///
    /// # Errors
    /// `unknown_job` after the connection's end of it; when the connection is lost.
    pub fn stats(&self) -> Result<Option<JobStats>, ClientError> {
        Ok(self.connection.stats(Some(self.opened.job))?.jobs.pop())
    }

    /// The granted parameters.
    #[must_use]
    pub fn opened(&self) -> &OpenReply {
        &self.opened
    }

    /// The eventfd that counts ended operations, for a trainer's event loop.
    ///
    /// When it is readable, [`Pending::wait_timeout`] with a zero timeout finds the operation.
    #[must_use]
    pub fn completion_event(&self) -> BorrowedFd<'_> {
        self.completion_event.as_fd()
    }

    /// The error of the failed job, if that message has been read.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.connection.job_failure(self.opened.job)
    }

    /// The message about an operation that waits for other workers, with their ranks, if it has been read:
    /// after
    /// [`Pending::wait_timeout`], say. The daemon sends it some seconds after the last result.
    #[must_use]
    pub fn waiting(&self) -> Option<String> {
        self.connection.waiting(self.opened.job)
    }

    /// Returns zeros in memory that all ranks of this host read and none can write, for the results of
    /// [tensors](Tensor::with_result): the daemon writes each once for all of them. All ranks of the host ask
    /// for the same lengths in the same order.
    ///
    /// # Errors
    /// When the daemon refuses it; `mismatch` names ranks that have asked for different sizes.
    pub fn shared<T: Element>(&self, count: usize) -> Result<SharedTensor<T>, ClientError> {
        SharedTensor::new(&self.connection, self.opened.job, count)
    }

    /// Sums a tensor over all workers, in place. All workers submit the same shapes in the same order.
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn allreduce<T: Element>(&self, tensor: Tensor<T>) -> Submitted<T> {
        self.allreduce_with(tensor, OpOptions::default())
    }

    /// As [`Job::allreduce`], with options: another reduction than the sum, a name, a priority.
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn allreduce_with<T: Element>(&self, tensor: Tensor<T>, options: OpOptions<'_>) -> Submitted<T> {
        self.submit(CollectiveKind::Allreduce, None, tensor, options)
    }

    /// Replaces the tensor of all workers by that of `root`.
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn broadcast<T: Element>(
        &self,
        root: u16,
        tensor: Tensor<T>,
        options: OpOptions<'_>,
    ) -> Submitted<T> {
        self.submit(CollectiveKind::Broadcast, Some(root), tensor, options)
    }

    /// Reduces a tensor over all workers for `root`; other workers' tensors are unchanged.
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn reduce<T: Element>(&self, root: u16, tensor: Tensor<T>, options: OpOptions<'_>) -> Submitted<T> {
        self.submit(CollectiveKind::Reduce, Some(root), tensor, options)
    }

    /// Reduces a tensor of `world` equal blocks over all workers; each receives its own block
    /// ([`Job::block`]) of the result, in place. The other blocks are unchanged.
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn reduce_scatter<T: Element>(&self, tensor: Tensor<T>, options: OpOptions<'_>) -> Submitted<T> {
        self.submit(CollectiveKind::ReduceScatter, None, tensor, options)
    }

    /// Fills a tensor of `world` equal blocks with each worker's own block ([`Job::block`]).
    ///
    /// # Errors
    /// When the operation was not accepted; the error returns the tensor.
    pub fn allgather<T: Element>(&self, tensor: Tensor<T>, options: OpOptions<'_>) -> Submitted<T> {
        self.submit(CollectiveKind::Allgather, None, tensor, options)
    }

    /// This worker's own block of a tensor of `count` elements, for [`Job::reduce_scatter`] and
    /// [`Job::allgather`]. In a job with servers they have the blocks, and other ranks' are empty.
    #[must_use]
    pub fn block(&self, count: usize) -> Range<usize> {
        let (rank, blocks) = (self.opened.rank, self.opened.blocks());
        if rank >= blocks {
            return 0..0;
        }
        let size = count / usize::from(blocks);
        let start = usize::from(rank) * size;
        start..start + size
    }

    fn submit<T: Element>(
        &self,
        kind: CollectiveKind,
        root: Option<u16>,
        tensor: Tensor<T>,
        options: OpOptions<'_>,
    ) -> Submitted<T> {
        let mut place = tensor.place();
        if kind == CollectiveKind::Allgather && place.output.is_some() {
            // The input of an operation that is not in place is this worker's block alone.
            place.offset += (self.block(tensor.count).start * size_of::<T>()) as u64;
        }
        self.begin(self.collective(kind, root, place, options), tensor)
    }

    pub(crate) fn collective(
        &self,
        kind: CollectiveKind,
        root: Option<u16>,
        place: Place,
        options: OpOptions<'_>,
    ) -> Command {
        let operation = Collective {
            job: self.opened.job,
            region: place.region,
            dtype: place.dtype,
            offset: place.offset,
            count: place.count,
            out_region: place.output.map(|(region, _)| region),
            out_offset: place.output.map(|(_, offset)| offset),
            reduction: kind.reduces().then_some(options.reduction),
            root,
            name: options.name.map(str::to_owned),
            priority: options.priority,
            importance: options.importance,
            loss_bound: options.loss_bound,
            completion_word: place.word.filter(|_| options.polled),
            timing: options.timed,
        };
        Command::collective(kind, operation)
    }

    /// Sends a tensor to another worker of a direct job, which receives it by [`Job::post_recv`]. What two
    /// workers send each other is matched in the order of posting.
    ///
    /// # Errors
    /// When the transfer was not accepted; the error returns the tensor.
    pub fn post_send<T: Element>(
        &self,
        tensor: Tensor<T>,
        destination: u16,
        options: SendOptions,
    ) -> Submitted<T> {
        self.begin(self.send_command(tensor.place(), destination, options), tensor)
    }

    pub(crate) fn send_command(&self, place: Place, destination: u16, options: SendOptions) -> Command {
        let SendOptions { priority, importance } = options;
        Command::PostSend(PostSend {
            job: self.opened.job,
            region: place.region,
            dtype: place.dtype,
            offset: place.offset,
            count: place.count,
            destination,
            priority,
            importance,
        })
    }

    /// Receives a tensor that another worker of a direct job sends by [`Job::post_send`]; it may lack what
    /// the options allow, and
    /// [`Pending::loss`] has what it lacks.
    ///
    /// # Errors
    /// When the transfer was not accepted; the error returns the tensor.
    pub fn post_recv<T: Element>(
        &self,
        tensor: Tensor<T>,
        source: u16,
        options: RecvOptions,
    ) -> Submitted<T> {
        self.begin(self.recv_command(tensor.place(), source, options), tensor)
    }

    pub(crate) fn recv_command(&self, place: Place, source: u16, options: RecvOptions) -> Command {
        let RecvOptions { loss_bound, missing } = options;
        Command::PostRecv(PostRecv {
            job: self.opened.job,
            region: place.region,
            dtype: place.dtype,
            offset: place.offset,
            count: place.count,
            source,
            loss_bound,
            missing,
        })
    }

    /// Takes transfers that have ended from the job's completion queue, in the order of their ends; none if
    /// none has. Does not wait: [`Job::completion_event`] does. [`Pending::wait`] of a transfer that was
    /// taken returns at once.
    ///
    /// # Errors
    /// When the job is not direct, or the connection is lost.
    pub fn poll_cq(&self) -> Result<Vec<TransferCompletion>, ClientError> {
        let answer = self.connection.call(Command::PollCq(PollCq { job: self.opened.job }), &[])?;
        Ok(body::<PollCqReply>(answer.value)?.completions)
    }

    fn begin<T: Element>(&self, command: Command, tensor: Tensor<T>) -> Submitted<T> {
        // Its value is an earlier operation's.
        tensor.word.store(0);
        match self.request(command) {
            Ok((connection, op)) => Ok(Pending { connection, op, tensor: Some(tensor), done: None }),
            Err(error) => Err(Failed::new(error, Some(tensor))),
        }
    }

    /// Submits an operation; returns its handle.
    pub(crate) fn request(&self, command: Command) -> Result<(Arc<Connection>, u64), ClientError> {
        let answer = self.connection.call(command, &[])?;
        let OperationReply { op } = body(answer.value)?;
        Ok((self.connection.clone(), op))
    }

    /// Closes the job after its last operation. An attached client leaves alone; when the client that opened
    /// the job closes it, it ends for all clients of this host.
    ///
    /// # Errors
    /// `job_busy` while operations are outstanding; the job's own error if it has failed.
    pub fn close(self) -> Result<(), ClientError> {
        let reply = self.connection.call(Command::Close(Close { job: self.opened.job }), &[]);
        self.connection.forget_job(self.opened.job);
        reply.map(|_| ())
    }
}

/// A submitted operation; owns the tensor until the end.
#[derive(Debug)]
#[must_use = "wait() returns the tensor"]
pub struct Pending<T> {
    connection: Arc<Connection>,
    op: u64,
    tensor: Option<Tensor<T>>,
    done: Option<Done>,
}

impl<T: Element> Pending<T> {
    /// The operation's handle.
    #[must_use]
    pub fn op(&self) -> u64 {
        self.op
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// The operation's error (`job_failed` names the rank at fault, `saturated` the element), with the
    /// tensor.
    pub fn wait(self) -> Result<Tensor<T>, Box<Failed<T>>> {
        self.wait_timed().map(|(tensor, _)| tensor)
    }

    /// As [`Pending::wait`], with the operation's duration by the daemon's clock.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_timed(mut self) -> Result<(Tensor<T>, Duration), Box<Failed<T>>> {
        self.finish(None)?;
        match (self.tensor.take(), self.done.take()) {
            (Some(tensor), Some(done)) => Ok((tensor, done.duration)),
            (tensor, _) => {
                Err(Failed::new(ClientError::Protocol("the operation has no outcome".into()), tensor))
            }
        }
    }

    /// Whether the operation has ended, by its completion word: without a system call. For operations
    /// submitted with
    /// [`OpOptions::polled`]; others have not ended before [`Pending::wait_timeout`] says so.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.done.is_some() || self.tensor.as_ref().is_some_and(|tensor| tensor.word.load() != 0)
    }

    /// As [`Pending::wait`], and polls the completion word for up to `spin` before it sleeps: the result is
    /// returned as soon as it lies in memory, without a system call or a message. For operations submitted
    /// with [`OpOptions::polled`].
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait_polled(mut self, spin: Duration) -> Result<Tensor<T>, Box<Failed<T>>> {
        let begin = Instant::now();
        while !self.is_ended() && begin.elapsed() < spin {
            std::thread::yield_now();
        }
        if self.done.is_none()
            && let Some(tensor) = self.tensor.take_if(|tensor| tensor.word.load() == WORD_COMPLETE)
        {
            self.connection.abandon(self.op);
            return Ok(tensor);
        }
        // The message has the reason of a failure.
        self.wait()
    }

    /// Waits for at most `timeout`; returns whether the operation has ended, so that [`Pending::wait`]
    /// returns at once.
    ///
    /// # Errors
    /// As [`Pending::wait`]; a timeout is not an error.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool, Box<Failed<T>>> {
        // A timeout beyond the clock's range is none.
        self.finish(Some(Instant::now().checked_add(timeout)).flatten())
    }

    /// The ranges of elements that were not written, once [`Pending::wait_timeout`] has returned true: each
    /// from its first to one past its last. They were summed before this worker replaced a dead one.
    #[must_use]
    pub fn missed(&self) -> &[(u64, u64)] {
        self.done.as_ref().map_or(&[], |done| &done.missed)
    }

    /// The ranges of elements that this sum has left to the clients, once [`Pending::wait_timeout`] has
    /// returned true: of a static job with [`NonFinitePolicy::Raw`](crate::NonFinitePolicy::Raw). All workers
    /// have the same ones, each from its first to one past its last. They were not written: after an
    /// operation in place the tensor still has this worker's values. `count`: the elements of the operation's
    /// tensor.
    #[must_use]
    pub fn left(&self, count: u64) -> Vec<(u64, u64)> {
        self.done.as_ref().map_or_else(Vec::new, |done| done.left_ranges(count))
    }

    /// The contributions that are missing in the result of an operation with a [loss
    /// bound](OpOptions::loss_bound), once
    /// [`Pending::wait_timeout`] has returned true. Its `own` ranges of this worker's values are the error to
    /// feed back: they can be added to the next step's, if the result was not written over them.
    #[must_use]
    pub fn loss(&self) -> Option<&Loss> {
        self.done.as_ref().and_then(|done| done.loss.as_ref())
    }

    /// The times of its steps in the daemon, of an operation submitted with [`OpOptions::timed`], once
    /// [`Pending::wait_timeout`] has returned true.
    #[must_use]
    pub fn timing(&self) -> Option<Timing> {
        self.done.as_ref().and_then(|done| done.timing)
    }

    /// Cancels the operation. Its job fails on all workers, with this rank in the error.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn cancel(&self) -> Result<bool, ClientError> {
        let answer = self.connection.call(Command::Cancel(Cancel { op: self.op }), &[])?;
        Ok(body::<CancelReply>(answer.value)?.cancelled)
    }

    fn finish(&mut self, deadline: Option<Instant>) -> Result<bool, Box<Failed<T>>> {
        if self.done.is_some() {
            return Ok(true);
        }
        match self.connection.finished(self.op, deadline) {
            Ok(None) => Ok(false),
            Ok(Some(Ok(done))) => {
                self.done = Some(done);
                Ok(true)
            }
            Ok(Some(Err(failure))) => Err(Failed::new(failure, self.tensor.take())),
            // The daemon may still run and write the memory, so the tensor is not returned.
            Err(error) => Err(Failed::new(error, None)),
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.done.is_none() && self.tensor.is_some() {
            self.connection.abandon(self.op);
        }
    }
}
