//! The jobs that keep the backend as it is, and the reason for UDP where `auto` would rather have AF_XDP.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sumac_api::{Code, Failure};
use tokio::sync::{OwnedRwLockReadGuard, RwLock, RwLockWriteGuard};

use super::setup::BackendError;

/// The reason for which `auto` has chosen UDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fallback {
    pub(super) reason: String,
    /// Whether what is missing may come while the daemon runs.
    pub(super) may_end: bool,
}

impl Fallback {
    pub(super) fn because(error: &BackendError) -> Fallback {
        Fallback { reason: error.to_string(), may_end: matches!(error, BackendError::NotYet(_)) }
    }
}

/// While it is held, the backend stays: a job has its address and its threads.
pub(crate) type InUse = OwnedRwLockReadGuard<()>;

/// The jobs that keep the backend as it is.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// Held while the choice is made: two of them would open the same queues.
    pub(super) choice: Mutex<()>,
    pub(super) lock: Arc<RwLock<()>>,
    /// Of this host as a parameter host, by their number.
    hosted: Mutex<HashMap<u16, InUse>>,
}

impl Users {
    fn hosted(&self) -> MutexGuard<'_, HashMap<u16, InUse>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn host(&self, job: u16) -> Result<(), Failure> {
        let in_use = self.lock.clone().try_read_owned().map_err(|_| {
            Failure::new(Code::Unreachable, "the parameter host is changing from UDP to AF_XDP")
                .hint("open the job again")
        })?;
        self.hosted().insert(job, in_use);
        Ok(())
    }

    pub(super) fn unhost(&self, job: u16) {
        self.hosted().remove(&job);
    }

    /// `None` while there are jobs.
    pub(super) fn none(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.lock.try_write().ok()
    }
}
