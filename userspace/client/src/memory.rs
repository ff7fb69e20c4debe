//! Registered memory without element types, and operations on ranges of it: for bindings of other languages.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumac_api::{Cancel, CancelReply, CollectiveKind, Command, DType, Loss};
use sumac_memory::{Lease, ReadRegion};

use crate::connection::{Connection, Done, body};
use crate::place::Place;
use crate::tensor::{Region, register, share};
use crate::{ClientError, Job, OpOptions, RecvOptions, SendOptions};

/// Memory that the daemon maps too, or that it alone writes; clones share it. It is unregistered with the
/// last clone and the last [`Operation`] on it.
#[derive(Clone)]
pub struct Memory {
    registered: Arc<Registered>,
}

struct Registered {
    /// Keeps the mapping. Rust never accesses its bytes.
    _mapping: Mapping,
    region: Region,
    /// The address of the first byte, whose provenance is exposed.
    address: usize,
    size: usize,
}

#[expect(dead_code, reason = "they are kept")]
enum Mapping {
    Own(Lease),
    /// The daemon's, for reading.
    Shared(ReadRegion),
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("region", &self.registered.region.handle).finish_non_exhaustive()
    }
}

impl Memory {
    pub(crate) fn allocate(connection: &Arc<Connection>, size: usize) -> Result<Memory, ClientError> {
        // An empty file cannot be mapped.
        let size = size.max(1);
        let (memory, region) = register(connection, size)?;
        let mut lease = memory.lease(0..size, 0..size)?;
        let address = lease.output(0, size).ok_or(ClientError::TooLarge)?.as_mut_ptr().expose_provenance();
        Ok(Memory::new(Mapping::Own(lease), region, (address, size)))
    }

    pub(crate) fn shared(connection: &Arc<Connection>, job: u64, size: usize) -> Result<Memory, ClientError> {
        let (mapping, region) = share(connection, job, size)?;
        let address = mapping.address().expose_provenance();
        Ok(Memory::new(Mapping::Shared(mapping), region, (address, size.max(1))))
    }

    fn new(mapping: Mapping, region: Region, (address, size): (usize, usize)) -> Memory {
        Memory { registered: Arc::new(Registered { _mapping: mapping, region, address, size }) }
    }

    /// The address of the first byte: page-aligned, with exposed provenance. It is valid while a clone
    /// exists.
    #[must_use]
    pub fn address(&self) -> usize {
        self.registered.address
    }

    /// Number of bytes; never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.registered.size
    }

    /// Whether other clones exist, among them those of [operations](Operation) that have not been waited for.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.registered) > 1
    }
}

/// The first byte of a tensor in registered memory.
#[derive(Clone, Debug)]
pub struct Location {
    /// The memory.
    pub memory: Memory,
    /// The offset in it, in bytes.
    pub offset: usize,
}

/// The tensor of an operation.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The elements' type.
    pub dtype: DType,
    /// Elements of the whole tensor, all blocks together.
    pub count: u64,
    /// The tensor, or this worker's input.
    pub input: Location,
    /// The result, if it is not in place.
    pub output: Option<Location>,
}

impl Operand {
    fn place(&self) -> Place {
        Place {
            region: self.input.memory.registered.region.handle,
            dtype: self.dtype,
            offset: self.input.offset as u64,
            count: self.count,
            output: self.output.as_ref().map(|at| (at.memory.registered.region.handle, at.offset as u64)),
            word: None,
        }
    }
}

impl Job {
    /// As [`Job::shared`], of bytes without a type. [`Memory::address`] is for reading alone.
    ///
    /// # Errors
    /// As [`Job::shared`].
    pub fn shared_memory(&self, size: usize) -> Result<Memory, ClientError> {
        Memory::shared(&self.connection, self.opened().job, size)
    }

    /// Submits a collective operation on registered memory. Nothing may write its input, or access its
    /// output, before the end.
    ///
    /// # Errors
    /// When the operation was not accepted.
    pub fn submit_collective(
        &self,
        kind: CollectiveKind,
        root: Option<u16>,
        operand: Operand,
        options: OpOptions<'_>,
    ) -> Result<Operation, ClientError> {
        self.submit_on(self.collective(kind, root, operand.place(), options), operand)
    }

    /// As [`Job::post_send`], of registered memory.
    ///
    /// # Errors
    /// When the transfer was not accepted.
    pub fn submit_send(
        &self,
        operand: Operand,
        destination: u16,
        options: SendOptions,
    ) -> Result<Operation, ClientError> {
        self.submit_on(self.send_command(operand.place(), destination, options), operand)
    }

    /// As [`Job::post_recv`], into registered memory.
    ///
    /// # Errors
    /// When the transfer was not accepted.
    pub fn submit_recv(
        &self,
        operand: Operand,
        source: u16,
        options: RecvOptions,
    ) -> Result<Operation, ClientError> {
        self.submit_on(self.recv_command(operand.place(), source, options), operand)
    }

    fn submit_on(&self, command: Command, operand: Operand) -> Result<Operation, ClientError> {
        let (connection, op) = self.request(command)?;
        Ok(Operation { connection, op, operand: Some(operand), outcome: None })
    }
}

/// A submitted operation on registered memory, which stays registered until its end.
#[derive(Debug)]
#[must_use = "the result is there once wait() has returned true"]
pub struct Operation {
    connection: Arc<Connection>,
    op: u64,
    /// Keeps the memory until the end.
    operand: Option<Operand>,
    outcome: Option<Done>,
}

impl Operation {
    /// Waits for the result, at most until the timeout if there is one; returns whether it is there.
    ///
    /// # Errors
    /// The operation's own error, which ends it; or the connection is lost.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ClientError> {
        if self.outcome.is_some() {
            return Ok(true);
        }
        // A timeout beyond the clock's range is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(outcome) = self.connection.finished(self.op, deadline)? else { return Ok(false) };
        self.operand = None;
        self.outcome = Some(outcome?);
        Ok(true)
    }

    /// The time from submission to the arrival of the last element, once [`Operation::wait`] has returned
    /// true.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        self.outcome.as_ref().map(|done| done.duration)
    }

    /// The contributions that are missing, of an operation with a loss bound, once [`Operation::wait`] has
    /// returned true.
    #[must_use]
    pub fn loss(&self) -> Option<&Loss> {
        self.outcome.as_ref().and_then(|done| done.loss.as_ref())
    }

    /// Cancels the operation. Its job fails on all workers, with this rank in the error. Returns false if it
    /// had ended already.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn cancel(&self) -> Result<bool, ClientError> {
        let answer = self.connection.call(Command::Cancel(Cancel { op: self.op }), &[])?;
        Ok(body::<CancelReply>(answer.value)?.cancelled)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.operand.is_some() {
            self.connection.abandon(self.op);
        }
    }
}
