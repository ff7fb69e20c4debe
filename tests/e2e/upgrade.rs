//! New daemons take over from running ones over AF_XDP: jobs go on with the exact sums, and the pinned
//! programs stay.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg | --- ph (dynamic jobs)
//!                      +-----+
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use nix::sys::signal::Signal;
use sumac_client::{ClientError, Reduction};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, DynamicOptions, SumacOptions};
use sumac_lab::programs::Programs;
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};

const COUNT: usize = 200_000;
/// The seed of the values that were registered before the first upgrade.
const KEPT: u64 = 1 << 40;

/// Stops the trainers also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Sums until it is signalled to stop, with two operations outstanding, and compares every sum.
fn train(crew: &Crew, rounds: &AtomicU64, stop: &AtomicBool) {
    for seed in (0..).step_by(2) {
        let outstanding = [seed, seed + 1].map(|seed| crew.submit(seed, COUNT));
        for (seed, pending) in (seed..).zip(outstanding) {
            exact::assert_sums(&format!("sum {seed}"), seed, &crew.results(pending));
        }
        rounds.fetch_add(1, SeqCst);
        if stop.load(SeqCst) {
            return;
        }
    }
}

/// Starts a new daemon that fails once the running one has closed its sockets: that one opens them again.
fn fail_to_take_over(sumac: &Deployment<'_>, rank: u16) {
    let file = sumac.socket(rank).with_extension("toml");
    // It is no address of this host.
    let text = format!("metrics = \"192.0.2.1:9402\"\n{}", std::fs::read_to_string(&file).unwrap());
    let other = sumac.socket(rank).with_extension("other.toml");
    std::fs::write(&other, text).unwrap();
    let program = Programs::find().unwrap().sumac();
    let mut taken = sumac.lab().worker(rank).command(program.get_program());
    let taken = taken.args(["daemon", "--take-over", "--config"]).arg(&other).output().unwrap();
    let error = String::from_utf8_lossy(&taken.stderr);
    assert!(!taken.status.success());
    assert!(error.contains("192.0.2.1"), "{error}");
}

/// Upgrades both daemons twice while a job sums.
fn upgrade_under_traffic(sumac: &mut Deployment<'_>) {
    let programs = [0, 1].map(|rank| stats::program_id(sumac, rank));
    let crew = Crew::join(sumac, "upgraded");
    let kept = crew.prepare::<f32>(KEPT, COUNT);
    let (rounds, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (crew, mut formers) = thread::scope(|scope| {
        let mut formers = Vec::new();
        let training = scope.spawn(|| {
            train(&crew, &rounds, &stop);
            crew
        });
        let stopping = StopOnDrop(&stop);
        let await_rounds = |more: u64| {
            let enough = rounds.load(SeqCst) + more;
            eventually("sums", || (training.is_finished() || rounds.load(SeqCst) >= enough).then_some(()));
        };
        for rank in [0, 1, 0, 1] {
            await_rounds(1);
            fail_to_take_over(sumac, rank);
            await_rounds(1);
            formers.push(sumac.upgrade_daemon(rank).unwrap());
        }
        await_rounds(2);
        drop(stopping);
        (training.join().unwrap(), formers)
    });
    println!("{} rounds over 4 handovers", rounds.load(SeqCst));
    for rank in [0, 1] {
        let log = std::fs::read_to_string(sumac.daemon(rank).unwrap().log()).unwrap();
        log.lines()
            .filter(|line| line.contains("stood_still"))
            .for_each(|line| println!("rank {rank}: {line}"));
    }
    for trainer in &crew.trainers {
        stats::assert_bound(&trainer.client, sumac.options().backend);
    }
    // The first daemon of each worker holds this memory; the others held what is gone.
    assert!(formers[..2].iter_mut().all(|former| former.ended().is_none()));
    let pending = crew.hand_in(kept, Reduction::Sum);
    exact::assert_sums("in memory of the first daemons", KEPT, &crew.results(pending));
    crew.leave();
    eventually("the former daemons' ends", || {
        formers.iter_mut().all(|former| former.ended().is_some_and(|status| status.success())).then_some(())
    });
    assert_eq!([0, 1].map(|rank| stats::program_id(sumac, rank)), programs, "the programs stay");
}

#[test]
fn a_trainer_whose_former_daemon_is_killed_is_cut_off_and_reads_no_result() {
    with_sumac(LabSpec::new(2), &SumacOptions::default(), |sumac| {
        let crew = Crew::join(sumac, "held");
        let [first, second] = [1, 2].map(|seed| crew.prepare::<f32>(seed, COUNT));
        let mut former = sumac.upgrade_daemon(0).unwrap();
        let pending = crew.hand_in(first, Reduction::Sum);
        exact::assert_sums("through the former daemon", 1, &crew.results(pending));
        former.signal(Signal::SIGKILL);
        eventually("its end", || former.ended());
        let pending = crew.hand_in(second, Reduction::Sum);
        let ends: Vec<_> =
            pending.into_iter().map(|pending| pending.wait().map_err(|failed| failed.error)).collect();
        assert!(matches!(ends[0], Err(ClientError::Lost(_))), "{ends:?}");
    });
}

#[test]
fn daemons_are_upgraded_under_a_static_job() {
    with_sumac(LabSpec::new(2), &SumacOptions::default(), upgrade_under_traffic);
}

#[test]
fn daemons_are_upgraded_under_a_dynamic_job() {
    let spec = LabSpec { parameter_hosts: 1, ..LabSpec::new(2) };
    let dynamic = Some(DynamicOptions::default());
    with_sumac(spec, &SumacOptions { dynamic, ..SumacOptions::default() }, upgrade_under_traffic);
}
