//! The grant that a worker receives with its membership, and the outcome that it leaves with.

use serde::{Deserialize, Serialize};
use sumac_job::{JobTerms, Placement};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its work is done. The others may go on.
    Done,
    /// It gives up: the job fails on all others with this reason.
    Failed(String),
    /// Its trainer has died: as [`Outcome::Failed`], but that another worker may take its rank in a dynamic
    /// job (ATP appendix A.3).
    Died(String),
}

/// The terms of a job with one worker's own part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    pub terms: JobTerms,
    pub placement: Placement,
}
