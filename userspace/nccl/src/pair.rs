//! A connection of NCCL's point-to-point network: a direct job of two ranks, in which one sends to the other.
//!
//! A message has a header with its length. The first transfer is of fixed size and carries the header and the
//! message's first bytes; a second one carries the rest, if there is any. The receiver posts the first
//! transfers one after the other: by the header it knows whether a second one follows.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sumac_client::{ClientError, DType, Job, Operand, Operation, RecvOptions, SendOptions};

use crate::endpoint::Endpoint;
use crate::error::PluginError;
use crate::link::{Messages, PairLink};
use crate::memory::UserBytes;
use crate::opening::OpenedJob;
use crate::staging::Slot;

/// Bytes of the header: the message's length, and padding.
const HEADER: usize = 16;
/// Bytes of the first transfer: no more than a packet at an MTU of 1500.
const HEAD: usize = 1024;
/// Bytes of an element of the transfers, whose values nothing computes with.
const WORD: usize = 4;
/// The rank of the side that listens, and receives.
pub(crate) const RECEIVER: u16 = 0;
/// The rank of the side that connects, and sends.
pub(crate) const SENDER: u16 = 1;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Pair {
    endpoint: Endpoint,
    messages: HashMap<u64, Message>,
    next: u64,
    /// Messages to receive, in order, whose first transfer has not been posted.
    unposted: VecDeque<u64>,
    /// The message whose header is awaited.
    awaited: Option<u64>,
}

/// A message on its way.
#[derive(Debug)]
struct Message {
    slot: Slot,
    /// NCCL's memory for a message to receive.
    user: Option<UserBytes>,
    /// The message's length; `None` before its header has arrived.
    length: Option<usize>,
    head: Option<Operation>,
    rest: Option<Operation>,
}

impl Messages for Pair {
    fn send(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        let end = end_of(user.length)?;
        let Some(slot) = self.slot(end)? else { return Ok(None) };
        slot.write_number(user.length as u64);
        slot.copy_in(HEADER, user);
        self.endpoint.counters.copied_in(user.length);
        match send_parts(self.endpoint.job()?, &slot, end) {
            Ok((head, rest)) => {
                let length = Some(user.length);
                Ok(Some(self.insert(Message { slot, user: None, length, head: Some(head), rest })))
            }
            Err(error) => Err(self.endpoint.fail(error)),
        }
    }

    fn receive(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        let Some(slot) = self.slot(end_of(user.length)?)? else { return Ok(None) };
        let number = self.insert(Message { slot, user: Some(user), length: None, head: None, rest: None });
        self.unposted.push_back(number);
        self.progress()?;
        Ok(Some(number))
    }

    fn test(&mut self, number: u64) -> Result<Option<usize>, PluginError> {
        self.progress()?;
        let Some(message) = self.messages.get_mut(&number) else {
            return Err(PluginError::argument("the request has ended"));
        };
        match message.is_done() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.endpoint.fail(error)),
        }
        let Some(message) = self.messages.remove(&number) else { return Ok(None) };
        let length = message.length.unwrap_or(0);
        if let Some(user) = message.user {
            message.slot.copy_out(HEADER, user.part(0, length));
            self.endpoint.counters.copied_out(length);
        }
        Ok(Some(length))
    }

    fn close(&mut self) {
        let messages = std::mem::take(&mut self.messages);
        let operations = messages.into_values().flat_map(|message| [message.head, message.rest]);
        self.endpoint.close(operations.flatten().collect());
    }
}

impl Pair {
    pub(crate) fn link(is_sender: bool, opened: OpenedJob) -> Result<PairLink, PluginError> {
        let label = if is_sender { "send" } else { "receive" };
        let pair = Pair {
            endpoint: Endpoint::new(label.into(), opened)?,
            messages: HashMap::new(),
            next: 0,
            unposted: VecDeque::new(),
            awaited: None,
        };
        Ok(PairLink::new(is_sender, pair))
    }

    fn slot(&mut self, bytes: usize) -> Result<Option<Slot>, PluginError> {
        // Two transfers for each message.
        self.endpoint.slot(bytes, 2, 2 * self.messages.len())
    }

    fn insert(&mut self, message: Message) -> u64 {
        self.endpoint.counters.requests += 1;
        self.next += 1;
        self.messages.insert(self.next, message);
        self.next
    }

    /// Posts the transfers of messages to receive, as far as headers have arrived.
    fn progress(&mut self) -> Result<(), PluginError> {
        self.endpoint.job()?;
        self.post().map_err(|error| self.endpoint.fail(error))
    }

    fn post(&mut self) -> Result<(), PluginError> {
        loop {
            let job = self.endpoint.job()?;
            let awaited = self.awaited;
            let Some(number) = awaited.or_else(|| self.unposted.pop_front()) else { return Ok(()) };
            let Some(message) = self.messages.get_mut(&number) else { return Ok(()) };
            if awaited.is_none() {
                message.head = Some(receive_part(job, &message.slot, 0, HEAD)?);
                self.awaited = Some(number);
            }
            if !is_ended(&mut message.head)? {
                return Ok(());
            }
            self.awaited = None;
            let end = message.read_header()?;
            if end > HEAD {
                message.rest = Some(receive_part(job, &message.slot, HEAD, end)?);
            }
        }
    }
}

impl Message {
    fn is_done(&mut self) -> Result<bool, ClientError> {
        Ok(self.length.is_some() && is_ended(&mut self.head)? && is_ended(&mut self.rest)?)
    }

    /// Reads the length of a message whose header has arrived; returns the end of its bytes in the slot.
    fn read_header(&mut self) -> Result<usize, PluginError> {
        let length = usize::try_from(self.slot.read_number()).unwrap_or(usize::MAX);
        let room = self.user.map_or(0, |user| user.length);
        if length > room {
            let message = format!("a message of {length} bytes has arrived for a receive of {room}");
            return Err(PluginError::internal(message));
        }
        self.length = Some(length);
        end_of(length)
    }
}

/// The end of a message of this length in its slot: at least that of the first transfer, in whole words.
fn end_of(length: usize) -> Result<usize, PluginError> {
    let end = length.checked_add(HEADER).and_then(|end| end.checked_next_multiple_of(WORD));
    end.map(|end| end.max(HEAD)).ok_or_else(|| PluginError::argument("the message exceeds the address space"))
}

fn send_parts(job: &Job, slot: &Slot, end: usize) -> Result<(Operation, Option<Operation>), ClientError> {
    let send = |from, to| job.submit_send(operand(slot, from, to), RECEIVER, SendOptions::default());
    let head = send(0, HEAD)?;
    let rest = if end > HEAD { Some(send(HEAD, end)?) } else { None };
    Ok((head, rest))
}

fn receive_part(job: &Job, slot: &Slot, from: usize, to: usize) -> Result<Operation, ClientError> {
    job.submit_recv(operand(slot, from, to), SENDER, RecvOptions::default())
}

/// The words of a slot between two offsets.
fn operand(slot: &Slot, from: usize, to: usize) -> Operand {
    let count = ((to - from) / WORD) as u64;
    Operand { dtype: DType::Int32, count, input: slot.location(from), output: None }
}

/// Whether the operation has ended, or there is none.
fn is_ended(operation: &mut Option<Operation>) -> Result<bool, ClientError> {
    let Some(running) = operation else { return Ok(true) };
    let has_ended = running.wait(Some(Duration::ZERO))?;
    if has_ended {
        *operation = None;
    }
    Ok(has_ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_at_a_word_after_its_header() {
        assert_eq!(end_of(0).unwrap(), HEAD);
        assert_eq!(end_of(HEAD - HEADER).unwrap(), HEAD);
        assert_eq!(end_of(HEAD - HEADER + 1).unwrap(), HEAD + WORD);
        assert_eq!(end_of(1 << 20).unwrap(), (1 << 20) + HEADER);
        assert!(end_of(usize::MAX).is_err());
    }
}
