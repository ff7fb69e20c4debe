//! The errors of BFRuntime's calls: one of each update, in the details of the call's status.

use std::error::Error as _;

use prost::Message as _;
use tonic::{Code, Status};

use crate::{
    proto::{bfrt_proto::Error, google::rpc},
    target::{SwitchError, Update},
};

/// Returns the first update of a call that was refused; none: the call failed as a whole.
pub fn first_refused(status: &Status) -> Option<(usize, Error)> {
    let details = rpc::Status::decode(status.details()).ok()?.details;
    let errors = details.iter().map(|detail| Error::decode(detail.value.as_slice()).unwrap_or_default());
    errors.enumerate().find(|(_, error)| error.canonical_code != 0)
}

pub fn refused(doing: &str, error: &Error) -> SwitchError {
    SwitchError::Refused { doing: doing.to_owned(), what: what(error) }
}

/// Returns the error of an update.
pub fn refused_update(update: &Update, error: &Error) -> SwitchError {
    if Code::from_i32(error.canonical_code) != Code::ResourceExhausted {
        return refused(&update.to_string(), error);
    }
    let table = match update {
        Update::Entry(_, entry) => entry.table,
        Update::Group(..) => "multicast groups",
    };
    SwitchError::TableFull { table: table.to_owned(), what: what(error) }
}

fn what(error: &Error) -> String {
    format!("{} ({:?})", error.message, Code::from_i32(error.canonical_code))
}

/// Returns a status's code and message, with the errors that led to it.
pub fn text(status: &Status) -> String {
    let cause = status.source().map(|cause| format!(": {}", chain(cause))).unwrap_or_default();
    match status.message() {
        "" => format!("{:?}{cause}", status.code()),
        message => format!("{message} ({:?}{cause})", status.code()),
    }
}

/// Returns an error's message, with those of the errors that led to it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
