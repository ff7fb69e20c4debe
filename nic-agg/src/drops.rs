//! Intentional drops at the eBPF aggregator.

use std::ops::Range;

use sumac_agg_layout::{Drops, State, state_flag};
use sumac_wire::MAX_JOBS;

use crate::{
    aggregator::Aggregator,
    tables::{OpenError, TableError, Tables},
};

impl Aggregator {
    /// Sets the intentional drops of jobs, present or future.
    pub fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), OpenError> {
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        for job in jobs {
            tables.drops.set(job.into(), &drops)?;
        }
        Ok(flag(&mut tables)?)
    }
}

/// Sets the flag by which the programs look drops up.
fn flag(tables: &mut Tables) -> Result<(), TableError> {
    let mut any = false;
    for job in 1..MAX_JOBS as u16 {
        any |= tables.drops.get(job.into())? != Drops::default();
    }
    let state = tables.state.get(0)?;
    let flags = if any { state.flags | state_flag::DROPS } else { state.flags & !state_flag::DROPS };
    tables.state.set(0, &State { flags, ..state })
}
