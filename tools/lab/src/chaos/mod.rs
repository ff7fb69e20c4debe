//! Kills of random processes under a steady loop of allreduces: every sum is right or fails by name, and
//! nothing is left.
//!
//! The seed decides the victims and the pauses between the steps of a kill, and so a run can be repeated. The
//! moment within an operation at which a kill arrives is the machine's.

mod leftovers;
mod options;
mod report;
pub mod trainer;
mod trainers;
mod victim;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_client::Mode;

use crate::clock::monotonic;
use crate::deployment::{Backend, Deployment, DirectOptions, DynamicOptions, SumacOptions};
use crate::lab::Lab;
use crate::spec::LabSpec;
use crate::traces::Traces;

pub use leftovers::unaccounted;
pub use options::ChaosOptions;
pub use report::{Kill, Outcome, Report, Row};
use trainers::Trainers;
pub use victim::{Kind, Victim};

/// Sums of every worker before the next kill.
const STEADY: u32 = 3;

/// The time for all workers to sum again after a restart.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);

/// The time for the kernel to free programs and namespaces.
const REMOVAL_LIMIT: Duration = Duration::from_secs(30);

/// Kills processes in one lab of programs and one of host aggregators, half of them in each.
pub fn chaos(options: &ChaosOptions) -> Result<Report> {
    eprintln!(
        "sumac-lab: repeat with `sumac-lab chaos --mode {} --kills {} --seed {}`",
        options.mode.name(),
        options.kills,
        options.seed
    );
    let mut report = Report::new(options);
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    for (backend, kills) in [(Backend::Xdp, options.kills.div_ceil(2)), (Backend::Udp, options.kills / 2)] {
        if kills > 0 {
            in_lab(options, backend, kills, &mut random, &mut report)?;
        }
    }
    Ok(report.finish())
}

/// The topology: two racks below a root, and a parameter host of its own for dynamic jobs, with a worker on
/// the root itself.
fn lab(mode: Mode, backend: Backend) -> LabSpec {
    let (workers, beside_root, parameter_hosts) = match (mode, backend) {
        (Mode::Static, Backend::Xdp | Backend::Mixed) => (4, 0, 0),
        (Mode::Static, Backend::Udp) => (2, 0, 0),
        (Mode::Dynamic, _) => (3, 1, 1),
        (Mode::Direct, _) => (3, 0, 0),
    };
    // Of a direct job no rack has a part.
    let racks = if mode == Mode::Direct { 0 } else { 2 };
    LabSpec { racks, beside_root, parameter_hosts, ..LabSpec::new(workers) }
}

fn in_lab(
    options: &ChaosOptions,
    backend: Backend,
    kills: u32,
    random: &mut ChaCha8Rng,
    report: &mut Report,
) -> Result<()> {
    let lab = Lab::up(lab(options.mode, backend))?;
    let dynamic = (options.mode == Mode::Dynamic).then(DynamicOptions::default);
    let direct = (options.mode == Mode::Direct).then(DirectOptions::default);
    let sumac = SumacOptions { backend, dynamic, direct, ..SumacOptions::default() };
    let mut sumac = Deployment::start(&lab, &sumac)?;
    let mut trainers = Trainers::start_all(&sumac, options.elements as usize, options.seed)?;
    let victims = Victim::all(&sumac);
    ensure!(
        trainers.wait_steady(STEADY, RECOVERY_LIMIT)?,
        "no sums before the first kill: {}",
        trainers.describe()
    );
    for number in 0..kills {
        let kill = kill(options, &victims, &mut sumac, &mut trainers, random)?;
        eprintln!("sumac-lab: {} {}/{kills}: {kill}", backend.name(), number + 1);
        report.kills.push(kill);
    }
    report.sums += trainers.sums;
    report.wrong += trainers.wrong;
    for (message, count) in std::mem::take(&mut trainers.refused) {
        *report.refused.entry(message).or_default() += count;
    }
    trainers.kill_all();
    report.leftovers.extend(leftovers::of_jobs(&mut sumac)?);
    let traces = Traces::of(&lab)?;
    drop(sumac);
    lab.down()?;
    report.leftovers.extend(traces.remaining(REMOVAL_LIMIT)?);
    Ok(())
}

/// Kills one process, waits for the outcome, and restarts it before or after that.
fn kill(
    options: &ChaosOptions,
    victims: &[Victim],
    sumac: &mut Deployment<'_>,
    trainers: &mut Trainers,
    random: &mut ChaCha8Rng,
) -> Result<Kill> {
    // Kinds are equally likely, whatever the number of their processes.
    let mut kinds: Vec<Kind> = victims.iter().map(|victim| victim.kind).collect();
    kinds.dedup();
    let kind = kinds.choose(random).copied();
    let of_kind: Vec<Victim> = victims.iter().copied().filter(|victim| Some(victim.kind) == kind).collect();
    let Some(victim) = of_kind.choose(random).copied() else { bail!("a lab without processes") };
    let before = Duration::from_millis(random.random_range(0..200));
    // At once, as a service manager with a short RestartSec, or not before the outcome.
    let restart = [Some(0), Some(200), None].choose(random).copied().flatten().map(Duration::from_millis);

    trainers.pause(before);
    trainers.mark();
    let killed_at = monotonic();
    victim.kill(sumac, trainers)?;
    let limit = Duration::from_secs(options.limit);
    let without = (victim.kind == Kind::Trainer).then_some(victim.number);
    let mut settled = true;
    let mut passed_before_restart = false;
    match restart {
        Some(pause) => {
            trainers.pause(pause);
            victim.restart(sumac, trainers)?;
            settled &= trainers.settle(killed_at, without, limit)?;
        }
        None => {
            settled &= trainers.settle(killed_at, without, limit)?;
            passed_before_restart = settled && trainers.faults().next().is_none();
        }
    }
    let gap = trainers.longest_gap(killed_at);
    let mut since = killed_at;
    if restart.is_none() {
        // An operation that fails only now fails because of the restart.
        since = if passed_before_restart { monotonic() } else { killed_at };
        victim.restart(sumac, trainers)?;
    }
    let restarted_at = monotonic();
    let recovered = trainers.wait_steady(STEADY, RECOVERY_LIMIT)?;
    let kill = Kill::new(victim, since, settled, recovered, gap, restarted_at, trainers);
    if !recovered || !settled {
        eprintln!("sumac-lab: after {victim}: {}", trainers.describe());
        trainers.kill_all();
        (0..sumac.lab().spec().workers).try_for_each(|rank| trainers.start(sumac, rank))?;
        ensure!(
            trainers.wait_steady(STEADY, RECOVERY_LIMIT)?,
            "no sums with new trainers after a killed {victim}: {}",
            trainers.describe()
        );
    }
    Ok(kill)
}
