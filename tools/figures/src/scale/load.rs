//! Sums of many workers, elements, jobs and operations, and what they cost.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use sumac_client::{Client, ClientError, Job, JobOptions, Tensor};
use sumac_lab::clock::{Times, monotonic};
use sumac_lab::deployment::Deployment;
use sumac_lab::interrupt;
use sumac_lab::parallel::in_parallel;
use sumac_lab::run::contents::Contents;
use sumac_lab::run::{Operation, Trainers};

use super::usage::SumacUsage;

/// Sums are repeated for so long: the kernel reports CPU times in hundredths of a second.
const ENOUGH: Duration = Duration::from_secs(1);
const LEAST_ROUNDS: usize = 3;
/// A sum of so many seconds is not repeated.
const LONG: f64 = 5.0;
const LIMIT: Duration = Duration::from_secs(300);

/// Operations of a connection, and connections of a job: a daemon accepts up to 1,024, and 4,096 in a job.
const OPERATIONS: usize = 1000;
const CONNECTIONS: usize = 4;
/// Elements of an operation in flight.
pub const SMALL: usize = 16;

pub struct Cost {
    pub seconds: f64,
    pub daemon_cpu_s: f64,
    pub aggregator_cpu_s: f64,
    /// While all is in flight.
    pub daemon_kib: u64,
    pub aggregator_kib: u64,
    pub verified: bool,
}

/// Repeats `round`, whose result is its seconds, and returns the cost of one. `held`: the usage while all is
/// in flight.
fn repeat(
    deployment: &Deployment<'_>,
    mut round: impl FnMut() -> Result<(f64, bool)>,
    held: impl FnOnce() -> Result<SumacUsage>,
) -> Result<Cost> {
    let (mut times, mut verified) = (Vec::new(), true);
    let (begin, before) = (Instant::now(), SumacUsage::of(deployment)?);
    while times.len() < LEAST_ROUNDS || begin.elapsed() < ENOUGH {
        interrupt::check()?;
        let (seconds, is_right) = round()?;
        times.push(seconds);
        verified &= is_right;
        if seconds >= LONG {
            break;
        }
    }
    let (after, rounds) = (SumacUsage::of(deployment)?, times.len() as f64);
    let held = held()?;
    Ok(Cost {
        seconds: Times::of(&times).median,
        daemon_cpu_s: (after.daemon.cpu_s - before.daemon.cpu_s) / rounds,
        aggregator_cpu_s: (after.aggregator.cpu_s - before.aggregator.cpu_s) / rounds,
        daemon_kib: held.daemon.anonymous_kib,
        aggregator_kib: held.aggregator.anonymous_kib,
        verified,
    })
}

/// Returns the cost of one sum of one job.
pub fn sum(deployment: &Deployment<'_>, elements: usize) -> Result<Cost> {
    let mut trainers = Trainers::<f32>::join(deployment, "job0", Operation::sum(elements))?;
    let contents = Contents { seed: 1, iteration: 0 };
    let round = |trainers: &mut Trainers<f32>| -> Result<f64> {
        trainers.fill(contents)?;
        let (begin, end) = trainers.operate(LIMIT)?;
        Ok(end - begin)
    };
    // The first sum touches fresh memory everywhere, and is checked.
    round(&mut trainers)?;
    let verified = trainers.compare(contents)?.wrong == 0;
    let cost = repeat(deployment, || Ok((round(&mut trainers)?, verified)), || SumacUsage::of(deployment));
    trainers.leave()?;
    cost
}

/// The connections of one worker, with a job and tensors each.
#[derive(Default)]
struct FlightSide {
    connections: Vec<(Job, Vec<Tensor<f32>>)>,
    clients: Vec<Client>,
}

impl FlightSide {
    /// Opens a job, over a connection of its own.
    fn open(&mut self, lab: &Deployment<'_>, rank: u16, name: &str, tensors: &[usize]) -> Result<()> {
        let options = lab.in_its_mode(JobOptions::new(name, rank, 2).timeout(LIMIT));
        self.connect(lab, rank, tensors, |client| client.open(&options))
            .with_context(|| format!("worker {rank}, joining {name}"))
    }

    /// Attaches another connection to a job that is open.
    fn attach(&mut self, lab: &Deployment<'_>, rank: u16, name: &str, tensors: &[usize]) -> Result<()> {
        self.connect(lab, rank, tensors, |client| client.attach(name, None))
            .with_context(|| format!("worker {rank}, attaching to {name}"))
    }

    fn connect(
        &mut self,
        lab: &Deployment<'_>,
        rank: u16,
        tensors: &[usize],
        join: impl FnOnce(&Client) -> Result<Job, ClientError>,
    ) -> Result<()> {
        interrupt::check()?;
        let client = lab.client(rank)?;
        let (most, own) = (client.hello().limits.operations as usize, tensors.len());
        ensure!(own <= most, "the daemon accepts {most} operations of a connection: net.core.wmem_max");
        let job = join(&client)?;
        self.connections.push((job, client.tensors::<f32>(tensors)?));
        self.clients.push(client);
        Ok(())
    }
}

/// Returns the cost of one sum in each of `jobs` jobs at the same time.
pub fn jobs(deployment: &Deployment<'_>, jobs: usize, elements: usize) -> Result<Cost> {
    let sides = in_parallel(vec![0, 1], |rank: u16| {
        let mut side = FlightSide::default();
        for number in 0..jobs {
            side.open(deployment, rank, &format!("job{number}"), &[elements])?;
        }
        Ok(side)
    })?;
    in_flight(deployment, sides)
}

/// Returns the cost of so many sums in flight in as few jobs as may have them.
pub fn operations(deployment: &Deployment<'_>, count: usize) -> Result<Cost> {
    let sides = in_parallel(vec![0, 1], |rank: u16| {
        let (mut side, mut left) = (FlightSide::default(), count);
        for number in 0..count.div_ceil(OPERATIONS * CONNECTIONS) {
            for connection in 0..CONNECTIONS.min(left.div_ceil(OPERATIONS)) {
                let own = left.min(OPERATIONS);
                left -= own;
                let (name, tensors) = (format!("flight{number}"), vec![SMALL; own]);
                match connection {
                    0 => side.open(deployment, rank, &name, &tensors)?,
                    _ => side.attach(deployment, rank, &name, &tensors)?,
                }
            }
        }
        Ok(side)
    })?;
    in_flight(deployment, sides)
}

/// Returns the cost of one sum of each tensor: worker 0 submits all of them before worker 1 submits the
/// first. One thread does: a thread for each job would be most of a thousand jobs' time.
fn in_flight(deployment: &Deployment<'_>, mut sides: Vec<FlightSide>) -> Result<Cost> {
    let mut held = SumacUsage::default();
    let cost = repeat(
        deployment,
        || {
            let values = [1.0, 2.0];
            for (side, value) in sides.iter_mut().zip(values) {
                let tensors = side.connections.iter_mut().flat_map(|(_, tensors)| tensors);
                tensors.for_each(|tensor| tensor.fill(value));
            }
            let (begin, mut pending, mut looked) = (monotonic(), Vec::new(), 0.0);
            for side in &mut sides {
                let mut own = Vec::new();
                for (job, tensors) in &mut side.connections {
                    let submitted = tensors.drain(..).map(|tensor| {
                        job.allreduce(tensor).map_err(|failed| anyhow!("submitting a sum: {}", failed.error))
                    });
                    own.push(submitted.collect::<Result<Vec<_>>>()?);
                }
                if pending.is_empty() {
                    let at = monotonic();
                    held = SumacUsage::of(deployment)?;
                    looked = monotonic() - at;
                }
                pending.push(own);
            }
            let mut verified = true;
            for (side, own) in sides.iter_mut().zip(pending) {
                for ((_, tensors), operations) in side.connections.iter_mut().zip(own) {
                    for operation in operations {
                        let tensor = operation.wait();
                        tensors.push(tensor.map_err(|failed| anyhow!("a sum in flight: {}", failed.error))?);
                    }
                }
            }
            let seconds = monotonic() - begin - looked;
            let sum: f32 = values.iter().sum();
            for (_, tensors) in sides.iter().flat_map(|side| &side.connections) {
                verified &= tensors.iter().all(|tensor| tensor.iter().all(|value| *value == sum));
            }
            Ok((seconds, verified))
        },
        || Ok(SumacUsage::default()),
    )?;
    // Clients that are attached to a job leave before the one that has opened it.
    for (job, _) in sides.into_iter().flat_map(|side| side.connections.into_iter().rev()) {
        drop(job);
    }
    Ok(Cost { daemon_kib: held.daemon.anonymous_kib, aggregator_kib: held.aggregator.anonymous_kib, ..cost })
}
