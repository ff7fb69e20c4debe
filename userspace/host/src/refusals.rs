//! The failures of commands that several of them share.

use sumac_api::{Code, Failure};

pub(crate) fn unknown_job(handle: u64) -> Failure {
    Failure::new(Code::UnknownJob, format!("this connection has no open job {handle}"))
        .hint("use the handle from the reply to open")
}

pub(crate) fn unknown_region(handle: u64) -> Failure {
    Failure::new(Code::UnknownRegion, format!("this connection has no region {handle}"))
        .hint("use the handle from the reply to register")
}

pub(crate) fn limit(what: &str, most: u32, hint: &str) -> Failure {
    Failure::new(Code::Limit, format!("this connection has {most} {what}, the most it may have")).hint(hint)
}

/// The failure of a command whose connection has ended; nobody receives it.
pub(crate) fn gone() -> Failure {
    Failure::new(Code::Internal, "the connection has ended")
}
