//! The invariants of a scenario that has ended, and its counts.

use sumac_wire::Reason;

use super::{Running, Simulation};
use crate::{
    scenario::{Fault, JobPlan, Shape},
    totals::Totals,
};

/// Reasons for which no honest packet is refused, whatever the network does.
const NEVER: [Reason; 10] = [
    Reason::BadLength,
    Reason::BadVersion,
    Reason::BadType,
    Reason::BadFormat,
    Reason::BadToken,
    Reason::WrongEpoch,
    Reason::WrongWorker,
    Reason::WrongSource,
    Reason::WrongSlot,
    Reason::Internal,
];
/// The same at aggregators of static jobs alone.
const NEVER_ALONE: [Reason; 5] =
    [Reason::UnknownJob, Reason::WrongElements, Reason::WrongPlace, Reason::Mismatch, Reason::BadChecksum];

impl Simulation<'_> {
    pub(super) fn check_worker(&self, running: &Running<'_>, rank: usize, totals: &mut Totals) {
        let Running { plan, workers, newcomer, truth, .. } = running;
        let (newcomer, truth) = (newcomer.borrow(), truth.borrow());
        let newcomer = newcomer.as_ref().filter(|newcomer| newcomer.rank == rank);
        let worker = &self.world.workers[newcomer.map_or(workers[rank], |newcomer| newcomer.id)];
        let what = format!("job {}, rank {rank}", plan.params.job);
        assert_eq!(worker.undeliverable, 0, "{what}");
        for (lane, engine) in worker.engines.iter().enumerate() {
            let (stats, what) = (engine.stats(), format!("{what}, lane {lane}"));
            assert!(engine.is_idle() && stats.in_flight == 0, "{what}");
            let running = plan.of_lane(lane).filter(|tensor| truth.runs[*tensor]);
            let chunks = plan.stream(plan.first_chunk, running.map(|tensor| &plan.tensors[tensor]));
            let skipped = newcomer.map_or(0, |newcomer| u64::from(newcomer.resume[lane]));
            totals.replaced += u64::from(0 < skipped && skipped < chunks);
            let chunks = chunks - skipped;
            assert_eq!((stats.chunks_sent, stats.results), (chunks, chunks), "{what}");
            for reason in self.never() {
                assert_eq!(stats.frames.get(reason), 0, "{what}: {}", reason.name());
            }
        }
        let counted: u64 = worker.engines.iter().map(|engine| engine.stats().frames.total()).sum();
        assert_eq!(counted, worker.received, "{what}: frames");
        let sum = if plan.is_dynamic() { &mut totals.dynamic } else { &mut totals.fixed };
        sum.merge(&worker.stats());
    }

    /// Checks each lane of a static job, and that every contribution was added once.
    pub(super) fn check_static(&self, running: &Running<'_>, totals: &mut Totals) {
        let Running { plan, workers, truth, .. } = running;
        let (truth, observed) = (truth.borrow(), self.witness.0.borrow());
        let (mut chunks, world) = (0, workers.len());
        let engines = || workers.iter().flat_map(|id| &self.world.workers[*id].engines);
        // A header waits for values that are sent after it, and a chunk whose zeros are wanted takes a round
        // trip more. Both look as if something was lost.
        let empty: u64 = engines().map(|engine| engine.stats().chunks_empty).sum();
        for (rank, id) in workers.iter().enumerate() {
            for (lane, engine) in self.world.workers[*id].engines.iter().enumerate() {
                let (stats, what) = (engine.stats(), format!("rank {rank}, lane {lane}"));
                let tensors = || plan.of_lane(lane).filter(|at| truth.runs[*at]).map(|at| &plan.tensors[at]);
                let given: usize = tensors().map(|tensor| tensor.parts(rank, world).0.len()).sum();
                let taken: usize = tensors().map(|tensor| tensor.parts(rank, world).1.len()).sum();
                chunks += plan.stream(plan.first_chunk, tensors());
                assert_eq!(stats.completions.count(), stats.results, "{what}");
                assert_eq!(stats.elements_received, taken as u64, "{what}");
                assert!(plan.stealing || stats.steals == 0, "{what}");
                if empty > 0 {
                    continue;
                }
                if self.scenario.is_perfect() {
                    assert_eq!((stats.questions, stats.resent), (0, 0), "{what}: needless");
                    assert_eq!((stats.elements_sent, stats.frames.dropped()), (given as u64, 0), "{what}");
                }
                if self.scenario.has_perfect_network() {
                    // Idle intervals and the end of the stream allow probes. Few are caused by
                    // reordering: late workers may send in another order. An exponent chunk that a
                    // late worker holds up is sent again once before.
                    let idle = observed.probes.get(&(*id, lane)).map_or(0, |allowed| allowed.probes);
                    let allowed = idle + stats.exponent_chunks + stats.tail_probes;
                    assert!(stats.resent <= stats.tail_probes, "{what}: nothing was missing");
                    totals.needless += stats.questions;
                    totals.overtaken += stats.questions.saturating_sub(allowed);
                    totals.lossless += stats.chunks_sent;
                }
            }
        }
        // Each rack contributes its part at the root.
        let of_racks = chunks / world as u64 * running.job.topology.racks.len() as u64;
        observed.ledgers[&plan.params.job].close(chunks + of_racks);
    }

    /// Reasons for which no packet of this scenario is refused. Where a job continues under another
    /// epoch, some are late.
    fn never(&self) -> impl Iterator<Item = Reason> + use<> {
        let is_renewed = self.scenario.jobs.iter().any(|job| job.replaced.is_some());
        let has_new_epoch = is_renewed || self.scenario.restart.is_some();
        let is_late = move |reason: Reason| match reason {
            Reason::WrongEpoch => has_new_epoch,
            Reason::WrongSource => is_renewed,
            _ => false,
        };
        NEVER.into_iter().filter(move |reason| !is_late(*reason))
    }

    pub(super) fn totals(&self) -> Totals {
        let scenario = self.scenario;
        let mut totals = Totals {
            scenarios: 1,
            two_levels: u64::from(matches!(scenario.shape, Shape::Racks(_))),
            without_aggregator: u64::from(scenario.shape == Shape::Nothing),
            mixed: u64::from(!scenario.jobs.iter().all(JobPlan::is_dynamic)),
            links: self.world.network.totals(),
            orphans: u64::from(scenario.orphans),
            forwarded_again: self.witness.0.borrow().forwarded_again,
            ..Totals::default()
        };
        for fault in &scenario.aggregator_faults {
            match fault {
                Fault::Restart { .. } => totals.restarts += 1,
                Fault::Death { .. } => totals.deaths += 1,
                Fault::Cut { .. } => totals.cuts += 1,
                Fault::Outage { .. } => {}
            }
        }
        self.check_aggregators(&mut totals);
        self.check_parameter_hosts(&mut totals);
        totals
    }

    fn check_aggregators(&self, totals: &mut Totals) {
        let is_alone = self.scenario.jobs.iter().all(|job| !job.is_dynamic());
        // A part that the root answered by another path, or a packet from before the other workers moved on.
        let reorders = self.scenario.faults.reordering > 0.0;
        let alone = NEVER_ALONE.into_iter().chain((!reorders).then_some(Reason::OutOfTurn));
        let never: Vec<Reason> = self.never().chain(alone.filter(|_| is_alone)).collect();
        for node in &self.aggregators {
            let aggregator = self.world.nodes[*node].aggregator.as_ref().unwrap();
            totals.add_aggregator(aggregator);
            for reason in &never {
                assert_eq!(aggregator.counter(*reason), 0, "aggregator at node {node}: {}", reason.name());
            }
        }
    }

    fn check_parameter_hosts(&self, totals: &mut Totals) {
        for node in &self.parameters {
            let parameter = self.world.nodes[*node].parameter.as_ref().unwrap();
            let (stats, what) = (parameter.host.stats(), format!("parameter host at node {node}"));
            assert_eq!(stats.counters.iter().sum::<u64>(), parameter.received, "{what}: frames");
            for reason in self.never() {
                assert_eq!(stats.counter(reason), 0, "{what}: {}", reason.name());
            }
            for job in &stats.jobs {
                totals.raw += job.raw;
                totals.direct += u64::from(job.direct);
                totals.partial_sums += job.partial_sums;
                totals.full_sums += job.full_sums;
                totals.replies += job.replies;
            }
        }
    }
}
