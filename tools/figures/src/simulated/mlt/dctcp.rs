//! Training over DCTCP: a flow for each transfer.

use std::{cell::RefCell, rc::Rc};

use sumac_sim::{
    events::{MILLI, Nanos},
    tcp::FlowSpec,
    world::World,
};

use super::{
    fabric::JobHosts,
    model::Model,
    pipeline::{Action, Gathered, Pipeline, SharedLog, Transfer},
};

/// The paper's least retransmission timeout.
pub const MIN_TIMEOUT: Nanos = 10 * MILLI;

/// One job.
struct Job {
    model: Rc<Model>,
    hosts: JobHosts,
    log: SharedLog,
    workers: Vec<Pipeline>,
    servers: Gathered,
}

type SharedJob = Rc<RefCell<Job>>;

/// Begins a job's training at a time.
pub fn start(
    world: &mut World,
    model: &Rc<Model>,
    hosts: &JobHosts,
    log: &SharedLog,
    iterations: usize,
    (from, seed): (Nanos, u64),
) {
    let pipeline = |worker| Pipeline::new(model.clone(), log.clone(), worker, iterations, seed);
    let job = Job {
        model: model.clone(),
        hosts: hosts.clone(),
        log: log.clone(),
        workers: (0..hosts.workers).map(pipeline).collect(),
        servers: Gathered::default(),
    };
    let job = Rc::new(RefCell::new(job));
    (0..hosts.workers).for_each(|worker| wake_at(world, &job, worker, from));
}

fn wake_at(world: &mut World, job: &SharedJob, worker: usize, at: Nanos) {
    let job = job.clone();
    world.at(at, move |world| {
        let actions = job.borrow_mut().workers[worker].wake(world.now());
        act(world, &job, worker, actions);
    });
}

fn act(world: &mut World, job: &SharedJob, worker: usize, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Push(transfer) => send(world, job, transfer),
            Action::WakeAt(at) => wake_at(world, job, worker, at),
        }
    }
}

fn send(world: &mut World, job: &SharedJob, transfer: Transfer) {
    let (from, to, bytes) = {
        let job = job.borrow();
        let part = job.model.parts[transfer.part];
        let (worker, server) =
            (job.hosts.nodes[transfer.worker], job.hosts.nodes[job.hosts.workers + part.server]);
        let (from, to) = if transfer.is_pull { (server, worker) } else { (worker, server) };
        (from, to, part.values as u64 * 4)
    };
    let flow = world.add_flow(from, to, FlowSpec::dctcp(bytes, MIN_TIMEOUT), world.now());
    let job = job.clone();
    world.at_flow_end(flow, move |world| arrived(world, &job, transfer));
}

fn arrived(world: &mut World, job: &SharedJob, transfer: Transfer) {
    let now = world.now();
    job.borrow().log.borrow_mut().complete(now, transfer);
    if transfer.is_pull {
        let actions = job.borrow_mut().workers[transfer.worker].pulled(now, transfer.part);
        return act(world, job, transfer.worker, actions);
    }
    let workers = job.borrow().hosts.workers;
    if job.borrow_mut().servers.add(transfer, workers) {
        for worker in 0..workers {
            let pull = Transfer { worker, is_pull: true, ..transfer };
            job.borrow().log.borrow_mut().start(now, pull);
            send(world, job, pull);
        }
    }
}
