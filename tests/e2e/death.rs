//! Workers that die in the middle of a sum: the others learn who it was.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 |     |
//! w3 net0 ------ port3 +-----+
//! ```
//!
//! Rank 3 hands nothing in, so that the others' sum is certain to be outstanding when rank 2 dies.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sumac_client::{Code, JobOptions, Pending};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::programs::Programs;
use sumac_tests::crew::{self, failure};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::{LIMIT, eventually};
use sumac_tests::{Crew, exact, npy, stats};

const VICTIM: u16 = 2;
const COUNT: usize = 100_000;

/// Far beyond the 5 s that the failure may take on a machine of its own. What it took is printed.
const BOUND: Duration = Duration::from_secs(20);

fn in_lab(body: impl FnOnce(&mut Deployment<'_>)) {
    with_sumac(LabSpec::new(4), &SumacOptions::default(), body);
}

/// Asserts that each of these operations fails, and by the victim's rank.
fn assert_blamed(pending: Vec<(u16, Pending<f32>)>, since: Instant) {
    for (rank, pending) in pending {
        let failure = failure(pending, BOUND);
        println!("rank {rank} after {:.2} s: {failure}", since.elapsed().as_secs_f64());
        assert_eq!(failure.code, Code::JobFailed, "rank {rank}: {failure}");
        assert_eq!(failure.ranks, [VICTIM], "rank {rank}: {failure}");
        assert!(failure.message.contains(&format!("rank {VICTIM}")), "rank {rank}: {failure}");
    }
}

/// Asserts that nothing of the failed job is in the way of the next one of its name.
fn assert_next_job_works(sumac: &Deployment<'_>, name: &str) {
    eventually("the failed job's slots to fall free", || {
        let status = sumac.aggregator_status().unwrap();
        (status["slots_used"] == 0).then_some(())
    });
    let crew = Crew::join(sumac, name);
    exact::assert_sums("the next job", 1, &crew.allreduce(1, COUNT));
    crew.leave();
}

#[test]
fn a_daemon_that_is_killed_fails_its_job_by_rank() {
    in_lab(|sumac| {
        let crew = Crew::join(sumac, "daemon-killed");
        let living = crew.trainers.iter().filter(|trainer| trainer.rank < 3);
        let mut pending: Vec<_> = living.map(|trainer| (trainer.rank, trainer.submit(0, COUNT))).collect();
        stats::wait_until_stuck(&crew.trainers[0]);
        sumac.daemon(VICTIM).unwrap().signal(Signal::SIGKILL);
        let since = Instant::now();
        let (_, lost) = pending.remove(usize::from(VICTIM));
        assert_blamed(pending, since);
        // Who waits for the dead daemon itself is told that it is gone.
        let lost = lost.wait().unwrap_err();
        println!("the dead daemon's own trainer: {lost}");
        // Rank 3 had nothing outstanding: it is told by the next thing that it asks for.
        let late = crew.trainers[3].client.tensor::<f32>(1).unwrap();
        match crew.trainers[3].job.allreduce(late) {
            Ok(pending) => assert_blamed(vec![(3, pending)], since),
            Err(refused) => assert!(refused.to_string().contains("rank 2"), "rank 3: {refused}"),
        }
        drop(crew);
        sumac.stop_daemon(VICTIM);
        sumac.start_daemon(VICTIM).unwrap();
        assert_next_job_works(sumac, "daemon-killed");
    });
}

#[test]
fn a_trainer_that_is_killed_fails_its_job_by_rank() {
    in_lab(|sumac| {
        let name = "trainer-killed";
        let options = |rank| JobOptions::new(name, rank, 4).timeout(LIMIT);
        let mut victim = start_trainer(sumac, name);
        let opened = crew::open(sumac, [0, 1, 3], options);
        let trainers: Vec<_> = opened.into_iter().map(|(_, opened)| opened.unwrap()).collect();
        let living = trainers.iter().filter(|trainer| trainer.rank < 3);
        let pending: Vec<_> = living.map(|trainer| (trainer.rank, trainer.submit(0, COUNT))).collect();
        stats::wait_until_stuck(&trainers[0]);
        // The victim's are in their slots too.
        let used = || sumac.client(VICTIM).unwrap().stats().unwrap();
        eventually("the victim's chunks", || {
            used().jobs.first()?.engine["in_flight"].as_u64().filter(|chunks| *chunks > 0)
        });
        victim.signal(Signal::SIGKILL);
        let since = Instant::now();
        assert_blamed(pending, since);
        eventually("the victim's end", || victim.ended());
        drop(trainers);
        // The daemon of the dead trainer serves the next one.
        assert_next_job_works(sumac, name);
    });
}

/// `sumac allreduce` of as many zeros as the others bring, as a process that can be killed.
fn start_trainer(sumac: &Deployment<'_>, job: &str) -> sumac_lab::process::Process {
    let lab = sumac.lab();
    let input = lab.folder().join("zeros.npy");
    npy::write(&input, (0..COUNT).map(|_| 0.0));
    let mut command: Command = Programs::find().unwrap().sumac();
    command.args(["allreduce", "--job", job, "--rank", &VICTIM.to_string(), "--world", "4", "--socket"]);
    command.arg(sumac.socket(VICTIM)).arg(&input).arg(lab.folder().join("never.npy"));
    lab.start(lab.worker(VICTIM), "trainer", &mut command).unwrap()
}

#[test]
fn workers_whose_rack_was_away_learn_who_died() {
    with_sumac(LabSpec { racks: 2, ..LabSpec::new(4) }, &SumacOptions::default(), |sumac| {
        let mut crew = Crew::join(sumac, "rack-away");
        let living = crew.trainers.iter().filter(|trainer| trainer.rank < VICTIM);
        let pending: Vec<_> = living.map(|trainer| (trainer.rank, trainer.submit(0, COUNT))).collect();
        stats::wait_until_stuck(&crew.trainers[0]);
        sumac.rack(0).unwrap().signal(Signal::SIGKILL);
        sumac.stop_rack(0);
        // In the other rack. The root ends the job now, and rack 0 removes it as soon as it is back, maybe
        // before it has said why.
        let since = Instant::now();
        drop(crew.trainers.remove(usize::from(VICTIM)));
        sumac.start_rack(0).unwrap();
        assert_blamed(pending, since);
    });
}
