//! One worker of the simulated job: an engine per lane, a trainer that submits, and what it has been given back.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sumac_transport::{Buffer, Completion, CompletionQueue, Engine, OpError, OpId, Operation, Time, Tuning};

use crate::{
    patience::Patience,
    scenario::{Scenario, Tensor},
    support, tensors,
};

/// One lane of a worker.
pub struct Lane {
    pub engine: Engine,
    ended: CompletionQueue,
    pub patience: Patience,
    /// Frames that were delivered to the engine.
    pub frames: u64,
    /// The engine's operations, by the tensors' numbers, with the fences around their memory.
    running: VecDeque<(usize, Arc<AtomicBool>)>,
    next_id: u64,
    /// Tensors of the lane that were submitted, and that came back.
    pub submitted: usize,
    pub done: usize,
}

pub struct Worker {
    pub rank: u16,
    pub lanes: Vec<Lane>,
    pub inputs: Vec<Vec<u8>>,
    /// When the worker's timer event is scheduled.
    pub timer: Option<u64>,
    /// Whether its ring has no room.
    pub full: bool,
}

impl Worker {
    pub fn new(scenario: &Scenario, rank: u16) -> Worker {
        let lane = |lane| Lane {
            engine: engine(scenario, rank, lane, scenario.params.epoch),
            ended: CompletionQueue::default(),
            patience: Patience::default(),
            frames: 0,
            running: VecDeque::new(),
            next_id: 0,
            submitted: 0,
            done: 0,
        };
        let lanes = (0..scenario.lanes).map(lane).collect();
        Worker { rank, lanes, inputs: tensors::inputs(scenario, rank), timer: None, full: false }
    }

    pub fn submit(&mut self, now: u64, scenario: &Scenario, number: usize) {
        let tensor = &scenario.tensors[number];
        self.lanes[usize::from(tensor.lane)].submitted += 1;
        self.hand_in(now, scenario, number);
    }

    fn hand_in(&mut self, now: u64, scenario: &Scenario, number: usize) {
        let tensor = &scenario.tensors[number];
        let lane = &mut self.lanes[usize::from(tensor.lane)];
        if lane.engine.is_idle() {
            lane.patience.begin(now);
        }
        let fence = Arc::new(AtomicBool::new(false));
        let memory = (self.inputs[number].clone(), fence.clone());
        let operation = operation(tensor, number, self.rank, scenario.params.world, memory);
        let id = lane.engine.submit(Time(now), operation).map_err(|(error, _)| error);
        assert_eq!(id, Ok(OpId(lane.next_id)));
        lane.next_id += 1;
        lane.running.push_back((number, fence));
    }

    /// What came back of one lane: the tensor's number and its end.
    pub fn collect(&mut self, lane: usize) -> Option<(usize, Completion)> {
        let lane = &mut self.lanes[lane];
        while let Some(completion) = lane.engine.poll_completion() {
            lane.ended.push(completion);
        }
        let completion = lane.ended.pop()?;
        let (number, fence) = lane.running.pop_front().expect("something was submitted");
        fence.store(true, Ordering::Relaxed);
        if !matches!(completion.result, Err(OpError::Job(_))) {
            lane.done += 1;
        }
        Some((number, completion))
    }

    /// Begins the job anew in another epoch: hands in again what was submitted from the `resume`-th tensor of each lane
    /// on.
    pub fn restart(&mut self, now: u64, scenario: &Scenario, epoch: u16, resume: &[usize]) {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            assert!(lane.running.is_empty(), "everything was collected");
            lane.engine = engine(scenario, self.rank, at as u16, epoch);
            (lane.frames, lane.next_id, lane.done) = (0, 0, resume[at]);
            lane.ended = CompletionQueue::default();
            lane.patience = Patience::default();
        }
        for (at, from) in resume.iter().enumerate() {
            let submitted = self.lanes[at].submitted;
            let numbers: Vec<usize> = scenario.of_lane(at as u16).take(submitted).skip(*from).collect();
            numbers.into_iter().for_each(|number| self.hand_in(now, scenario, number));
        }
    }
}

fn engine(scenario: &Scenario, rank: u16, lane: u16, epoch: u16) -> Engine {
    let params = scenario.params_of(rank, lane, epoch);
    Engine::starting_at(params, &support::peers(), &Tuning::default(), scenario.first_seq)
        .expect("good parameters")
}

/// Memory that may be read and written only where the worker gives and takes, until the fence is `open`.
struct Fenced {
    bytes: Vec<u8>,
    gives: Range<usize>,
    takes: Range<usize>,
    open: Arc<AtomicBool>,
}

impl Fenced {
    fn check(&self, what: &str, range: &Range<usize>, allowed: &Range<usize>) {
        let is_inside = range.start >= allowed.start && range.end <= allowed.end;
        assert!(is_inside || self.open.load(Ordering::Relaxed), "{what} {range:?}, not of {allowed:?}");
    }
}

impl Buffer for Fenced {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        let range = byte_offset..byte_offset + len;
        self.check("reads", &range, &self.gives);
        &self.bytes[range]
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        let range = byte_offset..byte_offset + len;
        self.check("writes", &range, &self.takes);
        &mut self.bytes[range]
    }
}

fn operation(
    tensor: &Tensor,
    number: usize,
    rank: u16,
    world: u16,
    memory: (Vec<u8>, Arc<AtomicBool>),
) -> Operation {
    let (gives, takes) = tensor.parts(rank, world);
    let size = tensor.dtype.size();
    let in_bytes = |range: &Range<usize>| range.start * size..range.end * size;
    let (bytes, open) = memory;
    let buffer = Box::new(Fenced { bytes, gives: in_bytes(&gives), takes: in_bytes(&takes), open });
    Operation {
        signature: 0xabc0_0000 + number as u32,
        dtype: tensor.dtype,
        arithmetic: tensor.arithmetic(),
        count: tensor.count,
        base: 1000,
        buffer,
        gives,
        takes,
        skip: 0,
        priority: 0,
        loss_bound: 0.0,
    }
}
