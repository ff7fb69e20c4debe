//! The dynamic mode (ATP): jobs share all slots of an aggregator by hashing, and a parameter host behind it completes what
//! the slots cannot.
//!
//! A chunk is sent when it is less than a window ahead of the first that has no result, and when congestion lets it. What is
//! lost is sent again, past the slots: there are no questions, since slots forget. A chunk whose scale nobody knows yet,
//! or whose sum overflowed, goes as raw floats, which only the parameter host adds.
//!
//! | module | its one concern |
//! | --- | --- |
//! | `params` | what a worker must know of the job |
//! | `congestion` | how many chunks may be in flight |
//! | `places` | which slot a chunk takes |
//! | `way` | by the aggregator, or straight to the parameter host |
//! | `receive`, `transmit` | the ways in and out |

mod congestion;
mod params;
mod places;
mod receive;
mod transmit;
mod way;

use std::ops::Range;

use sumac_wire::{
    Header,
    header::exponent::{NONE, UNKNOWN},
};

pub(crate) use params::DYNAMIC_ELEMENTS;
pub use params::{DynamicParams, MAX_WINDOW, MIN_WINDOW};

use self::{congestion::Congestion, places::Places, way::Way};
use crate::{
    chunk::{Form, Numbers},
    engine::{Core, Phase},
    error::{JobError, ParamError},
    handshake::Verdict,
    lane::shard_of,
    operation::Operation,
    params::JobParams,
    peer::{PeerId, PeerTable},
    placement::StaticPool,
    silence::PROBES,
    slots::{Slot, Slots, State},
    time::Time,
    timer::Expiry,
};

/// Probes that go straight to the parameter host have numbers from here on, those by the aggregator below: reports tell by
/// them which way is there.
const HOST_PROBES: u32 = 1 << 31;

/// What is particular to a lane of a dynamic job.
///
/// Its chunks in flight are kept as the static mode keeps slots: a ring of the window, where each place goes on to the
/// chunk one window later.
pub(crate) struct Dynamic {
    params: DynamicParams,
    /// The parameter host of the lane's shard.
    host: PeerId,
    /// The aggregator, or the parameter host where there is none.
    aggregator: PeerId,
    congestion: Congestion,
    places: Places,
    way: Way,
    /// Whether the parameter host has answered a probe as long as a chunk.
    host_answered: bool,
    /// The first chunk without a result.
    base: u64,
    /// The first chunk that was never sent.
    next: u64,
    /// The number of the operation that the latest chunk was of.
    near: u64,
    /// In the chunks before this one a newcomer does not know what the others do, of exponents and of slots that moved: they pass
    /// all slots, and nothing is learnt from their results.
    settled_from: u64,
    /// The first chunks sent after nothing was in flight. Who waited for this worker meanwhile has sent those
    /// again, past the slots ([`Dynamic::probe_silence`]): then they are missing here, and the network is not to blame.
    first_of_burst: Range<u64>,
    /// Whether a result came that was marked on its last way, which only this worker knows. The next packet tells of it, so that its
    /// result tells all workers; also after a pause, since the window is still the one that was too large.
    echoes: bool,
}

impl Dynamic {
    /// Later results that are a sign of loss (ATP section 3.7).
    pub const LATER_RESULTS: u32 = 3;

    /// The mode of a lane whose stream begins with chunk `first`, and the ring of what it has in flight.
    pub fn new(
        params: DynamicParams,
        job: &JobParams,
        peers: &PeerTable,
        first: u64,
    ) -> Result<(Dynamic, Slots), ParamError> {
        let ring = Slots::new(StaticPool::new(params.window, 0), first);
        let host = peers.parameter_host(shard_of(job.lane, job.shards));
        let host = host.ok_or(ParamError::NoPeer { role: "parameter host" })?;
        let aggregator = peers.aggregator().filter(|_| params.slots > 0);
        let dynamic = Dynamic {
            host,
            aggregator: aggregator.unwrap_or(host),
            congestion: Congestion::new(params.initial_window, params.window, params.congestion),
            places: Places::new(job.job, job.lane, &params),
            way: Way::new(aggregator.is_some()),
            host_answered: false,
            base: first,
            next: first,
            near: 0,
            settled_from: 0,
            first_of_burst: 0..0,
            echoes: false,
            params,
        };
        Ok((dynamic, ring))
    }

    /// The stream begins where the worker died whose place this one takes.
    pub fn take_over(&mut self) {
        // Nobody was further than a window ahead of the first chunk that is not summed.
        self.settled_from = self.base + u64::from(self.params.window);
    }

    /// Goes on under a new incarnation, whose newcomer begins with chunk `resume`.
    pub fn renew(&mut self, core: &mut Core, epoch: u16, resume: u32) {
        core.params.epoch = epoch;
        let ahead = resume.wrapping_sub(self.base as u32);
        // This worker's first chunk without a result is summed already, or it is that one.
        let resume = self.base + u64::from(if ahead <= i32::MAX as u32 { ahead } else { 0 });
        self.settled_from = resume + u64::from(self.params.window);
        self.places = Places::new(core.params.job, core.params.lane, &self.params);
        core.slots.forget_exponents();
        core.slots.lose_all();
        // The newcomer has begun nothing yet.
        core.begun = 0;
        self.refresh_gauges(core);
    }

    /// When [`Dynamic::on_timeout`] wants to be called.
    pub fn poll_timeout(&self, core: &Core) -> Option<Time> {
        let work = match &core.phase {
            Phase::Probing(handshake) if !self.host_answered => handshake.deadline(),
            Phase::Ready => core.timers().next().map(|(at, _)| at),
            Phase::Failed(_) => return None,
            _ => None,
        };
        work.into_iter().chain(self.way.deadline()).min()
    }

    /// Does what is due at `now`.
    pub fn on_timeout(&mut self, core: &mut Core, now: Time) {
        match &mut core.phase {
            Phase::Probing(handshake) if !self.host_answered => {
                let verdict = handshake.on_timeout(now, &core.params);
                self.conclude(core, verdict);
            }
            Phase::Ready => self.expire(core, now),
            _ => {}
        }
        if self.way.on_timeout(now) {
            self.pass_aggregator(core);
        }
        self.settle(core);
    }

    /// The answer to a probe.
    pub fn on_report(&mut self, core: &mut Core, now: Time, header: &Header) {
        if header.seq < HOST_PROBES {
            self.way.on_report(header.elements > 0);
            return self.settle(core);
        }
        self.way.on_host_report();
        if let Phase::Probing(handshake) = &mut core.phase {
            let report = Header { seq: header.seq - HOST_PROBES, ..*header };
            let verdict = handshake.on_report(now, &report, &core.params);
            self.conclude(core, verdict);
        }
        self.settle(core);
    }

    /// What came of the handshake with the parameter host.
    fn conclude(&mut self, core: &mut Core, verdict: Option<Verdict>) {
        match verdict {
            None => {}
            // How long a probe took that was alone on its way says nothing of a window of chunks beside other jobs'.
            Some(Verdict::Ready(_)) => self.host_answered = true,
            Some(Verdict::Failed(JobError::NoReply { probes, waited_ms })) => {
                core.fail(JobError::HostSilent { probes, waited_ms });
            }
            Some(Verdict::Failed(why)) => core.fail(why),
        }
    }

    /// Lets chunks go once it is known who answers.
    fn settle(&mut self, core: &mut Core) {
        if matches!(core.phase, Phase::Probing(_)) && self.host_answered && self.way.is_settled() {
            core.phase = Phase::Ready;
        }
        self.refresh_gauges(core);
    }

    /// The aggregator is gone, and with it the sums in its slots: what is in flight goes again.
    fn pass_aggregator(&mut self, core: &mut Core) {
        core.slots.lose_all();
    }

    /// Queues what has expired for sending.
    fn expire(&mut self, core: &mut Core, now: Time) {
        while let Some((_, expiry)) = core.timers().next().filter(|(at, _)| *at <= now) {
            match expiry {
                Expiry::Chunk(slot) => {
                    let seq = core.slots.get(slot).seq;
                    core.expire_chunk(slot);
                    self.lost(core, seq);
                }
                Expiry::Path => {
                    core.silence.deepen(now);
                    self.probe_silence(core);
                    if self.way.ask(now) {
                        self.pass_aggregator(core);
                    }
                }
            }
        }
    }

    /// Nothing has come back for long. Mostly a worker is late, and each chunk that is sent again now is one that no slot will
    /// complete: so only the first ones go, which everybody waits for if they were lost.
    fn probe_silence(&mut self, core: &mut Core) {
        let slots = (self.base..self.base + u64::from(self.params.window)).map(|seq| self.ring(seq));
        let mut flying = slots.filter(|slot| core.slots.get(*slot).state == State::Flying);
        let first: [Option<usize>; PROBES] = std::array::from_fn(|_| flying.next());
        drop(flying);
        first.into_iter().flatten().for_each(|slot| core.expire_chunk(slot));
    }

    /// This chunk's packet, or its result, was lost.
    fn lost(&mut self, core: &mut Core, seq: u64) {
        if !self.first_of_burst.contains(&seq) {
            self.congested(core, seq);
        }
    }

    /// The network was congested when this chunk or its result was on its way. Says whether the window was halved.
    fn congested(&mut self, core: &mut Core, seq: u64) -> bool {
        let is_halved = self.congestion.on_congestion(seq, self.base, self.next);
        core.stats.halvings += u64::from(is_halved);
        is_halved
    }

    /// The place of a chunk in the ring.
    fn ring(&self, seq: u64) -> usize {
        seq as usize & (self.params.window as usize - 1)
    }

    fn refresh_gauges(&self, core: &mut Core) {
        core.refresh_gauges();
        core.stats.cwnd = u64::from(self.congestion.window());
        core.stats.direct = u64::from(self.way.is_settled() && self.way.is_direct());
    }
}

/// How a chunk's values travel: as floats where nobody knows the others' exponents, or they have been asked for.
fn form(numbers: &Numbers, operation: &Operation, entry: &Slot) -> Form {
    match numbers.needs_exponent(operation) {
        _ if entry.raw => Form::Floats,
        true if entry.exponent == UNKNOWN => Form::Floats,
        true => Form::Scaled(entry.exponent),
        false => Form::Scaled(NONE),
    }
}
