//! Sums of many workers, elements, jobs and operations, and what they cost.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use sumac_client::{Client, Job, JobOptions, Tensor};
use sumac_lab::clock::{Times, around, monotonic};
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

/// Returns the cost of one sum in each of `jobs` jobs at the same time.
pub fn sums(deployment: &Deployment<'_>, jobs: u64, elements: usize) -> Result<Cost> {
    let join = |job: u64| Trainers::<f32>::join(deployment, &format!("job{job}"), Operation::sum(elements));
    let mut all = (0..jobs).map(join).collect::<Result<Vec<_>>>()?;
    let contents = Contents { seed: 1, iteration: 0 };
    let round = |all: &mut Vec<Trainers<f32>>| -> Result<f64> {
        all.iter_mut().try_for_each(|trainers| trainers.fill(contents))?;
        let spans =
            in_parallel(all.iter_mut().collect(), |trainers: &mut Trainers<f32>| trainers.operate(LIMIT))?;
        let (begin, end) = around(&spans);
        Ok(end - begin)
    };
    // The first sum touches fresh memory everywhere, and is checked.
    round(&mut all)?;
    let compared = all.iter().map(|trainers| Ok(trainers.compare(contents)?.wrong == 0));
    let verified = compared.collect::<Result<Vec<_>>>()?.into_iter().all(|is_right| is_right);
    let cost = repeat(deployment, || Ok((round(&mut all)?, verified)), || SumacUsage::of(deployment));
    all.into_iter().try_for_each(Trainers::leave)?;
    cost
}

/// The connections of one worker, with a job and tensors each.
struct FlightSide {
    connections: Vec<(Job, Vec<Tensor<f32>>)>,
    _clients: Vec<Client>,
}

/// Returns the cost of so many sums in flight: worker 0 submits all of them before worker 1 submits the
/// first.
pub fn operations(deployment: &Deployment<'_>, count: usize) -> Result<Cost> {
    let jobs = count.div_ceil(OPERATIONS * CONNECTIONS);
    let mut sides = in_parallel(vec![0, 1], |rank: u16| side(deployment, rank, jobs, count))?;
    let mut held = SumacUsage::default();
    let cost = repeat(
        deployment,
        || {
            let values = [1.0, 2.0];
            for (side, value) in sides.iter_mut().zip(values) {
                let tensors = side.connections.iter_mut().flat_map(|(_, tensors)| tensors);
                tensors.for_each(|tensor| tensor.fill(value));
            }
            let (begin, mut pending) = (monotonic(), Vec::new());
            for side in &mut sides {
                let mut own = Vec::new();
                for (job, tensors) in &mut side.connections {
                    let submitted = tensors.drain(..).map(|tensor| {
                        job.allreduce(tensor).map_err(|failed| anyhow!("submitting a sum: {}", failed.error))
                    });
                    own.push(submitted.collect::<Result<Vec<_>>>()?);
                }
                if pending.is_empty() {
                    held = SumacUsage::of(deployment)?;
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
            let seconds = monotonic() - begin;
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

fn side(deployment: &Deployment<'_>, rank: u16, jobs: usize, count: usize) -> Result<FlightSide> {
    let (mut connections, mut clients, mut left) = (Vec::new(), Vec::new(), count);
    for number in 0..jobs {
        let name = format!("flight{number}");
        for connection in 0..CONNECTIONS {
            if left == 0 {
                break;
            }
            interrupt::check()?;
            let own = left.min(OPERATIONS);
            left -= own;
            let client = deployment.client(rank)?;
            let most = client.hello().limits.operations as usize;
            ensure!(own <= most, "the daemon accepts {most} operations of a connection: net.core.wmem_max");
            let job = if connection == 0 {
                let options = JobOptions::new(&name, rank, 2).timeout(LIMIT);
                client.open(&deployment.in_its_mode(options))
            } else {
                client.attach(&name, None)
            };
            let job = job.map_err(|error| anyhow!("worker {rank}, joining {name}: {error}"))?;
            let tensors = client.tensors::<f32>(&vec![SMALL; own])?;
            connections.push((job, tensors));
            clients.push(client);
        }
    }
    Ok(FlightSide { connections, _clients: clients })
}
