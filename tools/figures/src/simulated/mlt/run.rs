//! One run of training on the simulated network, and its numbers.

use std::{rc::Rc, sync::Arc};

use sumac_sim::{
    events::{MILLI, Nanos, SECOND},
    job::SetupError,
    link::{Faults, LinkCounters},
    packet::Framing,
    world::World,
};

use super::{
    dctcp,
    direct::{self, Components, Training},
    fabric::{self, JobHosts, Queues},
    gradients::Gradients,
    model::Model,
    pipeline::{Log, SharedLog},
};
use crate::simulated::figure::{mean, percentile};

/// Before it the engines' handshakes end.
pub const BEGIN: Nanos = 20 * MILLI;
/// A run that lasts longer fails.
const LONGEST: Nanos = 60 * SECOND;

/// The transport of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    Dctcp,
    Direct(Components),
}

/// All of MLT, with this loss bound.
pub const fn whole(loss_bound: f32) -> Transport {
    Transport::Direct(Components { loss_bound, is_tagged: true, paths: sumac_wire::DEFAULT_PATHS })
}

impl Transport {
    pub fn queues(self) -> Queues {
        match self {
            Transport::Dctcp => Queues::Marking,
            Transport::Direct(Components { is_tagged: true, .. }) => Queues::Classes,
            Transport::Direct(_) => Queues::Plain,
        }
    }
}

/// A run's parameters.
#[derive(Clone, Copy)]
pub struct Plan {
    pub transport: Transport,
    /// Of so many servers, and scaled.
    pub model: fn(usize, u64) -> Model,
    pub scale: u64,
    pub racks: usize,
    pub iterations: usize,
    /// The loss of the first worker's cable, in both directions.
    pub gray: f64,
}

/// Times in microseconds; parts in percent.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub mean: f64,
    pub p99: f64,
    pub longest: f64,
    /// The time for an iteration.
    pub iteration: f64,
    /// Chunks that receivers did without, and the same of the important ones.
    pub lost: f64,
    pub lost_important: f64,
    /// Frames that switches dropped, of all that they sent or dropped.
    pub dropped: f64,
    /// Flows' retransmission timeouts.
    pub timeouts: u64,
}

pub fn run(plan: &Plan, seed: u64) -> Result<Outcome, SetupError> {
    let mut world = World::new(Framing { stretch: 1 }, seed);
    let fabric = fabric::spec(plan.racks, plan.transport.queues()).build(&mut world);
    let hosts = JobHosts::all(&fabric);
    let (model, gradients) =
        (Rc::new((plan.model)(hosts.servers(), plan.scale)), Arc::new(Gradients::new(seed)));
    if plan.gray > 0.0 {
        let faults = Faults { loss: plan.gray, ..Faults::default() };
        for direction in [fabric.cables[0], fabric.cables[0] + 1] {
            world.network.link_mut(direction).spec.faults = faults;
        }
    }
    let (log, begin) = (SharedLog::default(), (BEGIN, seed));
    match plan.transport {
        Transport::Dctcp => dctcp::start(&mut world, &model, &hosts, &log, plan.iterations, begin),
        Transport::Direct(components) => {
            let training = Training { model, gradients, log: log.clone(), components };
            direct::start(&mut world, &training, &hosts, plan.iterations, begin)?;
        }
    }
    world.run_until(LONGEST, |_| log.borrow().ended == hosts.workers);
    let log = log.borrow();
    if let Some(failed) = &log.failed {
        return Err(SetupError::Operation(failed.clone()));
    }
    if log.ended < hosts.workers {
        let (ended, workers) = (log.ended, hosts.workers);
        return Err(SetupError::Operation(format!("{ended} of {workers} workers ended in {LONGEST} ns")));
    }
    Ok(outcome(&world, &log, plan))
}

fn outcome(world: &World, log: &Log, plan: &Plan) -> Outcome {
    let mut times: Vec<f64> = log.times.iter().map(|time| time / 1e3).collect();
    let LinkCounters { frames, dropped, dropped_early, .. } = world.network.totals();
    let percent = |part: u64, of: u64| part as f64 * 100.0 / of.max(1) as f64;
    Outcome {
        mean: mean(&times),
        p99: percentile(&mut times, 99.0),
        longest: percentile(&mut times, 100.0),
        iteration: (log.end - BEGIN) as f64 / 1e3 / plan.iterations as f64,
        lost: percent(log.lost, log.chunks),
        lost_important: percent(log.lost_important, log.important),
        dropped: percent(dropped + dropped_early, frames + dropped + dropped_early),
        timeouts: world.flows.iter().map(sumac_sim::tcp::Flow::timeouts).sum(),
    }
}
