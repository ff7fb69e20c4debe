//! A worker's parameters of a direct job.

use serde::{Deserialize, Serialize};
use sumac_job::limits::{ACKNOWLEDGED_EVERY, MAX_WINDOW};

use crate::error::ParamError;

/// The direct mode's part of a lane's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectParams {
    /// Packets in flight to one peer at most; what its receive queue can hold.
    pub window: u32,
    /// The rate at which flows start, in bits per second: the link's.
    pub line_rate: u64,
}

impl DirectParams {
    /// These packets in flight to one peer, on a link of 100 Gbit/s.
    pub fn new(window: u32) -> DirectParams {
        DirectParams { window, line_rate: 100_000_000_000 }
    }

    pub(crate) fn check(&self) -> Result<(), ParamError> {
        let DirectParams { window, .. } = *self;
        if (ACKNOWLEDGED_EVERY..=MAX_WINDOW).contains(&window) {
            Ok(())
        } else {
            Err(ParamError::DirectWindow { window })
        }
    }
}
