//! Intentional drops at the eBPF aggregator.

use std::ops::Range;

use sumac_agg_layout::{Drops, State, state_flag};

use crate::{
    aggregator::Aggregator,
    tables::{OpenError, TableError, Tables},
};

impl Aggregator {
    /// Sets the intentional drops of jobs, present or future.
    pub fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), OpenError> {
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        let most = tables.numbers();
        if jobs.start >= most {
            return Err(OpenError::NoNumber { job: jobs.start, most: most - 1 });
        }
        for job in jobs.start..jobs.end.min(most) {
            tables.drops.set(job.into(), &drops)?;
        }
        Ok(flag(&mut tables)?)
    }
}

/// Sets the flag by which the programs look drops up.
fn flag(tables: &mut Tables) -> Result<(), TableError> {
    let mut any = false;
    for job in 1..tables.numbers() {
        any |= tables.drops.get(job.into())? != Drops::default();
    }
    let state = tables.state.get(0)?;
    let flags = if any { state.flags | state_flag::DROPS } else { state.flags & !state_flag::DROPS };
    tables.state.set(0, &State { flags, ..state })
}
