//! The operations of a job's ranks that have no progress.

use std::collections::BTreeMap;

use super::time::Time;
use crate::events::{Event, ReportedOperation};

#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// The oldest operation of each rank that has had no result for a second, and the time of its report.
    pub idle: BTreeMap<u16, (ReportedOperation, Time)>,
    /// The last event about it.
    pub told: Option<Event>,
}

impl Standstill {
    /// Time in which the coordinator was held up does not count.
    pub fn excuse(&mut self, now: Time) {
        self.idle.values_mut().for_each(|(_, since)| *since = now);
    }
}
