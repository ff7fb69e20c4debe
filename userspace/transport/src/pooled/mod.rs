//! The static mode (SwitchML's Algorithm 4): a lane has slots of its own at the aggregator, and each takes chunk after chunk.

mod receive;
mod transmit;

use sumac_wire::Header;

use crate::{
    engine::{Core, Phase},
    error::ParamError,
    handshake::Verdict,
    measure::{PathMeasure, Train},
    params::{JobParams, check_slots},
    peer::{PeerId, PeerTable},
    placement::StaticPool,
    silence::PROBES,
    slots::Slots,
    time::Time,
    timer::{self, Expiry},
};

/// A lane's own slots.
pub(crate) struct Pooled {
    pool: StaticPool,
    /// The stream's first chunk.
    first: u64,
    aggregator: PeerId,
}

impl Pooled {
    /// Later results that are a sign of loss: a question follows, which is cheap.
    pub const LATER_RESULTS: u32 = 2;

    /// The mode of a lane whose stream begins with chunk `first`, and its slots.
    pub fn new(params: &JobParams, peers: &PeerTable, first: u64) -> Result<(Pooled, Slots), ParamError> {
        let pool = StaticPool::new(params.slots, params.lane);
        let aggregator = peers.aggregator().ok_or(ParamError::NoPeer { role: "aggregator" })?;
        Ok((Pooled { pool, first, aggregator }, Slots::new(pool, first)))
    }

    /// Gives the slots that wait for the stream what it has reached; further chunks follow by themselves, since each
    /// slot goes on when its result arrives. `near` is the number of the operation that most of them will find.
    pub fn wake(&self, core: &mut Core, near: u64) {
        while let Some(op) = core.slots.waits_for().and_then(|seq| core.stream.find(seq, near)) {
            core.slots.wake(op);
        }
    }

    /// Sets the number of slots before the first chunk is sent.
    pub fn start(&mut self, core: &mut Core, slots: u32) -> Result<(), ParamError> {
        check_slots(slots)?;
        if core.next_index > 1 {
            return Err(ParamError::Started);
        }
        core.params.slots = slots;
        core.params.measure = false;
        match core.phase {
            Phase::Failed(_) => return Ok(()),
            Phase::Measuring(_) | Phase::Measured(_) => core.phase = Phase::Ready,
            Phase::Probing(_) | Phase::Ready => {}
        }
        self.pool = StaticPool::new(slots, core.params.lane);
        core.slots = Slots::new(self.pool, self.first);
        self.wake(core, 0);
        Ok(())
    }

    /// When [`Pooled::on_timeout`] wants to be called.
    pub fn poll_timeout(&self, core: &Core) -> Option<Time> {
        match &core.phase {
            Phase::Probing(handshake) => handshake.deadline(),
            Phase::Measuring(train) => Some(train.deadline()),
            Phase::Ready => core.timers().next().map(|(at, _)| at),
            Phase::Measured(_) | Phase::Failed(_) => None,
        }
    }

    /// Does what is due at `now`.
    pub fn on_timeout(&mut self, core: &mut Core, now: Time) {
        match &mut core.phase {
            Phase::Probing(handshake) => {
                let verdict = handshake.on_timeout(now, &core.params);
                conclude(core, now, verdict);
            }
            Phase::Measuring(train) => {
                let measure = train.on_timeout(now);
                measured(core, measure);
            }
            Phase::Ready => expire(core, now),
            Phase::Measured(_) | Phase::Failed(_) => {}
        }
    }

    /// The answer to a probe.
    pub fn on_report(&mut self, core: &mut Core, now: Time, header: &Header) {
        match &mut core.phase {
            Phase::Probing(handshake) => {
                let verdict = handshake.on_report(now, header, &core.params);
                conclude(core, now, verdict);
            }
            Phase::Measuring(train) => {
                let measure = train.on_report(now, header.seq);
                measured(core, measure);
            }
            // A late answer to a repeated probe is as good as none.
            Phase::Measured(_) | Phase::Ready | Phase::Failed(_) => {}
        }
    }
}

/// Ends the handshake, one way or the other.
fn conclude(core: &mut Core, now: Time, verdict: Option<Verdict>) {
    match verdict {
        None => {}
        Some(Verdict::Ready(rtt)) => {
            if let Some(rtt) = rtt {
                core.rtt.sample(rtt, 0, core.next_index);
            }
            core.phase = if core.params.measure {
                Phase::Measuring(Train::new(&core.tuning, core.frame_len(), rtt, now))
            } else {
                Phase::Ready
            };
            core.refresh_gauges();
        }
        Some(Verdict::Failed(why)) => core.fail(why),
    }
}

/// Ends the measuring.
fn measured(core: &mut Core, measure: Option<PathMeasure>) {
    if let Some(measure) = measure {
        core.phase = Phase::Measured(measure);
    }
}

/// Queues what has expired for sending.
fn expire(core: &mut Core, now: Time) {
    while let Some((_, expiry)) = core.timers().next().filter(|(at, _)| *at <= now) {
        match expiry {
            Expiry::Chunk(slot) => core.expire_chunk(slot),
            Expiry::Path => {
                core.silence.deepen(now);
                // Nobody is late for one that all workers are at; of the rest, one may be what another worker waits for.
                let sure = timer::oldest(&core.slots).map(|(slot, _)| slot);
                sure.into_iter().for_each(|slot| core.expire_chunk(slot));
                for _ in usize::from(sure.is_some())..PROBES {
                    timer::oldest_of_all(&core.slots).into_iter().for_each(|slot| core.expire_chunk(slot));
                }
            }
        }
    }
}
