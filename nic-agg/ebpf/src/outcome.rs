//! The outcome of a frame.

use sumac_wire::Reason;

/// The fate of a frame, with its reason.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub reason: Reason,
    pub verdict: u32,
    /// The job that it is counted for; 0: none.
    pub job: u16,
}

impl Outcome {
    pub const fn new(reason: Reason, verdict: u32) -> Outcome {
        Outcome { reason, verdict, job: 0 }
    }
}
