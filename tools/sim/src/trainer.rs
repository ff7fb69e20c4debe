//! Who gives the engines work: steps of tensors with pauses between them, as a trainer's, and what became of them.

use std::{cell::RefCell, rc::Rc};

use sumac_transport::{Arithmetic, Buffer, Completion, DType, Operation};

use crate::events::Nanos;

/// A worker's trainer.
pub trait Trainer {
    /// The time that it asked for is there; at first, the time at which it begins.
    fn wake(&mut self, now: Nanos, desk: &mut Desk);
    /// An operation of a lane has ended.
    fn completed(&mut self, now: Nanos, lane: usize, completion: Completion, desk: &mut Desk);
}

/// What a trainer wants.
#[derive(Default)]
pub struct Desk {
    /// Operations to be submitted, each with its lane.
    pub submits: Vec<(usize, Operation)>,
    /// When to wake it.
    pub wake_at: Option<Nanos>,
}

/// A tensor without memory of its own: zeros in, anything out; a chunk at a time.
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

/// What one worker's trainer does over and over.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Lanes that its tensors are dealt to, in turn.
    pub lanes: usize,
    /// Tensors of a step, submitted together.
    pub tensors: usize,
    /// Elements of each.
    pub elements: usize,
    /// Bytes of a chunk.
    pub chunk: usize,
    /// The pause between a step's last result and the next step: the off phase.
    pub pause: Nanos,
    /// When to begin.
    pub from: Nanos,
    /// No step begins any more from here on.
    pub until: Nanos,
}

/// What a trainer has seen.
#[derive(Debug, Default)]
pub struct Diary {
    /// When each step ended.
    pub steps: Vec<Nanos>,
    /// When each tensor's last result came; the elements of each are the plan's.
    pub tensors: Vec<Nanos>,
    /// Operations that ended in an error.
    pub failed: Vec<String>,
}

/// A trainer by plan.
pub struct Steps {
    plan: Plan,
    open: usize,
    signature: u32,
    diary: Rc<RefCell<Diary>>,
}

impl Steps {
    /// One that writes down what it sees.
    pub fn new(plan: Plan, diary: Rc<RefCell<Diary>>) -> Steps {
        Steps { plan, open: 0, signature: 0, diary }
    }
}

impl Trainer for Steps {
    fn wake(&mut self, now: Nanos, desk: &mut Desk) {
        if now < self.plan.from {
            desk.wake_at = Some(self.plan.from);
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
            desk.submits.push((tensor % self.plan.lanes, operation));
        }
        self.open = self.plan.tensors;
    }

    fn completed(&mut self, now: Nanos, _lane: usize, completion: Completion, desk: &mut Desk) {
        let mut diary = self.diary.borrow_mut();
        if let Err(error) = completion.result {
            diary.failed.push(error.to_string());
        }
        diary.tensors.push(now);
        self.open -= 1;
        if self.open == 0 {
            diary.steps.push(now);
            desk.wake_at = Some(now + self.plan.pause);
        }
    }
}
