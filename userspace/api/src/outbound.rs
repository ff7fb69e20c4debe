//! What the daemon says: one reply per request, and events.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Code, DynamicReply, Failure, Mode, NonFinitePolicy, OperationOrder, Scale, WireFormat};

/// What a connection may hold at once; the daemon tells them in its hello.
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
    /// Finished operations that `wait` still knows.
    pub finished: u32,
}

/// The answer to `hello`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HelloReply {
    /// The version that both speak from here on.
    pub version: u32,
    /// The daemon's program and release.
    pub daemon: String,
    /// How frames move: `xdp` or `udp`.
    pub backend: String,
    /// What a connection may hold at once.
    pub limits: Limits,
}

/// The answer to `open` and `attach`, which comes with an eventfd.
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
    /// How many workers the job has.
    pub world: u16,
    /// How the job uses its aggregators.
    pub mode: Mode,
    /// Slots of each lane; of a dynamic job, shared slots of each shard that it may take, none where it has no aggregator.
    pub slots: u32,
    /// Why that many: what was measured, or who asked for them.
    pub slots_reason: String,
    /// What a dynamic job was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicReply>,
    /// Shards that a tensor is spread over.
    pub shards: u16,
    /// Most 32-bit words in a packet.
    pub elements: u16,
    /// What floats are multiplied with.
    pub scale: Scale,
    /// How floats are written into packets.
    pub wire: WireFormat,
    /// What becomes of NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// Which operations of the workers belong together.
    pub order: OperationOrder,
    /// The largest magnitude that a worker's int32 may have in a sum.
    pub max_int: i32,
    /// The largest magnitude that a worker's float may have in a sum; absent where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_float: Option<f64>,
    /// How frames move: `xdp` or `udp`.
    pub backend: String,
    /// The aggregator's kind: `ebpf` or `host`, or `none` in a dynamic job without one.
    pub plane: String,
}

/// The answer to `register`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterReply {
    /// The handle of the region on this connection.
    pub region: u64,
}

/// The answer to a command that begins an operation: it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReply {
    /// The operation's handle on this connection.
    pub op: u64,
}

/// The answer to `wait` when the operation succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReply {
    /// The operation.
    pub op: u64,
    /// From submission to the last element's arrival, in nanoseconds.
    pub duration_ns: u64,
    /// Elements that were not written, because they were summed before this worker took another one's place: ranges,
    /// each from its first to one past its last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<(u64, u64)>,
}

/// The answer to `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelReply {
    /// False when the operation had already finished.
    pub cancelled: bool,
}

/// A job in `stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStats {
    /// The job's name.
    pub name: String,
    /// The job's number in packets.
    pub job: u16,
    /// The job's incarnation.
    pub epoch: u16,
    /// This worker's number.
    pub rank: u16,
    /// How many workers the job has.
    pub world: u16,
    /// `probing`, `ready` or `failed`.
    pub state: String,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Connections that submit into it.
    pub clients: u32,
    /// How it uses its aggregators.
    pub mode: Mode,
    /// Slots, as in [`OpenReply`].
    pub slots: u32,
    /// Why that many.
    pub slots_reason: String,
    /// What it was given, if it is dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<DynamicReply>,
    /// Most 32-bit words in a packet.
    pub elements: u16,
    /// Operations that have been taken.
    pub operations_submitted: u64,
    /// Operations that have ended, well or not.
    pub operations_ended: u64,
    /// The engine's counters (`EngineStats`), of all lanes together.
    pub engine: Value,
    /// The same for each lane.
    pub lanes: Vec<Value>,
}

/// The answer to `stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatsReply {
    /// How frames move: `xdp` or `udp`.
    pub backend: String,
    /// Why the backend is not the one that was asked for; empty when it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fallback: String,
    /// Connections at the moment.
    pub clients: u32,
    /// The open jobs.
    pub jobs: Vec<JobStats>,
    /// The jobs that the daemon sums for as a parameter host; absent when it is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter_host: Option<Vec<Value>>,
    /// The network ports (`PortReport`): what was bound, and counters.
    pub ports: Vec<Value>,
    /// The data path's threads: rounds, sleeps, packets of no job.
    #[serde(default)]
    pub threads: Vec<Value>,
    /// Where the UMEM's frames are; they must add up to `frames` (XDP only).
    #[serde(default)]
    pub frames: Value,
    /// The host program's counters by reason (XDP only).
    #[serde(default)]
    pub host_program: serde_json::Map<String, Value>,
}

/// What the daemon says without being asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An operation finished; the job's eventfd was incremented by one.
    Completed {
        /// The operation.
        op: u64,
        /// Its job.
        job: u64,
        /// From submission to the end, in nanoseconds.
        duration_ns: u64,
        /// Elements that were not written, as in [`WaitReply`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missed: Vec<(u64, u64)>,
        /// Why it failed, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// The job ended for all workers; its operations have completed with this error.
    JobFailed {
        /// The job.
        job: u64,
        /// Why.
        error: Failure,
    },
}

/// One message of the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Outbound {
    /// The answer to a request; `id` is absent when the request had none.
    Reply {
        /// The request's id.
        id: Option<u64>,
        /// What came of it.
        result: Result<Value, Failure>,
    },
    /// Something that happened.
    Event(Event),
}

/// A message of the daemon as it stands in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Shape {
    Event(Event),
    Failed { id: Option<u64>, error: Failure },
    Done { id: Option<u64>, ok: Value },
}

impl Outbound {
    /// The reply to a request that succeeded.
    #[must_use]
    pub fn ok<T: Serialize>(id: u64, value: &T) -> Outbound {
        let result = serde_json::to_value(value)
            .map_err(|error| Failure::new(Code::Internal, format!("the reply has no JSON form: {error}")));
        Outbound::Reply { id: Some(id), result }
    }

    /// The reply to a request that failed.
    #[must_use]
    pub fn failed(id: Option<u64>, failure: Failure) -> Outbound {
        Outbound::Reply { id, result: Err(failure) }
    }

    /// The message as bytes.
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

    /// Reads one message of the daemon.
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

/// Reads the body of a reply.
///
/// # Errors
/// When the daemon's reply has another shape than this version's.
pub fn body<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_and_events_survive_the_way_to_bytes_and_back() {
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
                error: None,
            }),
            Outbound::Event(Event::JobFailed { job: 2, error: failure }),
        ];
        for message in messages {
            let bytes = message.encode().unwrap();
            assert_eq!(Outbound::parse(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn a_reply_looks_as_documented() {
        let bytes = Outbound::ok(7, &RegisterReply { region: 3 }).encode().unwrap();
        assert_eq!(bytes, br#"{"id":7,"ok":{"region":3}}"#);
    }
}
