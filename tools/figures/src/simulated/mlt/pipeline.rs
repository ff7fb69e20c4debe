//! A worker and a server of training, whatever carries their tensors. A worker computes layer by layer:
//! forward, each layer as soon as its parameters are here, then backward, after each layer of which its
//! gradients go to the servers. A server sends the parameters of a part when all gradients of it are in.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sumac_sim::events::Nanos;

use super::model::Model;

/// A stage lasts longer by up to one part in so many: workers differ.
const JITTER: Nanos = 10;

/// One tensor's part from a worker to its server, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    pub worker: usize,
    pub iteration: usize,
    pub part: usize,
    pub is_pull: bool,
}

impl Transfer {
    /// A number that no other transfer between the two has.
    pub fn number(&self, model: &Model) -> u32 {
        (((self.iteration * model.parts.len() + self.part) * 2) + usize::from(self.is_pull)) as u32
    }
}

/// Times of one job.
#[derive(Debug, Default)]
pub struct Log {
    started: BTreeMap<Transfer, Nanos>,
    /// Completion times of transfers in nanoseconds.
    pub times: Vec<f64>,
    /// Workers that have ended, and the time of the last one.
    pub ended: usize,
    pub end: Nanos,
    /// Chunks that were expected and that were lost, and of these the important ones; all important ones.
    pub chunks: u64,
    pub important: u64,
    pub lost: u64,
    pub lost_important: u64,
    pub failed: Option<String>,
}

impl Log {
    pub fn start(&mut self, now: Nanos, transfer: Transfer) {
        self.started.insert(transfer, now);
    }

    pub fn complete(&mut self, now: Nanos, transfer: Transfer) {
        if let Some(started) = self.started.remove(&transfer) {
            self.times.push((now - started) as f64);
        }
    }
}

pub type SharedLog = Rc<RefCell<Log>>;

/// An action of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends the gradients of a part, and wants its parameters.
    Push(Transfer),
    WakeAt(Nanos),
}

/// A worker.
pub struct Pipeline {
    model: Rc<Model>,
    log: SharedLog,
    rng: ChaCha8Rng,
    worker: usize,
    iterations: usize,
    iteration: usize,
    /// The stage: forward through the layers, and back.
    stage: usize,
    /// The end of the stage, once it has begun.
    until: Option<Nanos>,
    /// By layer, parts whose parameters are not here.
    waiting: Vec<usize>,
}

impl Pipeline {
    pub fn new(model: Rc<Model>, log: SharedLog, worker: usize, iterations: usize, seed: u64) -> Pipeline {
        let rng = ChaCha8Rng::seed_from_u64(seed << 16 | worker as u64);
        let waiting = vec![0; model.layers];
        Pipeline { model, log, rng, worker, iterations, iteration: 0, stage: 0, until: None, waiting }
    }

    /// Goes on when a stage has ended.
    pub fn wake(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
            self.end_stage(now, &mut actions);
        }
        self.begin_stage(now, &mut actions);
        actions
    }

    /// The parameters of a part are here.
    pub fn pulled(&mut self, now: Nanos, part: usize) -> Vec<Action> {
        self.waiting[self.model.parts[part].layer] -= 1;
        if self.iteration == self.iterations && self.waiting.iter().all(|parts| *parts == 0) {
            let mut log = self.log.borrow_mut();
            (log.ended, log.end) = (log.ended + 1, now);
        }
        let mut actions = Vec::new();
        self.begin_stage(now, &mut actions);
        actions
    }

    fn end_stage(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let layers = self.model.layers;
        if self.stage >= layers {
            let layer = 2 * layers - 1 - self.stage;
            for part in self.model.of_layer(layer) {
                let (worker, iteration) = (self.worker, self.iteration);
                let transfer = Transfer { worker, iteration, part, is_pull: false };
                self.waiting[layer] += 1;
                self.log.borrow_mut().start(now, transfer);
                actions.push(Action::Push(transfer));
            }
        }
        self.stage += 1;
        if self.stage == 2 * layers {
            (self.stage, self.iteration) = (0, self.iteration + 1);
        }
    }

    fn begin_stage(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let is_forward = self.stage < self.model.layers;
        let has_parameters = !is_forward || self.waiting[self.stage] == 0;
        if self.until.is_some() || self.iteration == self.iterations || !has_parameters {
            return;
        }
        let time = self.model.forward * if is_forward { 1 } else { 2 };
        let until = now + time + self.rng.random_range(0..=time / JITTER);
        self.until = Some(until);
        actions.push(Action::WakeAt(until));
    }
}

/// The gradients that a server has.
#[derive(Debug, Default)]
pub struct Gathered {
    counts: BTreeMap<(usize, usize), usize>,
}

impl Gathered {
    /// Records the gradients of one worker. Returns whether all of `workers` are in.
    pub fn add(&mut self, transfer: Transfer, workers: usize) -> bool {
        let count = self.counts.entry((transfer.iteration, transfer.part)).or_default();
        *count += 1;
        *count == workers
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Parameters come at once, but for one part of the front layer: the next forward pass waits for it
    /// alone.
    #[test]
    fn the_forward_pass_waits_for_its_layer() {
        let model = Rc::new(Model::resnet50(4, 32));
        let log = SharedLog::default();
        let mut pipeline = Pipeline::new(model.clone(), log.clone(), 3, 2, 1);
        let (mut now, mut pushed, mut late) = (0, Vec::new(), None);
        let mut actions = VecDeque::from(pipeline.wake(now));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::WakeAt(at) => {
                    now = at;
                    actions.extend(pipeline.wake(now));
                }
                Action::Push(transfer) => {
                    pushed.push(transfer);
                    if (transfer.part, transfer.iteration) == (0, 0) {
                        late = Some(transfer);
                    } else {
                        actions.extend(pipeline.pulled(now, transfer.part));
                    }
                }
            }
        }
        assert_eq!(pushed.len(), model.parts.len(), "one step");
        assert_eq!(pushed.last(), late.as_ref(), "the front layer is the last");
        assert_eq!(log.borrow().ended, 0);
        assert!(matches!(pipeline.pulled(now, 0)[..], [Action::WakeAt(_)]), "the second step begins");
    }
}
