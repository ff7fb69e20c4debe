//! Stragglers: a worker whose cable is slow, and one that pauses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use sumac_lab::Lab;
use sumac_lab::deployment::Deployment;
use sumac_lab::units::Rate;

/// The pause of a straggler's daemon.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time between two pauses; the mean is half of it.
const GAP: Duration = Duration::from_millis(200);
/// The part of the others' rate that a slow cable has.
const SLOWNESS: u64 = 10;

/// The last worker's handicap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Straggler {
    /// All workers are alike
    None,
    /// The last worker's cable has a tenth of the rate
    Slow,
    /// The last worker's daemon stops for 20 ms at random times, 100 ms apart on average
    Pauses,
}

impl Straggler {
    /// Does `work` beside the straggler.
    pub fn beside<T>(
        self,
        lab: &Lab,
        deployment: &Deployment<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match self {
            Straggler::None => work(),
            Straggler::Slow => {
                let cable = lab.cables().last().context("a slow cable needs --rate")?;
                let rate = lab.spec().rate.context("a slow cable needs --rate")?;
                cable.set_rate(Rate(rate.0 / SLOWNESS))?;
                let result = work();
                cable.set_rate(rate)?;
                result
            }
            Straggler::Pauses => pausing(lab, deployment, work),
        }
    }
}

fn pausing<T>(lab: &Lab, deployment: &Deployment<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let name = format!("daemon{}", lab.spec().workers - 1);
    let daemon = deployment.processes().find(|process| process.what() == name);
    let daemon = daemon.context("a deployment has daemons")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(rng.random_range(Duration::ZERO..GAP));
                daemon.signal(Signal::SIGSTOP);
                std::thread::sleep(PAUSE);
                daemon.signal(Signal::SIGCONT);
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    })
}
