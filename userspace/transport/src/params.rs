//! What must be known of a job before its first packet, and what may be tuned.

use std::time::Duration;

use sumac_wire::{MAX_ELEMENTS, MAX_WORKERS};

use crate::error::ParamError;

/// Most slots that one engine keeps in flight.
pub const MAX_SLOTS: u32 = 1 << 16;

/// A job as the control plane hands it out; the same on all workers but for `rank`.
#[derive(Clone, Debug, PartialEq)]
pub struct JobParams {
    /// The job's number on its aggregator, from 1.
    pub job: u16,
    /// The job's incarnation; packets of another one are dropped.
    pub epoch: u16,
    /// The job's secret number, in every packet.
    pub token: u64,
    /// This worker, from 0.
    pub rank: u16,
    /// How many workers, 1 to 32.
    pub world: u16,
    /// Slots of the job, a power of two: the window, in chunks (SwitchML appendix C).
    pub slots: u32,
    /// Elements in a chunk, 1 to 2,224.
    pub elements: u16,
    /// What a float is multiplied by before it is rounded to an integer; results are multiplied by
    /// `1.0 / scale`. A power of two loses nothing.
    pub scale: f32,
    /// Chunks go to UDP port `base + slot % shards`.
    pub shards: u16,
}

impl JobParams {
    /// Refuses what no aggregator could have given out.
    pub fn check(&self) -> Result<(), ParamError> {
        if self.job == 0 {
            return Err(ParamError::Job);
        }
        if self.world == 0 || usize::from(self.world) > MAX_WORKERS {
            return Err(ParamError::World { world: self.world });
        }
        if self.rank >= self.world {
            return Err(ParamError::Rank { rank: self.rank, world: self.world });
        }
        if !self.slots.is_power_of_two() || self.slots > MAX_SLOTS {
            return Err(ParamError::Slots { slots: self.slots });
        }
        if self.elements == 0 || usize::from(self.elements) > MAX_ELEMENTS {
            return Err(ParamError::Elements { elements: self.elements });
        }
        if !(self.scale.is_normal() && self.scale > 0.0 && (1.0 / self.scale).is_normal()) {
            return Err(ParamError::Scale { scale: self.scale });
        }
        if self.shards == 0 || u32::from(self.shards) > self.slots {
            return Err(ParamError::Shards { shards: self.shards, slots: self.slots });
        }
        Ok(())
    }
}

/// What may differ between workers and has a default that fits a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The retransmission timeout before any round trip was measured.
    pub initial_rto: Duration,
    /// How far the timeout stays above the smoothed round trip at least: a host's scheduling delays
    /// look like losses below it.
    pub min_rto: Duration,
    /// The longest timeout, however often it was backed off.
    pub max_rto: Duration,
    /// Pause before the second probe; doubles with each further one, up to `max_rto`.
    pub probe_interval: Duration,
    /// How long the aggregator may leave probes unanswered before the job fails.
    pub probe_timeout: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            initial_rto: Duration::from_millis(20),
            min_rto: Duration::from_millis(2),
            max_rto: Duration::from_millis(200),
            probe_interval: Duration::from_millis(20),
            probe_timeout: Duration::from_secs(3),
        }
    }
}

impl Tuning {
    /// Refuses zero and contradictory times.
    pub fn check(&self) -> Result<(), ParamError> {
        let ordered = !self.min_rto.is_zero()
            && self.min_rto <= self.initial_rto
            && self.initial_rto <= self.max_rto
            && !self.probe_interval.is_zero()
            && self.probe_interval < self.probe_timeout;
        if ordered { Ok(()) } else { Err(ParamError::Tuning) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> JobParams {
        JobParams {
            job: 1,
            epoch: 0,
            token: 0,
            rank: 31,
            world: 32,
            slots: 64,
            elements: 832,
            scale: 1e8,
            shards: 64,
        }
    }

    #[test]
    fn jobs_are_checked() {
        assert_eq!(good().check(), Ok(()));
        type Change = fn(&mut JobParams);
        let table: [(Change, ParamError); 11] = [
            (|p| p.job = 0, ParamError::Job),
            (|p| p.world = 0, ParamError::World { world: 0 }),
            (|p| p.world = 33, ParamError::World { world: 33 }),
            (|p| p.rank = 32, ParamError::Rank { rank: 32, world: 32 }),
            (|p| p.slots = 0, ParamError::Slots { slots: 0 }),
            (|p| p.slots = 65, ParamError::Slots { slots: 65 }),
            (|p| p.slots = 1 << 17, ParamError::Slots { slots: 1 << 17 }),
            (|p| p.elements = 2225, ParamError::Elements { elements: 2225 }),
            (|p| p.scale = -1.0, ParamError::Scale { scale: -1.0 }),
            (|p| p.scale = 1e-39, ParamError::Scale { scale: 1e-39 }),
            (|p| p.shards = 65, ParamError::Shards { shards: 65, slots: 64 }),
        ];
        for (change, error) in table {
            let mut params = good();
            change(&mut params);
            assert_eq!(params.check(), Err(error.clone()), "{error}");
        }
        assert!(JobParams { scale: f32::NAN, ..good() }.check().is_err());
        assert!(JobParams { scale: f32::INFINITY, ..good() }.check().is_err());
    }

    #[test]
    fn times_are_checked() {
        assert_eq!(Tuning::default().check(), Ok(()));
        let zero = Tuning { min_rto: Duration::ZERO, ..Tuning::default() };
        assert_eq!(zero.check(), Err(ParamError::Tuning));
        let inverted = Tuning { max_rto: Duration::from_millis(1), ..Tuning::default() };
        assert_eq!(inverted.check(), Err(ParamError::Tuning));
    }
}
