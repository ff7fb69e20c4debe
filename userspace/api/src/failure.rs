//! Errors: codes for programs and messages for people.

use serde::{Deserialize, Serialize};

/// Defines the codes of this version: the meaning of each as its documentation, and the remedy.
macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $code:ident => $remedy:literal,)*) => {
        /// The kind of a failure, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $meaning])+ $code,)*
            /// A code of a later version (clients only; never sent).
            #[serde(other)]
            Unknown,
        }

        impl Code {
            /// All codes of this version.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// Returns the meaning of the code, in Markdown.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Code::$code => concat!($($meaning),+).trim(),)*
                    Code::Unknown => "A code of a later version.",
                }
            }

            /// Returns the remedy, in Markdown; empty where the meaning says it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Code::$code => $remedy,)*
                    Code::Unknown => "Upgrade the client.",
                }
            }
        }
    };
}

codes! {
    /// The message is not JSON, not an object, or has no `id` or `cmd`.
    BadMessage => "Correct the client.",
    /// The message, or its reply, has more than 131,072 bytes. Such a message is dropped unread, and `id` is
    /// null.
    TooLarge => "Send less.",
    /// `cmd` names no command of this version.
    UnknownCommand => "Correct the client.",
    /// A field is missing, unknown, or of a wrong type or value.
    BadField => "Correct the client.",
    /// Another command came before `hello`.
    HelloFirst => "Send `hello`.",
    /// The daemon does not support the client's version.
    Version => "Install the same release of client and daemon.",
    /// This user may not use the daemon, open this job under the daemon's secret, or attach to it; or the
    /// named control plane is not in the daemon's configuration.
    Denied => "Add the user or the control plane to the daemon's configuration, or give the job's own \
    `secret`.",
    /// A limit of the connection, the job, the user or the daemon is reached.
    Limit => "Release something first, or raise the limit that the message names.",
    /// `register` came without a file descriptor.
    MissingFd => "Send it with the message.",
    /// The command takes no file descriptor. It was closed, and the command not carried out.
    UnexpectedFd => "Send none.",
    /// The registered file is no memfd, not sealed, too short, not writable, not allocated, or was registered
    /// before.
    BadRegion => "Make the file as `register` requires it.",
    /// No such region on this connection.
    UnknownRegion => "Register it on this connection.",
    /// Outstanding operations use the region.
    RegionBusy => "Wait for them.",
    /// No such job on this connection.
    UnknownJob => "Open it, or attach to it, on this connection.",
    /// Operations of the job are outstanding.
    JobBusy => "Wait for them.",
    /// No such operation on this connection, or its outcome is no longer stored.
    UnknownOp => "Wait for operations before 1,024 more have ended.",
    /// Offset and count do not lie within the region, or input and output overlap in part.
    OutOfRange => "Correct the range.",
    /// An offset is not a multiple of the element's size, or of a completion word's 8 bytes.
    Misaligned => "Align it.",
    /// The range overlaps one that an outstanding operation uses.
    RangeBusy => "Wait for that operation.",
    /// Not implemented, or not in this backend.
    Unsupported => "The message names what is supported.",
    /// The job is open on this daemon already, or the rank on another.
    RankTaken => "`attach`, or close the job first.",
    /// Not all ranks joined in time; `ranks` names the missing.
    RanksMissing => "Start them.",
    /// The coordinator refused: the secret, parameters that differ from the other ranks', no free slots, or
    /// no parameter host.
    Refused => "The message says which.",
    /// The aggregator's control plane or data plane, or the path to it, does not answer.
    Unreachable => "Look whether `sumac-agg serve` runs, at the route, and at firewalls.",
    /// Packets do not reach the aggregator or do not return, or its answer contradicts the job (MTU, program,
    /// job).
    Handshake => "`sumac doctor` here, `sumac-agg status` there.",
    /// The host's data path (program, socket, interface) could not be set up.
    Datapath => "`sumac doctor`, and the daemon's log.",
    /// The job has ended on all workers; `ranks` names the worker at fault, if known.
    JobFailed => "Open it again, on all workers.",
    /// The workers' operations differ, and the job has ended. The message names both sides, `ranks` the
    /// workers that differ.
    Mismatch => "Submit the same operations in the same order, or open the job in `order` `\"name\"`.",
    /// This worker cancelled the operation, and the job has ended; or it withdrew the `open`.
    Cancelled => "Open the job again, on all workers.",
    /// A value is out of the wire format's range, or not finite; `tensor` and `index` name it.
    Saturated => "Correct the value. `scale` `\"block\"` has no range, and `not_finite` `\"carry\"` carries \
    NaN.",
    /// A `wait` timed out; the operation continues.
    Timeout => "Wait again.",
    /// The daemon is stopping.
    ShuttingDown => "Connect again later.",
    /// A fault of the daemon.
    Internal => "Report it.",
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
