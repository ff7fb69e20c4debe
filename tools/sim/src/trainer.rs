//! Trainers: what submits operations to a worker's engines and receives their completions.

use std::{cell::RefCell, rc::Rc};

use sumac_transport::{Arithmetic, Buffer, Completion, DType, Operation};

use crate::events::Nanos;

/// A worker's trainer.
pub trait Trainer {
    /// Runs at the start and at each time that it asked for.
    fn wake(&mut self, now: Nanos, commands: &mut CommandQueue);
    /// Receives the completion of a lane's operation.
    fn completed(&mut self, now: Nanos, lane: usize, completion: Completion, commands: &mut CommandQueue);
}

/// Commands of a trainer.
#[derive(Default)]
pub struct CommandQueue {
    /// Operations to submit, each with its lane.
    pub submits: Vec<(usize, Operation)>,
    /// Time at which to wake the trainer.
    pub wake_at: Option<Nanos>,
}

/// A trainer that only records completions; operations come by [`crate::world::World::submit`].
#[derive(Clone, Default)]
pub struct Recorder {
    pub completions: Rc<RefCell<Vec<Completion>>>,
}

impl Trainer for Recorder {
    fn wake(&mut self, _: Nanos, _: &mut CommandQueue) {}

    fn completed(&mut self, _: Nanos, _: usize, completion: Completion, _: &mut CommandQueue) {
        self.completions.borrow_mut().push(completion);
    }
}

/// A tensor of zeros that keeps no results: memory for one chunk.
struct Blank {
    chunk: Vec<u8>,
}

impl Buffer for Blank {
    fn input(&self, _: usize, len: usize) -> &[u8] {
        &self.chunk[..len.min(self.chunk.len())]
    }

    fn output(&mut self, _: usize, len: usize) -> &mut [u8] {
        let len = len.min(self.chunk.len());
        &mut self.chunk[..len]
    }
}

/// Training steps: tensors that are submitted together, and a pause after their last result.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// Lanes that tensors are assigned to in turn.
    pub lanes: usize,
    /// Tensors of a step.
    pub tensors: usize,
    /// Elements of each tensor.
    pub elements: usize,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// Time between a step's last result and the next step: the off phase.
    pub pause: Nanos,
    /// Start of the first step.
    pub from: Nanos,
    /// No step starts from this time on.
    pub until: Nanos,
}

/// Times that a trainer recorded.
#[derive(Debug, Default)]
pub struct TrainerLog {
    /// End of each step.
    pub steps: Vec<Nanos>,
    /// Last result of each tensor.
    pub tensors: Vec<Nanos>,
    /// Errors of operations.
    pub failed: Vec<String>,
}

/// A trainer that follows a [`StepPlan`].
pub struct Steps {
    plan: StepPlan,
    open: usize,
    signature: u32,
    log: Rc<RefCell<TrainerLog>>,
}

impl Steps {
    /// A trainer that records to `log`.
    pub fn new(plan: StepPlan, log: Rc<RefCell<TrainerLog>>) -> Steps {
        Steps { plan, open: 0, signature: 0, log }
    }
}

impl Trainer for Steps {
    fn wake(&mut self, now: Nanos, commands: &mut CommandQueue) {
        if now < self.plan.from {
            commands.wake_at = Some(self.plan.from);
            return;
        }
        if self.open > 0 || now >= self.plan.until {
            return;
        }
        for tensor in 0..self.plan.tensors {
            self.signature += 1;
            let buffer = Box::new(Blank { chunk: vec![0; self.plan.chunk] });
            let (count, signature) = (self.plan.elements, self.signature);
            let operation = Operation::allreduce(signature, DType::Int32, Arithmetic::Sum, count, buffer);
            commands.submits.push((tensor % self.plan.lanes, operation));
        }
        self.open = self.plan.tensors;
    }

    fn completed(&mut self, now: Nanos, _lane: usize, completion: Completion, commands: &mut CommandQueue) {
        let mut log = self.log.borrow_mut();
        if let Err(error) = completion.result {
            log.failed.push(error.to_string());
        }
        log.tensors.push(now);
        self.open -= 1;
        if self.open == 0 {
            log.steps.push(now);
            commands.wake_at = Some(now + self.plan.pause);
        }
    }
}
