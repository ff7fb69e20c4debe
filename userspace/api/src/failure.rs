//! Errors: codes for programs and messages for people.

use serde::{Deserialize, Serialize};

/// Defines the codes of this version.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident,)*) => {
        /// The kind of a failure, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $code,)*
            /// A code of a later version (clients only; never sent).
            #[serde(other)]
            Unknown,
        }

        impl Code {
            /// All codes of this version.
            pub const ALL: &[Code] = &[$(Code::$code),*];
        }
    };
}

codes! {
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
    /// The daemon does not support the client's version.
    Version,
    /// The daemon's configuration does not allow this user.
    Denied,
    /// A limit of the daemon or of this connection is reached.
    Limit,
    /// A command came without its file descriptor.
    MissingFd,
    /// A command came with unexpected file descriptors.
    UnexpectedFd,
    /// The registered file is not a sealed memory file of the given size.
    BadRegion,
    /// No such region on this connection.
    UnknownRegion,
    /// Outstanding operations use the region.
    RegionBusy,
    /// No such job on this connection.
    UnknownJob,
    /// Operations of the job are outstanding.
    JobBusy,
    /// No such operation on this connection, or its outcome is no longer stored.
    UnknownOp,
    /// Offset and count do not lie within the region.
    OutOfRange,
    /// An offset is not a multiple of the element's size.
    Misaligned,
    /// The range overlaps one that an outstanding operation writes.
    RangeBusy,
    /// Not implemented, or not in this backend.
    Unsupported,
    /// The job is open on this daemon already, or the rank on another.
    RankTaken,
    /// Not all ranks joined in time; `ranks` names the missing.
    RanksMissing,
    /// The coordinator refused: wrong secret, other world size, no free slots.
    Refused,
    /// The aggregator's control plane or data plane does not answer.
    Unreachable,
    /// The path between worker and aggregator failed the handshake.
    Handshake,
    /// The host's data path (program, socket, interface) could not be set up.
    Datapath,
    /// The job has failed; `ranks` names the workers at fault, if known.
    JobFailed,
    /// The workers' operations differ; `ranks` names the workers that differ, if known.
    Mismatch,
    /// The operation was cancelled, and its job with it.
    Cancelled,
    /// A value exceeds the wire format's range; `tensor` and `index` name it.
    Saturated,
    /// A `wait` timed out; the operation continues.
    Timeout,
    /// The daemon is stopping.
    ShuttingDown,
    /// An error of the daemon itself.
    Internal,
}

impl Code {
    /// The code's name in JSON.
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

/// An error of the daemon: a code, a message, and the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code}){}", self.suffix())]
pub struct Failure {
    /// The kind of error.
    pub code: Code,
    /// The action, its object, and the reason.
    pub message: Box<str>,
    /// The next step; may be empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub hint: Box<str>,
    /// The ranks that are missing or at fault, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u16>,
    /// The tensor at fault: its operation's name, or its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// The first element at fault, counted from the start of its tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// One past the last element that may be at fault, if only the chunk is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_end: Option<u64>,
}

impl Failure {
    /// Creates an error.
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

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Box<str>>) -> Failure {
        self.hint = hint.into();
        self
    }

    /// Adds the ranks that are missing or at fault.
    #[must_use]
    pub fn ranks(mut self, ranks: impl IntoIterator<Item = u16>) -> Failure {
        self.ranks = ranks.into_iter().collect();
        self
    }

    /// Adds the elements at fault: `index` of `tensor`, or a range up to `end` (exclusive).
    #[must_use]
    pub fn elements(mut self, tensor: impl Into<String>, index: u64, end: Option<u64>) -> Failure {
        self.tensor = Some(tensor.into());
        self.index = Some(index);
        self.index_end = end;
        self
    }

    fn suffix(&self) -> String {
        if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_json_without_its_empty_fields() {
        let failure = Failure::new(Code::RanksMissing, "ranks [2] did not join").ranks([2]);
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(json, r#"{"code":"ranks_missing","message":"ranks [2] did not join","ranks":[2]}"#);
        assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
    }

    #[test]
    fn a_code_of_a_later_version_is_read_as_unknown() {
        let failure: Failure = serde_json::from_str(r#"{"code":"on_fire","message":"x"}"#).unwrap();
        assert_eq!(failure.code, Code::Unknown);
    }

    #[test]
    fn the_message_ends_with_the_hint() {
        let failure =
            Failure::new(Code::Denied, "user 7 may not use this daemon").hint("add the uid to allow_uids");
        assert_eq!(failure.to_string(), "user 7 may not use this daemon (denied); add the uid to allow_uids");
    }
}
