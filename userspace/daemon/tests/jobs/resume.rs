//! A restarted control plane resumes a running dynamic job. See `lab.rs` for the topology.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::lab::{Kind, Lab};
use crate::wait::{LIMIT, eventually};
use sumac_client::{Client, Job, JobOptions, Mode};

const WORLD: u16 = 2;
const COUNT: usize = 20_000;
const KIND: Kind = Kind::Host { shared: 256 };

/// A trainer that sums until its job ends.
struct Trainer {
    client: Client,
    job: Arc<Job>,
    sums: Arc<AtomicU64>,
    working: JoinHandle<String>,
}

impl Trainer {
    fn begin(client: Client, job: Job) -> Trainer {
        let (job, sums) = (Arc::new(job), Arc::new(AtomicU64::new(0)));
        let working = thread::spawn({
            let (job, sums) = (job.clone(), sums.clone());
            let memory = client.tensors::<f32>(&[COUNT]).unwrap().remove(0);
            move || work(&job, memory, &sums)
        });
        Trainer { client, job, sums, working }
    }

    fn await_sums(&self, more: u64) {
        let enough = self.sums.load(SeqCst) + more;
        let is_enough = || self.sums.load(SeqCst) >= enough || self.working.is_finished();
        eventually("sums", || is_enough().then_some(()));
        assert!(!self.working.is_finished(), "its job has ended");
    }

    /// Returns the number of lanes on the direct path.
    fn direct(&self) -> u64 {
        let stats = self.client.stats().unwrap();
        let job = stats.jobs.iter().find(|job| job.job == self.job.opened().wire_job).unwrap();
        job.engine.get("direct").and_then(serde_json::Value::as_u64).unwrap()
    }
}

fn fill(tensor: &mut [f32]) {
    for (i, x) in tensor.iter_mut().enumerate() {
        *x = (i % 1009) as f32 / 256.0;
    }
}

fn work(job: &Job, mut tensor: sumac_client::Tensor<f32>, sums: &AtomicU64) -> String {
    loop {
        fill(&mut tensor);
        tensor = match job.allreduce(tensor).and_then(sumac_client::Pending::wait) {
            Ok(sum) => sum,
            Err(failed) => return failed.error.to_string(),
        };
        for (i, x) in tensor.iter().enumerate() {
            assert_eq!(*x, f32::from(WORLD) * ((i % 1009) as f32 / 256.0), "element {i}");
        }
        sums.fetch_add(1, SeqCst);
    }
}

fn begin(lab: &Lab) -> Vec<Trainer> {
    let opening: Vec<_> = (0..WORLD)
        .map(|rank| {
            let client = lab.client(usize::from(rank));
            thread::spawn(move || {
                let job = client.open(&JobOptions::new("on", rank, WORLD).mode(Mode::Dynamic)).unwrap();
                Trainer::begin(client, job)
            })
        })
        .collect();
    opening.into_iter().map(|opened| opened.join().unwrap()).collect()
}

/// Sums with a newcomer in the place of a dead worker.
fn goes_on(client: Client, job: Job, survivor: &Trainer) {
    // A part of the first may be summed already, and is not written.
    let mut first = client.tensors::<f32>(&[COUNT]).unwrap().remove(0);
    fill(&mut first);
    drop(job.allreduce(first).unwrap().wait().unwrap());
    let newcomer = Trainer::begin(client, job);
    newcomer.await_sums(3);
    survivor.await_sums(1);
}

#[test]
fn a_job_gets_its_aggregator_back_with_the_control_plane() {
    let mut lab = Lab::dynamic(KIND, usize::from(WORLD), 1, "");
    let trainers = begin(&lab);
    trainers[0].await_sums(3);
    lab.aggregator.stop();
    eventually("the direct path", || trainers.iter().all(|trainer| trainer.direct() > 0).then_some(()));
    trainers[0].await_sums(3);

    lab.aggregator.start_again(KIND, Duration::ZERO);
    eventually("the way back", || trainers.iter().all(|trainer| trainer.direct() == 0).then_some(()));
    trainers[0].await_sums(3);
    // And again, as often as it likes.
    lab.aggregator.start_again(KIND, Duration::ZERO);
    eventually("the way back", || trainers.iter().all(|trainer| trainer.direct() == 0).then_some(()));
    trainers[0].await_sums(3);

    drop(lab.hosts[1].0.take());
    for (rank, trainer) in trainers.into_iter().enumerate() {
        let ended = trainer.working.join().unwrap();
        assert!(rank == 1 || ended.contains("rank 1"), "{ended}");
    }
}

#[test]
fn a_worker_that_dies_afterwards_is_replaced() {
    let mut lab = Lab::dynamic(KIND, usize::from(WORLD) + 1, 1, "");
    let mut trainers = begin(&lab);
    trainers[0].await_sums(3);
    lab.aggregator.start_again(KIND, LIMIT);
    eventually("the way back", || trainers.iter().all(|trainer| trainer.direct() == 0).then_some(()));

    drop(lab.hosts[1].0.take());
    assert!(!trainers.remove(1).working.join().unwrap().is_empty());
    let client = lab.client(2);
    let job = client.open(&JobOptions::new("on", 1, WORLD).mode(Mode::Dynamic)).unwrap();
    assert!(job.opened().dynamic.as_ref().unwrap().first_operation > 0);
    goes_on(client, job, &trainers[0]);
}

#[test]
fn a_worker_that_has_died_meanwhile_is_replaced() {
    let mut lab = Lab::dynamic(Kind::None, usize::from(WORLD) + 1, 1, "");
    let trainers = begin(&lab);
    trainers[0].await_sums(3);
    lab.aggregator.stop();
    drop(lab.hosts[1].0.take());
    lab.aggregator.start_again(Kind::None, LIMIT);
    // Its trainer is started anew, elsewhere. The control plane knows the job by its journal, and waits for
    // the dead one.
    let options = JobOptions::new("on", 1, WORLD).mode(Mode::Dynamic);
    let refused = lab.client(2).open(&options).unwrap_err().to_string();
    assert!(refused.contains("rank 1 has joined already"), "{refused}");
    let client = lab.client(2);
    let job = eventually("the dead worker's rank", || client.open(&options).ok());
    goes_on(client, job, &trainers[0]);
}

#[test]
fn a_worker_that_has_died_meanwhile_is_named() {
    let mut lab = Lab::dynamic(Kind::None, usize::from(WORLD), 1, "");
    let trainers = begin(&lab);
    trainers[0].await_sums(3);
    lab.aggregator.stop();
    drop(lab.hosts[1].0.take());
    lab.aggregator.start_again(Kind::None, Duration::ZERO);
    let ended = trainers.into_iter().next().unwrap().working.join().unwrap();
    assert!(ended.contains("rank 1") && ended.contains("stopped answering"), "{ended}");
}

#[test]
fn sums_that_are_lost_meanwhile_are_missed() {
    let mut lab = Lab::dynamic(Kind::None, usize::from(WORLD), 1, "");
    let trainers = begin(&lab);
    trainers[0].await_sums(3);
    lab.aggregator.stop();
    drop(lab.parameter_hosts[0].0.take());
    lab.aggregator.start_again(Kind::None, Duration::ZERO);
    for trainer in trainers {
        let ended = trainer.working.join().unwrap();
        // The control plane reports it, or before it is back the daemon's own check of the path.
        let is_named = ["did not come back with the job's sums", "no answer from the parameter host"];
        assert!(is_named.iter().any(|named| ended.contains(named)), "{ended}");
    }
}
