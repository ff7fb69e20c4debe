//! Direct jobs: tensors go from worker to worker, without an aggregator, exactly or within a loss bound.

use std::time::Duration;
use sumac_client::{MissingValues, Pending, RecvOptions, Reduction, SendOptions, WireFormat};
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Backend, DirectCollective, DirectOptions, SumacOptions};

use sumac_lab::run::{Operation, Report, RunOptions, run};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::{in_turn, with_sumac};
use sumac_tests::{Crew, Trainer, crew, exact};

const COUNT: usize = 60_003;

/// One in a hundred of each, in each direction of every cable.
const FAULTS: Faults =
    Faults { loss: Probability(10_000), duplicate: Probability(10_000), reorder: Probability(10_000) };

fn sumac(backend: Backend, collective: DirectCollective) -> SumacOptions {
    let direct = Some(DirectOptions { collective: Some(collective), ..DirectOptions::default() });
    SumacOptions { backend, direct, ..SumacOptions::default() }
}

/// Results that do not depend on the order of additions, through cables that lose, duplicate and reorder.
fn reductions_are_exact(backend: Backend, collective: DirectCollective) {
    let spec = LabSpec { faults: FAULTS, ..LabSpec::new(3) };
    with_sumac(spec, &sumac(backend, collective), |sumac| {
        let crew = Crew::join(sumac, "direct");
        for seed in 0..3 {
            exact::assert_sums("integers", seed, &crew.reduce::<i32>(seed, COUNT, Reduction::Sum));
            exact::assert_sums("the largest", seed, &crew.reduce::<f32>(seed, COUNT, Reduction::Max));
        }
        assert!(crew.counter("resent") > 0, "frames were lost and no chunk was sent again");
        assert_eq!(crew.counter("chunks_lost"), 0, "without a bound nothing is given up");
        crew.leave();
    });
}

#[test]
fn reductions_are_exact_by_owners_over_xdp() {
    reductions_are_exact(Backend::Xdp, DirectCollective::Ps);
}

#[test]
fn reductions_are_exact_around_the_ring_over_udp() {
    reductions_are_exact(Backend::Udp, DirectCollective::Ring);
}

/// Float32 in 16 bits, by owners and around the ring, under loss: the same on all workers, within the bound.
#[test]
fn values_of_16_bits_are_summed_under_loss() {
    for (backend, collective) in
        [(Backend::Xdp, DirectCollective::Ps), (Backend::Udp, DirectCollective::Ring)]
    {
        let spec = LabSpec { faults: FAULTS, ..LabSpec::new(3) };
        with_sumac(spec, &sumac(backend, collective), |sumac| {
            let halves = |options| sumac.in_its_mode(options).wire(WireFormat::Int16);
            let crew = Crew::join_with(sumac, "halves", halves);
            exact::assert_sums("float32", 1, &crew.allreduce(1, COUNT));
            let words = u64::from(crew.trainers[0].job.opened().elements);
            let (chunks, resent) = (crew.counter("chunks_sent"), crew.counter("resent"));
            assert!(chunks < 4 * (COUNT as u64 / words) * 2 / 3, "{chunks} chunks of {words} words");
            assert!(resent > 0, "frames were lost and no chunk was sent again");
            crew.leave();
        });
    }
}

/// A run of the lab, in which one in twenty frames is lost; its results are right.
fn measured(backend: Backend, collective: DirectCollective, loss_bound: f32) -> Report {
    measured_with(sumac(backend, collective), loss_bound)
}

fn measured_with(sumac: SumacOptions, loss_bound: f32) -> Report {
    let faults = Faults { loss: Probability(50_000), ..Faults::default() };
    let options = RunOptions {
        lab: LabSpec { faults, ..LabSpec::new(4) },
        sumac,
        operation: Operation { loss_bound, ..Operation::sum(160_000) },
        jobs: 1,
        iterations: 2,
        warmup: 0,
        seed: 5,
        limit: Duration::from_secs(60),
        trace: false,
        captures: CaptureOptions::default(),
    };
    let report = run(&options).unwrap();
    println!("{report}");
    assert!(report.verified, "{} elements are wrong", report.wrong_elements);
    report
}

/// Two hosts of servers and two of workers, and three workers of one server.
#[test]
fn sums_of_servers_are_the_workers() {
    in_turn(|| {
        for (backend, servers, loss_bound) in [(Backend::Xdp, 2, 0.0), (Backend::Udp, 1, 0.1)] {
            let direct = Some(DirectOptions { servers: Some(servers), ..DirectOptions::default() });
            let report =
                measured_with(SumacOptions { backend, direct, ..SumacOptions::default() }, loss_bound);
            assert!(report.retransmits > 0, "{report}");
            assert_eq!(report.loss.is_some(), loss_bound > 0.0, "{report}");
        }
    });
}

#[test]
fn a_loss_bound_is_used_and_never_exceeded() {
    in_turn(|| {
        for (backend, collective) in [
            (Backend::Xdp, DirectCollective::Ps),
            (Backend::Udp, DirectCollective::Ps),
            (Backend::Udp, DirectCollective::Allgather),
            (Backend::Xdp, DirectCollective::ReduceScatter),
        ] {
            let loss = measured(backend, collective, 0.1).loss.unwrap();
            assert!(loss.spent > 0.0 && loss.spent <= loss.budget, "{collective:?}: {loss:?}");
        }
    });
}

#[test]
fn blocks_are_gathered_exactly_without_a_bound() {
    in_turn(|| {
        let report = measured(Backend::Xdp, DirectCollective::Allgather, 0.0);
        assert!(report.retransmits > 0 && report.loss.is_none(), "{report}");
    });
}

/// One end of a tensor that a worker sends another one, both ways between all workers.
struct Posted {
    source: u16,
    /// Of the receiving end.
    bound: Option<f32>,
    pending: Pending<f32>,
}

/// Posts a tensor to and one from each other worker, with this bound.
fn post(trainer: &Trainer, world: u16, seed: u64, bound: f32) -> Vec<Posted> {
    let Trainer { client, job, rank } = trainer;
    let mut posted = Vec::new();
    for peer in (0..world).filter(|peer| peer != rank) {
        let mut tensor = client.tensor::<f32>(COUNT).unwrap();
        tensor.iter_mut().enumerate().for_each(|(index, value)| *value = exact::value(seed, *rank, index));
        let pending = job.post_send(tensor, peer, SendOptions::default()).unwrap();
        posted.push(Posted { source: *rank, bound: None, pending });
        let options = RecvOptions { loss_bound: bound, missing: MissingValues::Zero };
        let pending = job.post_recv(client.tensor::<f32>(COUNT).unwrap(), peer, options).unwrap();
        posted.push(Posted { source: peer, bound: Some(bound), pending });
    }
    posted
}

/// Waits for a tensor, and compares it with what was sent. Returns the elements that are missing.
fn arrived(posted: Posted, seed: u64) -> usize {
    let Posted { source, bound, mut pending } = posted;
    assert!(pending.wait_timeout(Duration::from_secs(60)).unwrap(), "a transfer of rank {source} hangs");
    let missing = pending.loss().map(|loss| loss.missing.clone()).unwrap_or_default();
    let lost: usize = missing.iter().map(|(first, end)| (end - first) as usize).sum();
    assert!(lost as f64 <= COUNT as f64 * f64::from(bound.unwrap_or(0.0)), "{lost} of {COUNT} are missing");
    for (index, value) in crew::sum(pending).iter().enumerate() {
        let is_missing = missing.iter().any(|(first, end)| (*first..*end).contains(&(index as u64)));
        let expected = if is_missing { 0.0 } else { exact::value::<f32>(seed, source, index) };
        assert_eq!(*value, expected, "element {index} of rank {source}");
    }
    lost
}

/// Through cables that lose, duplicate and reorder.
fn transfers_go_between_all_workers(backend: Backend) {
    let spec = LabSpec { faults: FAULTS, ..LabSpec::new(3) };
    with_sumac(spec, &sumac(backend, DirectCollective::Ps), |sumac| {
        let crew = Crew::join(sumac, "transfers");
        let mut lost = 0;
        for (seed, bound) in [(1, 0.0), (2, 0.1)] {
            let posted: Vec<_> =
                crew.trainers.iter().map(|trainer| (trainer.rank, post(trainer, 3, seed, bound))).collect();
            exact::assert_sums("beside them", seed, &crew.reduce::<i32>(seed, COUNT, Reduction::Sum));
            for (_, posted) in posted {
                lost += posted.into_iter().map(|posted| arrived(posted, seed)).sum::<usize>();
            }
            assert_eq!(lost > 0, bound > 0.0, "a bound is used");
        }
        for trainer in &crew.trainers {
            let polled = trainer.job.poll_cq().unwrap();
            assert!(polled.len() == 8 && polled.iter().all(|ended| ended.error.is_none()), "{polled:?}");
        }
        assert!(crew.counter("resent") > 0, "frames were lost and no chunk was sent again");
        crew.leave();
    });
}

#[test]
fn transfers_go_between_all_workers_over_xdp() {
    transfers_go_between_all_workers(Backend::Xdp);
}

#[test]
fn transfers_go_between_all_workers_over_udp() {
    transfers_go_between_all_workers(Backend::Udp);
}
