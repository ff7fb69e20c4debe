//! Requests of a client, and their parser for untrusted bytes.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Attach, Code, Collective, CollectiveKind, Failure, Open, PollCq, PostRecv, PostSend, Stats, Withdraw,
};

/// Negotiates the version; must be the first command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The client's version.
    pub version: u32,
    /// The client's name, for the daemon's log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
}

/// Registers a sealed memory file, whose descriptor travels with the message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Bytes of the file to map, from its start.
    pub size: u64,
}

/// Asks for a region of the daemon's to which it writes results once for all ranks of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRegion {
    /// The job's handle, from `open` or `attach`.
    pub job: u64,
    /// Bytes of the region, the same for all ranks of the host.
    pub size: u64,
}

/// Waits for the end of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// The operation's handle, from the reply to its command.
    pub op: u64,
    /// The timeout in milliseconds; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Cancels an operation, and with it its job on all workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// The operation's handle.
    pub op: u64,
}

/// Unregisters a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unregister {
    /// The region's handle, from `register`.
    pub region: u64,
}

/// Closes a job, or detaches from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The job's handle.
    pub job: u64,
}

/// A command with its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant is documented by the struct it holds")]
pub enum Command {
    Hello(Hello),
    Open(Open),
    Withdraw(Withdraw),
    Attach(Attach),
    Register(Register),
    Share(ShareRegion),
    Allreduce(Collective),
    Broadcast(Collective),
    Reduce(Collective),
    ReduceScatter(Collective),
    Allgather(Collective),
    PostSend(PostSend),
    PostRecv(PostRecv),
    PollCq(PollCq),
    Wait(Wait),
    Cancel(Cancel),
    Stats(Stats),
    Unregister(Unregister),
    Close(Close),
}

impl Command {
    /// Returns the command for an operation of `kind`.
    #[must_use]
    pub fn collective(kind: CollectiveKind, operation: Collective) -> Command {
        match kind {
            CollectiveKind::Allreduce => Command::Allreduce(operation),
            CollectiveKind::Broadcast => Command::Broadcast(operation),
            CollectiveKind::Reduce => Command::Reduce(operation),
            CollectiveKind::ReduceScatter => Command::ReduceScatter(operation),
            CollectiveKind::Allgather => Command::Allgather(operation),
        }
    }

    /// Whether it submits an operation.
    #[must_use]
    pub fn submits(&self) -> bool {
        matches!(
            self,
            Command::Allreduce(_)
                | Command::Broadcast(_)
                | Command::Reduce(_)
                | Command::ReduceScatter(_)
                | Command::Allgather(_)
                | Command::PostSend(_)
                | Command::PostRecv(_)
        )
    }
}

/// One message of a client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Request {
    /// The client's number of the request, repeated in the reply.
    pub id: u64,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// An invalid request, with its id if readable.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejected {
    /// The request's id, if readable.
    pub id: Option<u64>,
    /// The reason.
    pub failure: Box<Failure>,
}

impl Rejected {
    fn new(id: Option<u64>, failure: Failure) -> Rejected {
        Rejected { id, failure: Box::new(failure) }
    }
}

impl Request {
    /// Encodes the request as one message.
    ///
    /// # Errors
    /// When a number in it has no JSON form (an infinite `scale` or `timeout_s`).
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Parses one message.
    ///
    /// # Errors
    /// A [`Rejected`] with the reason: not an object, no id, unknown command, bad field.
    pub fn parse(bytes: &[u8]) -> Result<Request, Rejected> {
        let mut object = parse_object(bytes).map_err(|failure| Rejected::new(None, failure))?;
        let id = match object.remove("id") {
            Some(Value::Number(n)) if n.is_u64() => n.as_u64(),
            _ => None,
        };
        let Some(id) = id else {
            let failure = Failure::new(
                Code::BadMessage,
                "the request has no \"id\" that is a whole number from 0 to 2^64-1",
            )
            .hint("number the requests of a connection; the reply repeats the number");
            return Err(Rejected::new(None, failure));
        };
        parse_command(object)
            .map(|command| Request { id, command })
            .map_err(|failure| Rejected::new(Some(id), failure))
    }
}

fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::new(Code::BadMessage, "the message is JSON, but not an object")
            .hint("send one object per message, see docs/api.md")),
        Err(error) => Err(Failure::new(Code::BadMessage, format!("the message is not JSON: {error}"))
            .hint("send one JSON object per SOCK_SEQPACKET message, in UTF-8, without a terminator")),
    }
}

fn parse_command(mut object: Map<String, Value>) -> Result<Command, Failure> {
    let Some(Value::String(name)) = object.remove("cmd") else {
        return Err(Failure::new(Code::BadMessage, "the request has no \"cmd\" that is a string")
            .hint("see docs/api.md for the commands"));
    };
    if let Some(kind) = CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name) {
        return collective(kind, object);
    }
    match name.as_str() {
        "hello" => fields(&name, object).map(Command::Hello),
        "open" => fields(&name, object).map(Command::Open),
        "withdraw" => fields(&name, object).map(Command::Withdraw),
        "attach" => fields(&name, object).map(Command::Attach),
        "register" => fields(&name, object).map(Command::Register),
        "share" => fields(&name, object).map(Command::Share),
        "post_send" => fields(&name, object).map(Command::PostSend),
        "post_recv" => fields(&name, object).map(Command::PostRecv),
        "poll_cq" => fields(&name, object).map(Command::PollCq),
        "wait" => fields(&name, object).map(Command::Wait),
        "cancel" => fields(&name, object).map(Command::Cancel),
        "stats" => fields(&name, object).map(Command::Stats),
        "unregister" => fields(&name, object).map(Command::Unregister),
        "close" => fields(&name, object).map(Command::Close),
        _ => {
            Err(Failure::new(Code::UnknownCommand, format!("no command {:?}", shorten(&name))).hint(COMMANDS))
        }
    }
}

/// All commands, for the hint after an unknown one.
const COMMANDS: &str = "hello, open, withdraw, attach, register, share, allreduce, broadcast, \
reduce, reduce_scatter, allgather, post_send, post_recv, poll_cq, wait, cancel, stats, unregister, close";

fn collective(kind: CollectiveKind, object: Map<String, Value>) -> Result<Command, Failure> {
    let operation: Collective = fields(kind.name(), object)?;
    match operation.misfit(kind) {
        None => Ok(Command::collective(kind, operation)),
        Some(problem) => Err(bad_field(kind.name(), problem)),
    }
}

fn fields<T: DeserializeOwned>(name: &str, object: Map<String, Value>) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(object)).map_err(|error| bad_field(name, &error.to_string()))
}

fn bad_field(name: &str, problem: &str) -> Failure {
    Failure::new(Code::BadField, format!("{name}: {}", shorten(problem)))
        .hint(format!("see `{name}` in docs/api.md"))
}

/// Truncates a client's text for log and reply.
fn shorten(text: &str) -> String {
    const KEEP: usize = 200;
    if text.chars().count() <= KEEP {
        text.to_owned()
    } else {
        text.chars().take(KEEP).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DType, JobSpec, MissingValues, Mode, NonFinitePolicy, OperationOrder, Reduction, Scale, Secret,
        WireFormat,
    };

    #[test]
    fn requests_survive_encoding() {
        let spec = JobSpec {
            elements: Some(256),
            scale: Some(Scale::Fixed(65536.0)),
            wire: Some(WireFormat::Int16),
            not_finite: Some(NonFinitePolicy::Carry),
            order: Some(OperationOrder::Name),
            mode: Some(Mode::Dynamic),
            window: Some(512),
            dynamic_slots: Some(100),
            parameter_hosts: Some(2),
            congestion_control: Some(false),
            shards: Some(2),
            timeout_s: Some(1.5),
            ..JobSpec::new("digits", 1, 4)
        };
        let open = Open { secret: Some(Secret("s".into())), ..spec.into() };
        let plain = Collective {
            job: 1,
            region: 2,
            dtype: DType::Float32,
            offset: 64,
            count: 1000,
            out_region: None,
            out_offset: Some(0),
            reduction: None,
            root: None,
            name: Some("layer1".into()),
            priority: 3,
            importance: sumac_job::Importance::None,
            loss_bound: 0.0,
            completion_word: Some(4096),
            timing: true,
        };
        let rooted = Collective { root: Some(3), ..plain.clone() };
        let reduced = Collective { reduction: Some(Reduction::Mean), ..plain.clone() };
        let commands = [
            Command::Hello(Hello { version: 4, client: "test".into() }),
            Command::Open(open),
            Command::Withdraw(Withdraw { open: 7 }),
            Command::Attach(Attach { job: "digits".into(), rank: None, secret: None }),
            Command::Register(Register { size: 4096 }),
            Command::Share(ShareRegion { job: 1, size: 4096 }),
            Command::Allreduce(reduced.clone()),
            Command::Broadcast(rooted.clone()),
            Command::Reduce(rooted),
            Command::ReduceScatter(reduced),
            Command::Allgather(plain),
            Command::PostSend(PostSend {
                job: 1,
                region: 2,
                dtype: DType::Bfloat16,
                offset: 8,
                count: 100,
                destination: 3,
                priority: 5,
                importance: sumac_job::Importance::Magnitude,
            }),
            Command::PostRecv(PostRecv {
                job: 1,
                region: 2,
                dtype: DType::Float32,
                offset: 8,
                count: 100,
                source: 3,
                loss_bound: 0.25,
                missing: MissingValues::Keep,
            }),
            Command::PollCq(PollCq { job: 1 }),
            Command::Wait(Wait { op: 3, timeout_ms: None }),
            Command::Cancel(Cancel { op: 3 }),
            Command::Stats(Stats { job: Some(1), after: Some(7) }),
            Command::Stats(Stats::default()),
            Command::Unregister(Unregister { region: 2 }),
            Command::Close(Close { job: 1 }),
        ];
        for (id, command) in (0..).zip(commands) {
            let request = Request { id, command };
            let bytes = request.encode().unwrap();
            assert_eq!(Request::parse(&bytes), Ok(request));
        }
    }

    #[test]
    fn invalid_requests_are_rejected_by_code_and_keep_their_id() {
        let cases: &[(&str, &[u8], Option<u64>, Code)] = &[
            ("empty", b"", None, Code::BadMessage),
            ("not UTF-8", b"\xff\xfe", None, Code::BadMessage),
            ("an array", b"[]", None, Code::BadMessage),
            ("two objects", b"{}{}", None, Code::BadMessage),
            ("no id", br#"{"cmd":"stats"}"#, None, Code::BadMessage),
            ("negative id", br#"{"id":-1,"cmd":"stats"}"#, None, Code::BadMessage),
            ("fractional id", br#"{"id":1.5,"cmd":"stats"}"#, None, Code::BadMessage),
            ("no cmd", br#"{"id":1}"#, Some(1), Code::BadMessage),
            ("cmd a number", br#"{"id":1,"cmd":7}"#, Some(1), Code::BadMessage),
            ("no such command", br#"{"id":1,"cmd":"x"}"#, Some(1), Code::UnknownCommand),
            ("unknown field", br#"{"id":1,"cmd":"wait","op":1,"x":0}"#, Some(1), Code::BadField),
            ("missing field", br#"{"id":1,"cmd":"wait"}"#, Some(1), Code::BadField),
            ("negative op", br#"{"id":1,"cmd":"wait","op":-1}"#, Some(1), Code::BadField),
            (
                "a root where there is none",
                br#"{"id":1,"cmd":"allreduce","job":1,"region":1,"dtype":"int32","offset":0,"count":1,"root":0}"#,
                Some(1),
                Code::BadField,
            ),
            (
                "missing values of no kind",
                br#"{"id":1,"cmd":"post_recv","job":1,"region":1,"dtype":"float32","offset":0,"count":1,"source":0,"missing":"ones"}"#,
                Some(1),
                Code::BadField,
            ),
            (
                "a destination that is negative",
                br#"{"id":1,"cmd":"post_send","job":1,"region":1,"dtype":"float32","offset":0,"count":1,"destination":-1}"#,
                Some(1),
                Code::BadField,
            ),
            (
                "an unknown field of open",
                br#"{"id":1,"cmd":"open","job":"a","rank":0,"world":1,"x":0}"#,
                Some(1),
                Code::BadField,
            ),
            (
                "rank too large",
                br#"{"id":1,"cmd":"open","job":"a","rank":65536,"world":1}"#,
                Some(1),
                Code::BadField,
            ),
        ];
        for (name, bytes, id, code) in cases {
            let rejected = Request::parse(bytes).unwrap_err();
            assert_eq!((rejected.id, rejected.failure.code), (*id, *code), "{name}");
        }
    }

    #[test]
    fn deep_nesting_is_rejected_without_recursion() {
        let deep = vec![b'['; 100_000];
        assert_eq!(Request::parse(&deep).unwrap_err().failure.code, Code::BadMessage);
    }

    #[test]
    fn a_long_name_is_not_echoed_in_full() {
        let request = format!(r#"{{"id":1,"cmd":"{}"}}"#, "x".repeat(10_000));
        let rejected = Request::parse(request.as_bytes()).unwrap_err();
        assert!(rejected.failure.message.len() < 300);
    }
}
