//! Reports of members to the coordinator, and events that all members of a job receive.

use serde::{Deserialize, Serialize};
use sumac_job::PathMeasure;
use sumac_job::{OperationId, ResumePoint};

/// Longest name of an operation, in bytes.
pub const OPERATION_NAME_LEN: usize = 256;
/// Longest text of an operation or fault, in bytes; more is cut off.
pub const TEXT_LEN: usize = 1024;
/// Most operations of an [`OperationReport`]. Workers that differ later than these are told only that they
/// differ.
pub const REPORTED_OPERATIONS: usize = 1024;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Post {
    Measure(PathMeasure),
    /// It is ready for an operation, in a job that is ordered by name.
    Announce(Announcement),
    Fault(Fault),
    /// The position at which a worker that replaces another continues the stream of operations, under this
    /// epoch.
    ResumePoint {
        epoch: u16,
        point: ResumePoint,
    },
    /// Its oldest operation has not ended for a second.
    Stalled(ReportedOperation),
    /// It has had no result for a second, and this is its oldest operation; `None`: a result came, or the
    /// operation has ended.
    Idle(Option<ReportedOperation>),
    /// Its operations that have not ended, since the workers' operations differ.
    Operations(OperationReport),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The operation of this name is the next.
    Released(String),
    Fault {
        rank: u16,
        fault: Fault,
    },
    ResumePoint {
        epoch: u16,
        point: ResumePoint,
    },
    /// The workers' operations differ: each member is to report its own.
    ReportOperations,
    /// An operation waits for these ranks.
    Waiting {
        message: String,
        ranks: Vec<u16>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Its name: 1 to [`OPERATION_NAME_LEN`] bytes. May come again once it was released.
    pub name: String,
    /// Equal on all workers if and only if they mean the same.
    pub signature: u32,
    /// The operation for people: at most [`TEXT_LEN`] bytes.
    pub description: String,
    /// Of those that are released together, the higher comes first.
    pub priority: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub operation: OperationId,
    /// The rank of the worker that has the value; none: the worker's first.
    #[serde(default)]
    pub rank: Option<u16>,
    /// The first such element, counted from its tensor's start.
    pub index: Option<u64>,
    /// The reason: at most [`TEXT_LEN`] bytes.
    pub problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedOperation {
    pub operation: OperationId,
    pub signature: u32,
    /// The operation for people, with its number: at most [`TEXT_LEN`] bytes.
    pub text: String,
}

/// The operations of a worker that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationReport {
    /// At most [`REPORTED_OPERATIONS`], in the order of their numbers.
    pub operations: Vec<ReportedOperation>,
    /// The lane and chunk at which its data path noticed the difference.
    pub noticed_at: Option<(u16, u32)>,
    pub noticed: Option<ReportedOperation>,
}

impl Event {
    /// Its size in memory and, not much less, in a message.
    pub(crate) fn bytes(&self) -> usize {
        const FIXED: usize = 64;
        FIXED
            + match self {
                Event::Released(name) => name.len(),
                Event::Fault { fault, .. } => fault.problem.len(),
                Event::ResumePoint { point, .. } => 12 * (point.next.len() + point.loads.len()),
                Event::ReportOperations => 0,
                Event::Waiting { message, ranks } => message.len() + 2 * ranks.len(),
            }
    }
}

/// Cuts a text at a character's border.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let end = (0..=text.len().min(most)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A peer's text, fit for logs and terminals: cut at `most` bytes, control characters become spaces.
pub(crate) fn printable(text: &str, most: usize) -> String {
    shortened(text, most).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_write_no_lines_into_the_log() {
        assert_eq!(printable("a\nWARN \x1b[2Jäb\u{9b}", 13), "a WARN  [2Jä");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("abc", 5), "abc");
        assert_eq!(shortened("aäb", 2), "a");
        assert_eq!(shortened("aäb", 3), "aä");
        assert_eq!(shortened("ä", 0), "");
    }
}
