//! The end of a fragment, as that of its operation is derived from it.

use serde::{Deserialize, Serialize};
use sumac_api::Failure;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FragmentEnd {
    Complete,
    /// Another worker's value could not be sent; that worker can name it.
    PeerFault(Failure),
    /// A sum does not fit; all workers receive the same error.
    SumFault(Failure),
    /// A value of this worker could not be sent, or the failure concerns this worker's operation alone.
    OwnFault(Failure),
    /// The job has ended, and with it all its operations.
    JobEnded,
}

impl FragmentEnd {
    /// Returns the reason of a failure.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            FragmentEnd::Complete => None,
            FragmentEnd::PeerFault(failure)
            | FragmentEnd::SumFault(failure)
            | FragmentEnd::OwnFault(failure) => Some(failure.message.to_string()),
            FragmentEnd::JobEnded => Some("the job has ended".to_owned()),
        }
    }

    /// Orders the ends: an operation ends like its most severe fragment.
    pub(crate) fn severity(&self) -> u8 {
        match self {
            FragmentEnd::Complete => 0,
            FragmentEnd::PeerFault(_) => 1,
            FragmentEnd::SumFault(_) => 2,
            FragmentEnd::OwnFault(_) => 3,
            FragmentEnd::JobEnded => 4,
        }
    }
}
