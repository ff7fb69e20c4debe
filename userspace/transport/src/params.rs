//! The parameters of a job's lane, and its tuning.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sumac_job::{
    DType, LONGEST_OUTAGE_S, NonFinitePolicy, Scale, WireFormat,
    limits::{DYNAMIC_ELEMENTS, MAX_SHARDS, MAX_SLOTS, MAX_WORLD},
};
use sumac_wire::{CLASSES, DEFAULT_PATHS, MAX_ELEMENTS, MAX_PATHS, MAX_WORKERS};

use crate::{
    convert::{Arithmetic, Codec},
    direct_mode::DirectParams,
    dynamic_mode::params::DynamicParams,
    error::ParamError,
};

/// One lane of a job; the same on all workers but for the ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobParams {
    /// The job's number on its aggregator, from 1.
    pub job: u16,
    /// The job's epoch; packets of another one are dropped.
    pub epoch: u16,
    pub token: u64,
    /// This worker, from 0.
    pub rank: u16,
    pub world: u16,
    /// Ranks of each worker, whose sum it contributes ([`WorkerBuffer`](crate::local_sum::worker)).
    pub local_world: u16,
    /// This worker's number below its aggregator, from 0: `rank` where there is only one aggregator.
    pub rack_rank: u16,
    /// Workers below the same aggregator, 1 to 32: `world` where there is only one aggregator.
    pub rack_world: u16,
    /// The number of the lane: class times shards plus shard.
    pub lane: u16,
    /// Lane `l` goes to UDP port `base + l % shards`.
    pub shards: u16,
    /// Slots of the lane, a power of two: the window, in chunks (SwitchML appendix C).
    pub slots: u32,
    /// 32-bit words in a chunk, 1 to 2,224.
    pub elements: u16,
    pub wire: WireFormat,
    pub scaling: Scale,
    pub not_finite: NonFinitePolicy,
    /// Whether the engine measures the path, and then waits for the number of slots
    /// ([`Engine::set_slots`](crate::Engine::set_slots)).
    pub measure: bool,
    /// Whether a static job has a congestion window within its slots, in place of all its slots in flight;
    /// the same on all workers. Dynamic jobs: [`DynamicParams::congestion`].
    pub congestion_control: bool,
    /// Whether the aggregator of a static job takes contributions without values
    /// ([`flag::EMPTY`](sumac_wire::header::flag::EMPTY)).
    pub takes_empty: bool,
    /// Source ports that the results of a static job come from ([`sumac_wire::result_paths`]); 1: the
    /// aggregator's own alone.
    pub result_paths: u16,
    /// The time without an answer to the probes of the running job after which it fails. A link that a NIC
    /// negotiates anew, and a data plane that is attached again, are back by then.
    pub longest_outage: Duration,
    /// The parameters of a dynamic job (ATP); it has no `slots` of its own.
    pub dynamic: Option<DynamicParams>,
    /// The parameters of a direct job (MLT), which has no slots and no aggregator.
    pub direct: Option<DirectParams>,
}

impl JobParams {
    /// Worker 0 of a static job in epoch 1, whose workers have one aggregator and one lane. The caller sets
    /// what differs.
    pub fn new(job: u16, world: u16, slots: u32, elements: u16) -> JobParams {
        JobParams {
            job,
            epoch: 1,
            token: 0,
            rank: 0,
            world,
            local_world: 1,
            rack_rank: 0,
            rack_world: world,
            lane: 0,
            shards: 1,
            slots,
            elements,
            wire: WireFormat::Int32,
            scaling: Scale::Block,
            not_finite: NonFinitePolicy::Error,
            measure: false,
            congestion_control: false,
            takes_empty: true,
            result_paths: 1,
            longest_outage: Duration::from_secs(LONGEST_OUTAGE_S.into()),
            dynamic: None,
            direct: None,
        }
    }

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
        if let Some(direct) = &self.direct {
            return direct.check();
        }
        match &self.dynamic {
            None => check_slots(self.slots),
            Some(_) if self.elements > DYNAMIC_ELEMENTS => {
                Err(ParamError::DynamicElements { elements: self.elements })
            }
            Some(_) if self.measure => Err(ParamError::Measure),
            Some(dynamic) => dynamic.check(),
        }
    }

    /// Chunks of an operation's values.
    pub fn chunks(&self, dtype: DType, arithmetic: Arithmetic, count: usize) -> u64 {
        let words = count.div_ceil(self.codec().values_per_word(dtype, arithmetic));
        words.div_ceil(usize::from(self.elements)) as u64
    }

    pub(crate) fn codec(&self) -> Codec {
        let codec = Codec::new(self.world, self.wire, self.scaling).of_ranks(self.local_world);
        // Where a clamped sum would not be marked, none may be clamped.
        let is_marked = self.dynamic.as_ref().is_some_and(|dynamic| !dynamic.headroom);
        if is_marked { codec.clamped_sums() } else { codec }
    }
}

pub(crate) fn check_slots(slots: u32) -> Result<(), ParamError> {
    if slots.is_power_of_two() && slots <= MAX_SLOTS { Ok(()) } else { Err(ParamError::Slots { slots }) }
}

/// Settings with a default that fits a rack. All but the last may differ between workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// The retransmission timeout before the first sample of the round trip.
    pub initial_rto: Duration,
    /// The least margin of the timeout over the smoothed round trip: shorter timeouts take a host's
    /// scheduling delays for losses.
    pub min_rto: Duration,
    /// The same margin for operations that all workers have begun.
    pub min_rto_confirmed: Duration,
    pub max_rto: Duration,
    /// The pause before the second probe of the handshake; it doubles with each further one, up to `max_rto`.
    pub probe_interval: Duration,
    /// The time without an answer to the handshake after which the job fails.
    pub probe_timeout: Duration,
    /// Only timers detect losses, as in SwitchML: the baseline of ATP's figure 10.
    pub timers_only: bool,
    /// The number of paths (UDP source ports) that packets are spread over, 1 to 256.
    pub paths: u16,
    /// The initial congestion window of a static job, in chunks; `None`: ATP's 60,000 bytes, divided over the
    /// shards.
    pub initial_window: Option<u32>,
    /// An experimental setting of the dynamic mode, the same on all workers: chunks take slots one after
    /// another and keep them when they collide (the baseline of ATP's figure 14).
    pub linear_placement: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            initial_rto: Duration::from_millis(20),
            min_rto: Duration::from_millis(2),
            min_rto_confirmed: Duration::from_micros(500),
            max_rto: Duration::from_millis(200),
            probe_interval: Duration::from_millis(20),
            probe_timeout: Duration::from_secs(3),
            timers_only: false,
            paths: DEFAULT_PATHS,
            initial_window: None,
            linear_placement: false,
        }
    }
}

impl Tuning {
    pub fn check(&self) -> Result<(), ParamError> {
        let ordered = !self.min_rto_confirmed.is_zero()
            && self.min_rto_confirmed <= self.min_rto
            && self.min_rto <= self.initial_rto
            && self.initial_rto <= self.max_rto
            && !self.probe_interval.is_zero()
            && self.probe_interval < self.probe_timeout
            && (1..=MAX_PATHS).contains(&self.paths);
        if ordered { Ok(()) } else { Err(ParamError::Tuning) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> JobParams {
        let lane = JobParams { lane: 31, shards: 16, ..JobParams::new(1, 64, 64, 2224) };
        JobParams { rank: 63, rack_rank: 31, rack_world: 32, ..lane }
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
    fn dynamic_jobs_are_checked() {
        let job = || JobParams { slots: 0, elements: 832, dynamic: Some(DynamicParams::new(100)), ..good() };
        assert_eq!(job().check(), Ok(()), "slots need no power of two here");
        assert_eq!(JobParams { wire: WireFormat::Int16, ..job() }.check(), Ok(()));
        type Change = fn(&mut JobParams);
        let table: [(Change, ParamError); 4] = [
            (|p| p.elements = 833, ParamError::DynamicElements { elements: 833 }),
            (|p| p.measure = true, ParamError::Measure),
            (|p| p.world = 0, ParamError::World { world: 0 }),
            (|p| p.dynamic = Some(DynamicParams::new(1).with_window(4)), ParamError::Window { window: 4 }),
        ];
        for (change, error) in table {
            let mut params = job();
            change(&mut params);
            assert_eq!(params.check(), Err(error.clone()), "{error}");
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
    fn a_bfloat16_sum_of_four_has_half_the_chunks() {
        let params = |wire, world| JobParams { wire, ..JobParams::new(1, world, 1, 352) };
        for dynamic in [None, Some(DynamicParams::new(64))] {
            let chunks = |wire, world| {
                let params = JobParams { dynamic: dynamic.clone(), ..params(wire, world) };
                params.chunks(DType::Bfloat16, Arithmetic::Sum, 1 << 20)
            };
            let of_four = WireFormat::ALL.map(|wire| chunks(wire, 4));
            assert_eq!(of_four, [2979, 1490, 1490], "int32, int16, auto");
            assert_eq!(WireFormat::ALL.map(|wire| chunks(wire, 8)), [2979, 1490, 2979]);
        }
    }

    #[test]
    fn times_are_checked() {
        assert_eq!(Tuning::default().check(), Ok(()));
        let zero = Tuning { min_rto_confirmed: Duration::ZERO, ..Tuning::default() };
        assert_eq!(zero.check(), Err(ParamError::Tuning));
        let inverted = Tuning { max_rto: Duration::from_millis(1), ..Tuning::default() };
        assert_eq!(inverted.check(), Err(ParamError::Tuning));
    }
}
