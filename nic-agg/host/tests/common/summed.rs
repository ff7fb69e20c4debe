//! A parameter host's state of one chunk.

use sumac_wire::{
    Header, Reason,
    dynamic::host::{Action, ChunkMeta, Job, MAX_RACKS, Outcome},
};

/// The state of one chunk at the parameter host of three workers.
#[derive(Default)]
pub struct Summed {
    meta: ChunkMeta,
    pub values: Vec<i32>,
}

impl Summed {
    /// Accepts a packet from below; returns the outcome, or the reason for which it was refused.
    pub fn take(&mut self, header: &Header, values: &[i32]) -> Result<Outcome, Reason> {
        let mut all = [0; MAX_RACKS];
        all[0] = 0b111;
        match self.meta.absorb(header, Job { all: &all, kept: 32, received: &[] }) {
            Action::Store => self.values = values.to_vec(),
            Action::Add => self.values.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            Action::Ignore(reason) => return Err(reason),
            other => panic!("{other:?}"),
        }
        Ok(self.meta.settle(&all, false))
    }
}
