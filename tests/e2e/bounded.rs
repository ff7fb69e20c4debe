//! Bounded loss: sums that complete without some contributions, on cables that lose frames and with a worker
//! that stops.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +-----+
//! w1 net0 --[cable]-- port1 | agg |
//! w2 net0 --[cable]-- port2 |     |
//! w3 net0 --[cable]-- port3 +-----+ --[cable]-- parameter host, of dynamic jobs
//! ```

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use sumac_client::{Client, Job, Loss, OpOptions};
use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Backend, DynamicOptions, SumacOptions};
use sumac_lab::run::{Operation, Report, RunOptions, run};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::{in_turn, with_sumac};
use sumac_tests::{Crew, stats, wait};

const COUNT: usize = 400_000;

/// Two retransmission timeouts, also on a busy machine.
const STOP: Duration = Duration::from_millis(150);

/// The options of static jobs, and of dynamic ones with a parameter host.
fn modes() -> [Option<DynamicOptions>; 2] {
    [None, Some(DynamicOptions::default())]
}

fn lab(workers: u16, dynamic: Option<DynamicOptions>) -> LabSpec {
    LabSpec { parameter_hosts: u16::from(dynamic.is_some()), ..LabSpec::new(workers) }
}

/// Three sums with a bound of 10 %, on cables that lose 1 % of the frames.
fn lossy(backend: Backend, dynamic: Option<DynamicOptions>, lab: LabSpec) -> Report {
    let faults = Faults { loss: Probability(10_000), ..Faults::default() };
    // Labs of both tests are there at once.
    let name = format!("{}{}", if lab.racks == 0 { "bound" } else { "racks" }, std::process::id());
    run(&RunOptions {
        lab: LabSpec { faults, name, ..lab },
        sumac: SumacOptions { backend, dynamic, ..SumacOptions::default() },
        operation: Operation { loss_bound: 0.1, ..Operation::sum(COUNT) },
        jobs: 1,
        iterations: 3,
        warmup: 1,
        seed: 11,
        limit: Duration::from_secs(60),
        trace: false,
        captures: CaptureOptions::default(),
    })
    .unwrap_or_else(|error| panic!("{error:#}"))
}

/// The run compares every element of every worker with the sum over the contributors that the workers report.
#[test]
fn lossy_cables_overdraw_no_budget_and_replicas_stay_equal() {
    in_turn(|| {
        for dynamic in modes() {
            for backend in [Backend::Xdp, Backend::Udp] {
                check(&lossy(backend, dynamic, lab(4, dynamic)));
            }
        }
    });
}

/// Racks of two workers at two and three levels: whoever is left out is so by its own rack.
#[test]
fn lossy_cables_below_racks_overdraw_no_budget() {
    let two = LabSpec { racks: 2, ..LabSpec::new(4) };
    let three = LabSpec { racks: 4, levels: 3, ..LabSpec::new(8) };
    in_turn(|| {
        for lab in [two, three] {
            check(&lossy(Backend::Xdp, None, lab));
        }
    });
}

fn check(report: &Report) {
    let loss = report.loss.clone().unwrap();
    println!("{loss:?}, {} s", report.tat_s.median);
    assert!(report.verified, "{report}");
    assert!(loss.by_worker.iter().all(|spent| *spent <= loss.budget), "{loss:?}");
    assert!(loss.budget <= 0.1);
}

/// Sums ones on this worker; returns the result and what it lost.
fn sum_of_ones(client: &Client, job: &Job, count: usize) -> (Vec<f32>, Loss) {
    let mut tensor = client.tensor::<f32>(count).unwrap();
    tensor.fill(1.0);
    let options = OpOptions { loss_bound: 0.3, ..OpOptions::default() };
    let mut pending = job.allreduce_with(tensor, options).unwrap();
    assert!(pending.wait_timeout(wait::LIMIT).unwrap(), "no sum");
    let loss = pending.loss().cloned().unwrap();
    (pending.wait().unwrap().to_vec(), loss)
}

/// A worker whose daemon stops for a while in the middle: it is left out of some chunks, and gets every
/// result.
#[test]
fn a_worker_that_stops_is_left_out_within_the_bound() {
    for dynamic in modes() {
        let options = SumacOptions { dynamic, ..SumacOptions::default() };
        stops(lab(3, dynamic), &options, 10 * COUNT, STOP);
    }
}

/// The same of a worker in a rack of two: the other one goes on for both, and the root waits for neither.
#[test]
fn a_worker_below_a_rack_that_stops_is_left_out_within_the_bound() {
    stops(LabSpec { racks: 2, ..LabSpec::new(4) }, &SumacOptions::default(), 10 * COUNT, STOP);
}

/// Sums of so many values, while worker 2 stops ten times for so long.
pub fn stops(lab: LabSpec, options: &SumacOptions, count: usize, stop: Duration) {
    let world = f32::from(lab.workers);
    with_sumac(lab, options, |sumac| {
        let crew = Crew::join(sumac, "straggler");
        let results = thread::scope(|scope| {
            let trainers = crew.trainers.iter();
            let running: Vec<_> =
                trainers.map(|one| scope.spawn(move || sum_of_ones(&one.client, &one.job, count))).collect();
            // Before all have begun, nobody is late.
            wait::eventually("a result", || (stats::counter(&crew.trainers[0], "results") > 0).then_some(()));
            for _ in 0..10 {
                thread::sleep(Duration::from_millis(10));
                sumac.daemon(2).unwrap().signal(Signal::SIGSTOP);
                thread::sleep(stop);
                sumac.daemon(2).unwrap().signal(Signal::SIGCONT);
            }
            running.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        let (sums, loss) = &results[0];
        println!("{loss:?}");
        for (rank, (own_sums, own)) in results.iter().enumerate() {
            assert!(own_sums == sums, "worker {rank} has other sums");
            assert_eq!((&own.by_worker, own.budget), (&loss.by_worker, loss.budget), "worker {rank}");
            assert_eq!(own.own.iter().map(|(first, end)| end - first).sum::<u64>(), own.by_worker[rank]);
        }
        // All give the same values: sums of some are scaled to those of all.
        assert!(
            sums.iter().all(|sum| (sum - world).abs() < 1e-5),
            "{:?}",
            sums.iter().find(|sum| **sum != world)
        );
        assert!(
            loss.by_worker[2] > 0 && loss.by_worker.iter().all(|spent| *spent <= loss.budget),
            "{loss:?}"
        );
        crew.leave();
    });
}
