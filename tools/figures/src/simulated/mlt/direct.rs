//! Training over the engine of direct jobs: a transfer between two ranks for each part, in each direction.

use std::{rc::Rc, sync::Arc};

use sumac_sim::{
    events::Nanos,
    job::{Job, SetupError},
    trainer::{CommandQueue, Trainer},
    world::World,
};
use sumac_transport::{
    Arithmetic, Completion, DType, DirectParams, Exchange, Importance, JobParams, Operation, Pattern, Tuning,
};

use super::{
    fabric::{JobHosts, RATE, RING},
    gradients::{ELEMENTS, Gradients, Tensor},
    model::Model,
    pipeline::{Action, Gathered, Pipeline, SharedLog, Transfer},
};

/// Packets in flight to one peer at most: the default of direct jobs.
pub const WINDOW: u32 = 64;

/// The three parts of MLT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Components {
    /// A: the fraction that may be missing.
    pub loss_bound: f32,
    /// B: priorities by layer, importance by magnitude.
    pub is_tagged: bool,
    /// C: paths by source port.
    pub paths: u16,
}

/// The job's parameters, and its engines' tuning.
pub fn job(hosts: &JobHosts, components: Components) -> Job {
    let direct = Some(DirectParams { line_rate: RATE, ..DirectParams::new(WINDOW) });
    let world = hosts.nodes.len() as u16;
    let params = JobParams { token: 1, direct, ..JobParams::new(1, world, 1, ELEMENTS) };
    let tuning = Tuning { paths: components.paths, ..Tuning::default() };
    Job { tuning, ring: RING, ..Job::below(None, params, &hosts.nodes) }
}

/// The two operations of a transfer: the sender's, and the receiver's.
pub fn operation(
    gradients: &Arc<Gradients>,
    number: u32,
    values: usize,
    pattern: Pattern,
    (priority, components): (u8, Components),
) -> Operation {
    let is_send = matches!(pattern, Pattern::Send { .. });
    let (gives, takes) = if is_send { (0..values, 0..0) } else { (0..0, 0..values) };
    let tensor = Box::new(Tensor::new(gradients, number));
    let Components { loss_bound, is_tagged, .. } = components;
    let plain = Operation::allreduce(number, DType::Float32, Arithmetic::Bits, values, tensor);
    Operation {
        gives,
        takes,
        priority: if is_tagged { priority } else { 0 },
        importance: if is_tagged && is_send { Importance::Magnitude } else { Importance::None },
        loss_bound: if is_send { 0.0 } else { loss_bound },
        exchange: Some(Box::new(Exchange { number, pattern })),
        ..plain
    }
}

/// Begins a job's training at a time.
pub fn start(
    world: &mut World,
    training: &Training,
    hosts: &JobHosts,
    iterations: usize,
    (from, seed): (Nanos, u64),
) -> Result<(), SetupError> {
    let job = job(hosts, training.components);
    let trainer = |rank: usize| -> Box<dyn Trainer> {
        let workers = hosts.workers;
        let common = Common { training: training.clone(), workers, submitted: Vec::new() };
        if rank < workers {
            let (model, log) = (training.model.clone(), training.log.clone());
            let pipeline = Pipeline::new(model, log, rank, iterations, seed);
            Box::new(WorkerHost { common, pipeline, from })
        } else {
            let gathered = Gathered::default();
            Box::new(ServerHost { common, server: rank - workers, iterations, gathered, has_begun: false })
        }
    };
    job.start(world, trainer).map(|_| ())
}

/// The common parts of a job's hosts.
#[derive(Clone)]
pub struct Training {
    pub model: Rc<Model>,
    pub gradients: Arc<Gradients>,
    pub log: SharedLog,
    pub components: Components,
}

struct Common {
    training: Training,
    workers: usize,
    /// By number, the transfers that this host receives.
    submitted: Vec<Option<Transfer>>,
}

impl Common {
    fn submit(&mut self, transfer: Transfer, pattern: Pattern, commands: &mut CommandQueue) {
        let Training { model, gradients, components, .. } = &self.training;
        let part = model.parts[transfer.part];
        let number = transfer.number(model);
        let is_receive = matches!(pattern, Pattern::Receive { .. });
        let tags = (part.priority, *components);
        commands.submits.push((0, operation(gradients, number, part.values, pattern, tags)));
        self.submitted.push(is_receive.then_some(transfer));
    }

    /// Records a completion. Returns the transfer that was received.
    fn complete(&mut self, now: Nanos, completion: &Completion) -> Option<Transfer> {
        let mut log = self.training.log.borrow_mut();
        if let Err(error) = &completion.result {
            log.failed.get_or_insert(error.to_string());
        }
        let transfer = (*self.submitted.get(completion.id.0 as usize)?)?;
        log.complete(now, transfer);
        let Training { model, gradients, .. } = &self.training;
        let (number, elements) = (transfer.number(model), usize::from(ELEMENTS));
        let is_important = |chunk: usize| gradients.is_important(number, chunk);
        let chunks = model.parts[transfer.part].values.div_ceil(elements);
        log.chunks += chunks as u64;
        log.important += (0..chunks).filter(|chunk| is_important(*chunk)).count() as u64;
        for missing in completion.loss.iter().flat_map(|loss| &loss.missing) {
            let lost = missing.start / elements..missing.end.div_ceil(elements);
            log.lost += lost.len() as u64;
            log.lost_important += lost.filter(|chunk| is_important(*chunk)).count() as u64;
        }
        Some(transfer)
    }
}

struct WorkerHost {
    common: Common,
    pipeline: Pipeline,
    from: Nanos,
}

impl WorkerHost {
    fn act(&mut self, actions: Vec<Action>, commands: &mut CommandQueue) {
        for action in actions {
            match action {
                Action::Push(transfer) => {
                    let part = self.common.training.model.parts[transfer.part];
                    let server = (self.common.workers + part.server) as u16;
                    self.common.submit(transfer, Pattern::Send { to: server }, commands);
                    let pull = Transfer { is_pull: true, ..transfer };
                    let pattern = Pattern::Receive { from: server, keeps: true };
                    self.common.submit(pull, pattern, commands);
                }
                Action::WakeAt(at) => commands.wake_at = Some(at),
            }
        }
    }
}

impl Trainer for WorkerHost {
    fn wake(&mut self, now: Nanos, commands: &mut CommandQueue) {
        if now < self.from {
            commands.wake_at = Some(self.from);
            return;
        }
        let actions = self.pipeline.wake(now);
        self.act(actions, commands);
    }

    fn completed(&mut self, now: Nanos, _: usize, completion: Completion, commands: &mut CommandQueue) {
        if let Some(transfer) = self.common.complete(now, &completion) {
            let actions = self.pipeline.pulled(now, transfer.part);
            self.act(actions, commands);
        }
    }
}

struct ServerHost {
    common: Common,
    server: usize,
    iterations: usize,
    gathered: Gathered,
    has_begun: bool,
}

impl ServerHost {
    /// Says that it is ready for the gradients of a part.
    fn receive(&mut self, iteration: usize, part: usize, commands: &mut CommandQueue) {
        for worker in 0..self.common.workers {
            let transfer = Transfer { worker, iteration, part, is_pull: false };
            let pattern = Pattern::Receive { from: worker as u16, keeps: false };
            self.common.submit(transfer, pattern, commands);
        }
    }
}

impl Trainer for ServerHost {
    fn wake(&mut self, _: Nanos, commands: &mut CommandQueue) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let model = self.common.training.model.clone();
            model.of_server(self.server).for_each(|part| self.receive(0, part, commands));
        }
    }

    fn completed(&mut self, now: Nanos, _: usize, completion: Completion, commands: &mut CommandQueue) {
        let Some(transfer) = self.common.complete(now, &completion) else { return };
        if !self.gathered.add(transfer, self.common.workers) {
            return;
        }
        for worker in 0..self.common.workers {
            let pull = Transfer { worker, is_pull: true, ..transfer };
            self.common.training.log.borrow_mut().start(now, pull);
            self.common.submit(pull, Pattern::Send { to: worker as u16 }, commands);
        }
        if transfer.iteration + 1 < self.iterations {
            self.receive(transfer.iteration + 1, transfer.part, commands);
        }
    }
}
