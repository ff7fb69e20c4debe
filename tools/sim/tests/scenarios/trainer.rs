//! The trainer of one worker: submits its tensors in time, and holds what comes back against what must.

use std::{
    cell::RefCell,
    ops::Range,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use sumac_sim::{
    events::Nanos,
    trainer::{Desk, Trainer},
};
use sumac_transport::{Buffer, Completion, DType, OpError, Operation};

use crate::{
    scenario::{JobPlan, Tensor},
    tensors::{Chunk, Form, overlap},
};

/// What all workers of a job know together.
pub struct Truth {
    pub job: JobPlan,
    /// By rank and tensor.
    pub inputs: Vec<Vec<Vec<u8>>>,
    /// By tensor.
    pub outputs: Vec<Vec<Chunk>>,
    /// What chunks came out as, by tensor and chunk: the forms that fit all workers so far.
    pub forms: Vec<Vec<Vec<Form>>>,
    /// By tensor, whether it ended well, on all workers that are through it.
    pub ended_well: Vec<Option<bool>>,
    /// Operations that ended, of all workers.
    pub done: usize,
}

/// A worker's.
pub struct Checker {
    rank: usize,
    truth: Rc<RefCell<Truth>>,
    /// Tensors in the order of their times, and how many of them were submitted.
    next: usize,
    /// What each lane's engine is at: the tensor, and the fence around its memory.
    running: Vec<Vec<(usize, Arc<AtomicBool>)>>,
}

impl Checker {
    pub fn new(rank: usize, truth: Rc<RefCell<Truth>>) -> Checker {
        let lanes = usize::from(truth.borrow().job.lanes);
        Checker { rank, truth, next: 0, running: vec![Vec::new(); lanes] }
    }
}

impl Trainer for Checker {
    fn wake(&mut self, now: Nanos, desk: &mut Desk) {
        let truth = self.truth.borrow();
        while let Some(tensor) = truth.job.tensors.get(self.next) {
            let at = tensor.at + truth.job.lateness[self.rank];
            if at > now {
                desk.wake_at = Some(at);
                return;
            }
            let lane = usize::from(tensor.lane);
            let fence = Arc::new(AtomicBool::new(false));
            let memory = (truth.inputs[self.rank][self.next].clone(), fence.clone());
            let world = truth.inputs.len();
            desk.submits.push((lane, operation(tensor, self.next, self.rank, world, memory)));
            self.running[lane].push((self.next, fence));
            self.next += 1;
        }
    }

    fn completed(&mut self, _: Nanos, lane: usize, completion: Completion, _: &mut Desk) {
        let (number, fence) = self.running[lane].remove(0);
        fence.store(true, Ordering::Relaxed);
        let mut truth = self.truth.borrow_mut();
        let tensor = truth.job.tensors[number];
        let what = format!("job {}, rank {}, tensor {number}, {tensor:?}", truth.job.params.job, self.rank);
        truth.done += 1;
        if truth.must_have_ended_so(number, &completion.result, &what) {
            let memory = completion.buffer.input(0, tensor.count * tensor.dtype.size());
            truth.check(self.rank, number, memory, &what);
        }
    }
}

impl Truth {
    /// Says whether an operation ended well, as it must have or may have: a sum of integers fails where it does not fit, and may
    /// fail where those of some workers do not; for all or for none.
    fn must_have_ended_so(&mut self, number: usize, result: &Result<(), OpError>, what: &str) -> bool {
        let chunks = &self.outputs[number];
        let (may_fail, must_fail) =
            (chunks.iter().any(|chunk| !chunk.is_safe), chunks.iter().any(|chunk| chunk.allowed.is_empty()));
        let is_integers = self.job.tensors[number].dtype == DType::I32;
        match result {
            Ok(()) => assert!(!must_fail, "{what}: a sum that does not fit is none"),
            Err(OpError::SumTooLarge { .. }) if is_integers && may_fail => {}
            Err(why) => panic!("{what}: {why}"),
        }
        let ended_well = self.ended_well[number].get_or_insert(result.is_ok());
        assert_eq!(*ended_well, result.is_ok(), "{what}: another worker's ended otherwise");
        *ended_well
    }

    fn check(&mut self, rank: usize, number: usize, memory: &[u8], what: &str) {
        let tensor = self.job.tensors[number];
        let (_, takes) = tensor.parts(rank, self.inputs.len());
        let size = tensor.dtype.size();
        let input = &self.inputs[rank][number];
        for (at, chunk) in self.outputs[number].iter().enumerate() {
            let taken = overlap(&takes, &chunk.span);
            let place = |range: &Range<usize>| range.start * size..range.end * size;
            for rest in [chunk.span.start..taken.start, taken.end..chunk.span.end] {
                assert!(memory[place(&rest)] == input[place(&rest)], "{what}: chunk {at}: not its to write");
            }
            let own = &memory[place(&taken)];
            let inside = taken.start - chunk.span.start..taken.end - chunk.span.start;
            let fits = |form: &Form| {
                let bytes = chunk.allowed.iter().find(|(allowed, _)| allowed == form);
                bytes.is_some_and(|(_, bytes)| bytes[place(&inside)] == *own)
            };
            let forms = &mut self.forms[number][at];
            forms.retain(fits);
            assert!(!forms.is_empty(), "{what}: chunk {at} of {} is wrong", self.outputs[number].len());
        }
    }
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
    rank: usize,
    world: usize,
    memory: (Vec<u8>, Arc<AtomicBool>),
) -> Operation {
    let (gives, takes) = tensor.parts(rank, world);
    let size = tensor.dtype.size();
    let in_bytes = |range: &Range<usize>| range.start * size..range.end * size;
    let (bytes, open) = memory;
    let buffer = Box::new(Fenced { bytes, gives: in_bytes(&gives), takes: in_bytes(&takes), open });
    let whole = Operation::allreduce(
        0xabc0_0000 + number as u32,
        tensor.dtype,
        tensor.arithmetic(),
        tensor.count,
        buffer,
    );
    Operation { base: 1000, gives, takes, ..whole }
}
