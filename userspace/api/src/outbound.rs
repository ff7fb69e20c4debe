//! Messages of the daemon: one reply per request, and events.

use std::net::SocketAddrV4;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Code, Failure, Mode, NonFinitePolicy, OperationOrder, Scale, WireFormat};

/// A connection's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of one message.
    pub message_bytes: u64,
    /// Regions registered on one connection.
    pub regions: u32,
    /// Bytes of one region.
    pub region_bytes: u64,
    /// Jobs open, or being opened, on one connection.
    pub jobs: u32,
    /// Operations outstanding on one connection.
    pub operations: u32,
    /// Ended operations that `wait` can return.
    pub finished: u32,
}

/// The answer to `hello`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version of the connection.
    pub version: u32,
    /// The daemon's program and release.
    pub daemon: String,
    /// The backend: `xdp` or `udp`.
    pub backend: String,
    /// The connection's limits.
    pub limits: Limits,
}

/// The granted parameters of a dynamic job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicReply {
    /// Packets that a lane may be ahead of its oldest without a result.
    pub window: u32,
    /// The parameter hosts: shard s has the one at index s modulo their number, at the port of shard 0 plus
    /// s.
    pub hosts: Vec<SocketAddrV4>,
    /// Whether the number of packets in flight follows losses and congestion marks.
    pub congestion_control: bool,
    /// Whether this worker replaces a dead one: it submits the job's operations from `first_operation` on.
    pub resumed: bool,
    /// The number of the first operation to submit, counted from 0: all before it are complete.
    pub first_operation: u32,
}

/// The answer to `open` and `attach`, which carries an eventfd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenReply {
    /// The handle of the job on this connection.
    pub job: u64,
    /// The job's number in packets.
    pub wire_job: u16,
    /// The job's incarnation.
    pub epoch: u16,
    /// This worker's number.
    pub rank: u16,
    /// The number of workers.
    pub world: u16,
    /// The ranks of a direct job, from rank 0 on, that are servers.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub servers: u16,
    /// The use of the aggregators' slots.
    pub mode: Mode,
    /// Slots of each lane; of a dynamic job the maximum of shared slots of each shard, 0 without an
    /// aggregator.
    pub slots: u32,
    /// The reason for the number: the measurement, or the request.
    pub slots_reason: String,
    /// The granted parameters of a dynamic job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicReply>,
    /// The number of shards.
    pub shards: u16,
    /// The maximum of 32-bit words per packet.
    pub elements: u16,
    /// The factor for floats.
    pub scale: Scale,
    /// The wire format of floats.
    pub wire: WireFormat,
    /// The policy for NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// The rule by which the workers' operations are matched.
    pub order: OperationOrder,
    /// The maximum magnitude of a worker's int32 in a sum.
    pub max_int: i32,
    /// The maximum magnitude of a worker's float in a sum; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_float: Option<f64>,
    /// The backend: `xdp` or `udp`.
    pub backend: String,
    /// The aggregator's kind: `ebpf` or `host`, or `none` in a dynamic job without one.
    pub plane: String,
}

impl OpenReply {
    /// The number of equal blocks of a tensor: one for each server, or else for each rank. Ranks from it on
    /// have none.
    #[must_use]
    pub const fn blocks(&self) -> u16 {
        if self.servers > 0 { self.servers } else { self.world }
    }
}

/// The answer to `register`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterReply {
    /// The handle of the region on this connection.
    pub region: u64,
}

/// The answer to a command that submits an operation: it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReply {
    /// The operation's handle on this connection.
    pub op: u64,
}

/// The answer to `wait` when the operation succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitReply {
    /// The operation.
    pub op: u64,
    /// The time from submission to the last element's arrival, in nanoseconds.
    pub duration_ns: u64,
    /// Ranges of elements that were not written, because they were summed before this worker replaced
    /// another: each from its first to one past its last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<(u64, u64)>,
    /// The contributions that are missing, of an operation with a loss bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// The times of its steps, if the operation asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
}

/// Packets of a sum whose values do not fit integers on some worker, in a static job with `not_finite` `raw`:
/// they were not written. All workers have the same ones, and are to sum their values as floats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftPackets {
    /// Elements of a packet: packet `i` begins with element `i` times this number. The last one may be
    /// shorter.
    pub elements: u64,
    /// The packet of the first bit.
    pub first: u64,
    /// A bit for each packet, from the lowest of the first byte on: two hexadecimal digits a byte.
    pub bits: String,
}

impl LeftPackets {
    /// The bytes of bits in a message, which keeps it below its limit.
    const MESSAGE: usize = 48_000;

    /// The messages about the packets with these bits; none where no bit is set.
    #[must_use]
    pub fn all(elements: u64, bits: &[u8]) -> Vec<LeftPackets> {
        let of = |(number, bits): (u64, &[u8])| LeftPackets {
            elements,
            first: number * Self::MESSAGE as u64 * 8,
            bits: bits.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let messages = (0..).zip(bits.chunks(Self::MESSAGE));
        messages.filter(|(_, bits)| bits.iter().any(|byte| *byte != 0)).map(of).collect()
    }

    /// Appends the packets' ranges of elements, ascending, of an operation on `count` elements.
    pub fn append_ranges(&self, count: u64, ranges: &mut Vec<(u64, u64)>) {
        let digit = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default();
        let bytes = self.bits.as_bytes().as_chunks::<2>().0.iter();
        let bytes = bytes.map(|[high, low]| digit(*high) << 4 | digit(*low));
        let packets = bytes.flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 != 0));
        for (packet, _) in (self.first..).zip(packets).filter(|(_, is_left)| *is_left) {
            let at = |packet: u64| packet.saturating_mul(self.elements).min(count);
            let (start, end) = (at(packet), at(packet.saturating_add(1)));
            match ranges.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => ranges.push((start, end)),
            }
        }
    }
}

/// The times of an operation's steps in the daemon, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// The session has read the command.
    pub received_ns: u64,
    /// A data path thread has taken the operation.
    pub taken_ns: u64,
    /// The first packets have been passed to the kernel: the end of the round in which the operation was
    /// taken.
    pub sent_ns: u64,
    /// The data path thread has woken up for the last result.
    pub arrived_ns: u64,
    /// All results are in memory, and the memory is the client's.
    pub ended_ns: u64,
}

/// The contributions that are missing in the result of an operation with a loss bound, in elements of its
/// tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Elements of the tensor.
    pub elements: u64,
    /// The most that each worker may be left out with.
    pub budget: u64,
    /// By rank, what the worker was left out with.
    pub by_worker: Vec<u64>,
    /// The ranges of this worker's own elements that were left out: each from its first to one past its last,
    /// ascending. At most [`Loss::RANGES`], the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<(u64, u64)>,
    /// Direct jobs, where `by_worker` has what did not arrive here from each rank: the ranges that this
    /// affects. At most
    /// [`Loss::RANGES`]: where there are more, neighbours are one, with what arrived between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<(u64, u64)>,
}

impl Loss {
    /// The most ranges of own elements, which keeps messages below their limit.
    pub const RANGES: usize = 2000;

    /// The fraction of all workers' elements that is missing.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        let all = self.elements as f64 * self.by_worker.len() as f64;
        if all == 0.0 { 0.0 } else { self.by_worker.iter().sum::<u64>() as f64 / all }
    }
}

/// The answer to `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReply {
    /// False if the operation had ended already.
    pub cancelled: bool,
}

/// The answer to `withdraw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawReply {
    /// False if this connection has no job of that `open`.
    pub withdrawn: bool,
}

/// A message without a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An operation ended; the job's eventfd was incremented by one.
    Completed {
        /// The operation.
        op: u64,
        /// Its job.
        job: u64,
        /// The time from submission to the end, in nanoseconds.
        duration_ns: u64,
        /// Elements that were not written, as in [`WaitReply`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missed: Vec<(u64, u64)>,
        /// The contributions that are missing, as in [`WaitReply`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<Loss>,
        /// The times of its steps, as in [`WaitReply`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timing: Option<Timing>,
        /// The error, if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// Packets of a sum were left to the clients. It precedes the operation's `Completed`, several times
    /// where one message does not hold all.
    Left {
        /// The operation.
        op: u64,
        /// The packets.
        left: LeftPackets,
    },
    /// The job ended on all workers; its operations have completed with this error.
    JobFailed {
        /// The job.
        job: u64,
        /// The reason.
        error: Failure,
    },
    /// An operation waits for other workers. It is sent once for each state of the wait, and only if the
    /// socket's buffer has room.
    Waiting {
        /// The job.
        job: u64,
        /// The operation, and the workers that it waits for.
        message: String,
        /// Their ranks; none where they are not known.
        ranks: Vec<u16>,
    },
}

/// One message of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Outbound {
    /// The answer to a request; `id` is absent when the request had none.
    Reply {
        /// The request's id.
        id: Option<u64>,
        /// The outcome.
        result: Result<Value, Failure>,
    },
    /// An event.
    Event(Event),
}

/// A message's form in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Shape {
    Event(Event),
    Failed { id: Option<u64>, error: Failure },
    Done { id: Option<u64>, ok: Value },
}

impl Outbound {
    /// Creates the reply to a successful request.
    #[must_use]
    pub fn ok<T: Serialize>(id: u64, value: &T) -> Outbound {
        let result = serde_json::to_value(value)
            .map_err(|error| Failure::new(Code::Internal, format!("the reply has no JSON form: {error}")));
        Outbound::Reply { id: Some(id), result }
    }

    /// Creates the reply to a failed request.
    #[must_use]
    pub fn failed(id: Option<u64>, failure: Failure) -> Outbound {
        Outbound::Reply { id, result: Err(failure) }
    }

    /// Encodes the message.
    ///
    /// # Errors
    /// When a number in it has no JSON form.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let shape = match self.clone() {
            Outbound::Event(event) => Shape::Event(event),
            Outbound::Reply { id, result: Ok(ok) } => Shape::Done { id, ok },
            Outbound::Reply { id, result: Err(error) } => Shape::Failed { id, error },
        };
        serde_json::to_vec(&shape)
    }

    /// Parses one message.
    ///
    /// # Errors
    /// When it is neither a reply nor a known event.
    pub fn parse(bytes: &[u8]) -> Result<Outbound, serde_json::Error> {
        Ok(match serde_json::from_slice(bytes)? {
            Shape::Event(event) => Outbound::Event(event),
            Shape::Done { id, ok } => Outbound::Reply { id, result: Ok(ok) },
            Shape::Failed { id, error } => Outbound::Reply { id, result: Err(error) },
        })
    }
}

/// Parses the body of a reply.
///
/// # Errors
/// When the body does not have this version's form.
pub fn body<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_and_events_survive_encoding() {
        let failure = Failure::new(Code::JobFailed, "rank 2 (10.77.2.2) stopped answering");
        let messages = [
            Outbound::ok(7, &RegisterReply { region: 3 }),
            Outbound::failed(Some(8), failure.clone()),
            Outbound::failed(None, failure.clone()),
            Outbound::Event(Event::Completed {
                op: 1,
                job: 2,
                duration_ns: 3,
                missed: vec![(0, 5)],
                loss: Some(Loss {
                    elements: 9,
                    budget: 4,
                    by_worker: vec![0, 2],
                    own: vec![(3, 5)],
                    missing: vec![(7, 9)],
                }),
                timing: Some(Timing { received_ns: 1, taken_ns: 2, sent_ns: 3, arrived_ns: 4, ended_ns: 5 }),
                error: None,
            }),
            Outbound::Event(Event::JobFailed { job: 2, error: failure }),
            Outbound::Event(Event::Left { op: 1, left: LeftPackets::all(3, &[4]).swap_remove(0) }),
        ];
        for message in messages {
            let bytes = message.encode().unwrap();
            assert_eq!(Outbound::parse(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn packets_that_were_left_are_ranges_of_elements() {
        let ranges = |bits: &[u8]| {
            let mut ranges = Vec::new();
            LeftPackets::all(10, bits).iter().for_each(|left| left.append_ranges(105, &mut ranges));
            ranges
        };
        assert_eq!(ranges(&[0, 0]), []);
        assert_eq!(LeftPackets::all(10, &[0b1000_0011, 0b101])[0].bits, "8305");
        assert_eq!(ranges(&[0b1000_0011, 0b101]), [(0, 20), (70, 90), (100, 105)], "the last one is short");
        let mut bits = vec![0; 2 * LeftPackets::MESSAGE + 1];
        bits[LeftPackets::MESSAGE - 1] = 0x80;
        bits[LeftPackets::MESSAGE] = 1;
        let messages = LeftPackets::all(1, &bits);
        let mut ranges = Vec::new();
        messages.iter().for_each(|left| left.append_ranges(u64::MAX, &mut ranges));
        let middle = 8 * LeftPackets::MESSAGE as u64;
        assert_eq!((messages.len(), ranges), (2, vec![(middle - 1, middle + 1)]), "two messages, one range");
        let longest = Event::Left {
            op: u64::MAX,
            left: LeftPackets { bits: "f".repeat(2 * LeftPackets::MESSAGE), ..messages[1].clone() },
        };
        assert!(Outbound::Event(longest).encode().unwrap().len() < crate::MAX_MESSAGE);
    }

    #[test]
    fn a_reply_has_the_documented_form() {
        let bytes = Outbound::ok(7, &RegisterReply { region: 3 }).encode().unwrap();
        assert_eq!(bytes, br#"{"id":7,"ok":{"region":3}}"#);
    }
}
