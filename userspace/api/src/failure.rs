//! What can go wrong, as codes for programs and sentences for people.

use serde::{Deserialize, Serialize};

/// The kind of a failure: what a client may branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The message is not a JSON object with `id` and `cmd`.
    BadMessage,
    /// A message is longer than [`crate::MAX_MESSAGE`].
    TooLarge,
    /// `cmd` names no command of this version.
    UnknownCommand,
    /// A field is missing, unknown, or of a wrong type or value.
    BadField,
    /// The first command was not `hello`.
    HelloFirst,
    /// The daemon does not speak the client's version.
    Version,
    /// The daemon's configuration does not allow this user.
    Denied,
    /// A limit of the daemon or of this connection is reached.
    Limit,
    /// A command came without the file descriptor it needs.
    MissingFd,
    /// A command came with file descriptors it does not take.
    UnexpectedFd,
    /// The registered file is not a sealed memory file of the size given.
    BadRegion,
    /// No such region on this connection.
    UnknownRegion,
    /// Operations are still using the region.
    RegionBusy,
    /// No such job on this connection.
    UnknownJob,
    /// Operations of the job are outstanding.
    JobBusy,
    /// No such operation on this connection, or it finished too long ago.
    UnknownOp,
    /// Offset and count do not lie within the region.
    OutOfRange,
    /// An offset is not a multiple of the element's size.
    Misaligned,
    /// The range overlaps one that an outstanding operation writes.
    RangeBusy,
    /// What was asked for is not built yet, or not in this backend.
    Unsupported,
    /// Somebody has the place: the job is open on this daemon already, or the rank elsewhere.
    RankTaken,
    /// Not all ranks joined in time; `ranks` names the missing.
    RanksMissing,
    /// The aggregator refused: wrong secret, other world size, no slots left.
    Refused,
    /// The aggregator's control plane or data plane does not answer.
    Unreachable,
    /// The path between worker and aggregator failed the handshake.
    Handshake,
    /// The host's network path (program, socket, interface) could not be set up.
    Datapath,
    /// The job has failed; `ranks` names whose fault it was where that is known.
    JobFailed,
    /// The workers do not do the same; `ranks` names those who differ, where that is known.
    Mismatch,
    /// The operation was cancelled, and its job with it.
    Cancelled,
    /// A value did not fit the wire's fixed point; `tensor` and `index` name it.
    Saturated,
    /// The time given to `wait` ran out; the operation goes on.
    Timeout,
    /// The daemon is stopping.
    ShuttingDown,
    /// A fault of the daemon itself.
    Internal,
    /// A code of a later version (clients only; never sent).
    #[serde(other)]
    Unknown,
}

impl Code {
    /// All codes that a daemon of this version sends.
    pub const ALL: &[Code] = &[
        Code::BadMessage,
        Code::TooLarge,
        Code::UnknownCommand,
        Code::BadField,
        Code::HelloFirst,
        Code::Version,
        Code::Denied,
        Code::Limit,
        Code::MissingFd,
        Code::UnexpectedFd,
        Code::BadRegion,
        Code::UnknownRegion,
        Code::RegionBusy,
        Code::UnknownJob,
        Code::JobBusy,
        Code::UnknownOp,
        Code::OutOfRange,
        Code::Misaligned,
        Code::RangeBusy,
        Code::Unsupported,
        Code::RankTaken,
        Code::RanksMissing,
        Code::Refused,
        Code::Unreachable,
        Code::Handshake,
        Code::Datapath,
        Code::JobFailed,
        Code::Mismatch,
        Code::Cancelled,
        Code::Saturated,
        Code::Timeout,
        Code::ShuttingDown,
        Code::Internal,
    ];

    /// The code as it stands in JSON.
    #[must_use]
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => "unknown".to_owned(),
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// An error as the daemon reports it: a code, a sentence, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code}){}", self.advice())]
pub struct Failure {
    /// What kind of error it is.
    pub code: Code,
    /// What was being done, on what, and what went wrong.
    pub message: Box<str>,
    /// What to do next; may be empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub hint: Box<str>,
    /// The ranks that are missing or at fault, where that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u16>,
    /// The tensor at fault: its operation's name, or number where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// The first element at fault, counted from the start of its tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// One past the last element that may be at fault, when only the chunk is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_end: Option<u64>,
}

impl Failure {
    /// An error of this kind.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Box<str>>) -> Failure {
        Failure {
            code,
            message: message.into(),
            hint: "".into(),
            ranks: Vec::new(),
            tensor: None,
            index: None,
            index_end: None,
        }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Failure {
        self.hint = hint.into();
        self
    }

    /// Adds the ranks it is about.
    #[must_use]
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = u16>) -> Failure {
        self.ranks = ranks.into_iter().collect();
        self
    }

    /// Adds the elements it is about: `index` of `tensor`, or up to `end` (exclusive) when only a range is known.
    #[must_use]
    pub fn elements(mut self, tensor: impl Into<String>, index: u64, end: Option<u64>) -> Failure {
        self.tensor = Some(tensor.into());
        self.index = Some(index);
        self.index_end = end;
        self
    }

    fn advice(&self) -> String {
        if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_json_and_leaves_out_what_it_does_not_know() {
        let failure = Failure::new(Code::RanksMissing, "ranks [2] did not join").ranks([2]);
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(json, r#"{"code":"ranks_missing","message":"ranks [2] did not join","ranks":[2]}"#);
        assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
    }

    #[test]
    fn a_code_of_the_future_is_read_as_unknown() {
        let failure: Failure = serde_json::from_str(r#"{"code":"on_fire","message":"x"}"#).unwrap();
        assert_eq!(failure.code, Code::Unknown);
    }

    #[test]
    fn the_sentence_ends_with_the_advice() {
        let failure =
            Failure::new(Code::Denied, "user 7 may not use this daemon").hint("add the uid to allow_uids");
        assert_eq!(failure.to_string(), "user 7 may not use this daemon (denied); add the uid to allow_uids");
    }
}
