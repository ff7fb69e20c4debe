//! What must be known of a job before its first packet, and what may be tuned.

use std::time::Duration;

pub use sumac_job::NonFinitePolicy;
use sumac_wire::{CLASSES, MAX_ELEMENTS, MAX_LANES, MAX_WORKERS};

use crate::{
    convert::{Arithmetic, Codec, Scale, WireFormat},
    dynamic::DynamicParams,
    error::ParamError,
    loss::MAX_LATER_RESULTS,
    operation::DType,
};

/// Most slots that one engine keeps in flight.
pub const MAX_SLOTS: u32 = 1 << 16;

/// Most shards of a job: each has a lane in every class.
pub const MAX_SHARDS: u16 = MAX_LANES as u16 / CLASSES;
/// Most workers of a job, below two levels of aggregators.
pub const MAX_WORLD: u16 = (MAX_WORKERS * MAX_WORKERS) as u16;

/// One lane of a job as the control plane hands it out; the same on all workers but for the ranks.
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
    /// How many workers, 1 to 1,024.
    pub world: u16,
    /// This worker among those below the same aggregator, from 0: `rank` where there is only one.
    pub rack_rank: u16,
    /// How many workers are below the same aggregator, 1 to 32: `world` where there is only one.
    pub rack_world: u16,
    /// Which of the job's streams this is: class times shards plus shard.
    pub lane: u16,
    /// Lane `l` goes to UDP port `base + l % shards`.
    pub shards: u16,
    /// Slots of the lane, a power of two: the window, in chunks (SwitchML appendix C).
    pub slots: u32,
    /// 32-bit words in a chunk, 1 to 2,224.
    pub elements: u16,
    /// How many bits a float has on the wire.
    pub wire: WireFormat,
    /// What floats are multiplied by before they are rounded to integers.
    pub scaling: Scale,
    /// What becomes of NaN and infinity.
    pub not_finite: NonFinitePolicy,
    /// Whether the engine measures the path and then waits to be told the number of slots
    /// ([`Engine::start`](crate::Engine::start)).
    pub measure: bool,
    /// Of a dynamic job (ATP), what it has in place of slots of its own; `slots` is of no meaning then.
    pub dynamic: Option<DynamicParams>,
}

impl JobParams {
    /// Refuses what no aggregator could have given out.
    pub fn check(&self) -> Result<(), ParamError> {
        let JobParams { rank, world, rack_rank, rack_world, lane, shards, .. } = *self;
        if self.job == 0 {
            return Err(ParamError::Job);
        }
        if world == 0 || world > MAX_WORLD {
            return Err(ParamError::World { world });
        }
        if rank >= world {
            return Err(ParamError::Rank { rank, world });
        }
        if rack_world == 0 || usize::from(rack_world) > MAX_WORKERS || rack_world > world {
            return Err(ParamError::Rack { rack_world, world });
        }
        if rack_rank >= rack_world {
            return Err(ParamError::Rank { rank: rack_rank, world: rack_world });
        }
        if shards == 0 || shards > MAX_SHARDS || lane >= CLASSES * shards {
            return Err(ParamError::Lane { lane, shards });
        }
        if self.elements == 0 || usize::from(self.elements) > MAX_ELEMENTS {
            return Err(ParamError::Elements { elements: self.elements });
        }
        if let Scale::Fixed(scale) = self.scaling
            && !(scale.is_normal() && scale > 0.0 && (1.0 / scale).is_normal())
        {
            return Err(ParamError::Scale { scale });
        }
        match &self.dynamic {
            None => check_slots(self.slots),
            Some(dynamic) => dynamic.check(self),
        }
    }

    /// How many chunks of its lane's stream an operation takes.
    pub fn chunks(&self, dtype: DType, arithmetic: Arithmetic, count: usize) -> u64 {
        let words = count.div_ceil(self.codec().values_per_word(dtype, arithmetic));
        words.div_ceil(usize::from(self.elements)) as u64
    }

    pub(crate) fn codec(&self) -> Codec {
        let codec = Codec::new(self.world, self.wire, self.scaling);
        if self.dynamic.is_some() { codec.clamped_sums() } else { codec }
    }
}

/// Refuses what is no number of slots.
pub(crate) fn check_slots(slots: u32) -> Result<(), ParamError> {
    if slots.is_power_of_two() && slots <= MAX_SLOTS { Ok(()) } else { Err(ParamError::Slots { slots }) }
}

/// What may differ between workers and has a default that fits a rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The retransmission timeout before any round trip was measured.
    pub initial_rto: Duration,
    /// How far the timeout stays above the smoothed round trip at least: a host's scheduling delays
    /// look like losses below it.
    pub min_rto: Duration,
    /// The same where all workers are known to have begun the operation, so that nobody's lateness is waited
    /// for.
    pub min_rto_begun: Duration,
    /// The longest timeout, however often it was backed off.
    pub max_rto: Duration,
    /// Pause before the second probe; doubles with each further one, up to `max_rto`.
    pub probe_interval: Duration,
    /// How long the aggregator, or the parameter host, may leave probes unanswered before the job fails.
    pub probe_timeout: Duration,
    /// How many results of packets that were sent later make a packet count as lost, up to 8; 0: only
    /// its timer does. `None`: 2 in the static mode, where a question follows, and 3 in the dynamic one, where the
    /// packet does.
    pub later_results: Option<u32>,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            initial_rto: Duration::from_millis(20),
            min_rto: Duration::from_millis(2),
            min_rto_begun: Duration::from_micros(500),
            max_rto: Duration::from_millis(200),
            probe_interval: Duration::from_millis(20),
            probe_timeout: Duration::from_secs(3),
            later_results: None,
        }
    }
}

impl Tuning {
    /// Refuses zero and contradictory times, and more later results than are remembered.
    pub fn check(&self) -> Result<(), ParamError> {
        let ordered = !self.min_rto_begun.is_zero()
            && self.min_rto_begun <= self.min_rto
            && self.min_rto <= self.initial_rto
            && self.initial_rto <= self.max_rto
            && !self.probe_interval.is_zero()
            && self.probe_interval < self.probe_timeout
            && self.later_results.is_none_or(|results| results as usize <= MAX_LATER_RESULTS);
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
            rank: 63,
            world: 64,
            rack_rank: 31,
            rack_world: 32,
            lane: 31,
            shards: 16,
            slots: 64,
            elements: 2224,
            wire: WireFormat::Int32,
            scaling: Scale::Block,
            not_finite: NonFinitePolicy::Error,
            measure: false,
            dynamic: None,
        }
    }

    #[test]
    fn jobs_are_checked() {
        assert_eq!(good().check(), Ok(()));
        type Change = fn(&mut JobParams);
        let table: [(Change, ParamError); 18] = [
            (|p| p.job = 0, ParamError::Job),
            (|p| p.world = 0, ParamError::World { world: 0 }),
            (|p| p.world = 1025, ParamError::World { world: 1025 }),
            (|p| p.rank = 64, ParamError::Rank { rank: 64, world: 64 }),
            (|p| p.rack_rank = 32, ParamError::Rank { rank: 32, world: 32 }),
            (|p| p.rack_world = 0, ParamError::Rack { rack_world: 0, world: 64 }),
            (|p| p.rack_world = 33, ParamError::Rack { rack_world: 33, world: 64 }),
            (|p| (p.rank, p.world) = (0, 31), ParamError::Rack { rack_world: 32, world: 31 }),
            (|p| p.slots = 0, ParamError::Slots { slots: 0 }),
            (|p| p.slots = 65, ParamError::Slots { slots: 65 }),
            (|p| p.slots = 1 << 17, ParamError::Slots { slots: 1 << 17 }),
            (|p| p.elements = 2225, ParamError::Elements { elements: 2225 }),
            (|p| p.scaling = Scale::Fixed(-1.0), ParamError::Scale { scale: -1.0 }),
            (|p| p.scaling = Scale::Fixed(1e-39), ParamError::Scale { scale: 1e-39 }),
            (|p| p.shards = 0, ParamError::Lane { lane: 31, shards: 0 }),
            (|p| p.shards = 17, ParamError::Lane { lane: 31, shards: 17 }),
            (|p| p.lane = 32, ParamError::Lane { lane: 32, shards: 16 }),
            (|p| p.shards = 15, ParamError::Lane { lane: 31, shards: 15 }),
        ];
        for (change, error) in table {
            let mut params = good();
            change(&mut params);
            assert_eq!(params.check(), Err(error.clone()), "{error}");
        }
        for scale in [f32::NAN, f32::INFINITY] {
            assert!(JobParams { scaling: Scale::Fixed(scale), ..good() }.check().is_err());
        }
    }

    #[test]
    fn chunks_count_words() {
        let params = JobParams { elements: 8, wire: WireFormat::Int16, ..good() };
        for (dtype, chunks) in [(DType::Float32, 2), (DType::Int32, 3)] {
            assert_eq!(params.chunks(dtype, Arithmetic::Sum, 24), chunks, "{dtype:?}");
            assert_eq!(params.chunks(dtype, Arithmetic::Sum, 0), 0);
        }
    }

    #[test]
    fn times_are_checked() {
        assert_eq!(Tuning::default().check(), Ok(()));
        let zero = Tuning { min_rto_begun: Duration::ZERO, ..Tuning::default() };
        assert_eq!(zero.check(), Err(ParamError::Tuning));
        let inverted = Tuning { max_rto: Duration::from_millis(1), ..Tuning::default() };
        assert_eq!(inverted.check(), Err(ParamError::Tuning));
    }
}
