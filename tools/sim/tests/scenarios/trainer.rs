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
    /// By rank and tensor, whether the operation has ended; and how many have not.
    pub ended: Vec<Vec<bool>>,
    pub open: usize,
}

/// A worker's.
pub struct Checker {
    rank: usize,
    truth: Rc<RefCell<Truth>>,
    /// Tensors in the order of their times, and how many of them were submitted.
    next: usize,
    /// By tensor: how many of its first chunks were summed before this worker came; `None`: all of them.
    skips: Vec<Option<u64>>,
    /// What each lane's engine is at: the tensor, and the fence around its memory.
    running: Vec<Vec<(usize, Arc<AtomicBool>)>>,
}

impl Checker {
    pub fn new(rank: usize, truth: Rc<RefCell<Truth>>) -> Checker {
        let (lanes, tensors) = (usize::from(truth.borrow().job.lanes), truth.borrow().job.tensors.len());
        Checker { rank, truth, next: 0, skips: vec![Some(0); tensors], running: vec![Vec::new(); lanes] }
    }

    /// Of a worker that takes a dead one's place, whose lanes begin with these chunks.
    pub fn taking_over(rank: usize, truth: Rc<RefCell<Truth>>, resume: &[u32]) -> Checker {
        let skips = truth.borrow().skips(resume);
        truth.borrow_mut().begin_anew(rank, &skips);
        Checker { skips, ..Checker::new(rank, truth) }
    }
}

impl Trainer for Checker {
    fn wake(&mut self, now: Nanos, desk: &mut Desk) {
        let truth = self.truth.borrow();
        while let Some(tensor) = truth.job.tensors.get(self.next) {
            let Some(skip) = self.skips[self.next] else {
                self.next += 1;
                continue;
            };
            let at = tensor.at + truth.job.lateness[self.rank];
            if at > now {
                desk.wake_at = Some(at);
                return;
            }
            let lane = usize::from(tensor.lane);
            let fence = Arc::new(AtomicBool::new(false));
            let memory = (truth.inputs[self.rank][self.next].clone(), fence.clone());
            let world = truth.inputs.len();
            let operation = operation(tensor, self.next, self.rank, world, memory);
            desk.submits.push((lane, Operation { skip, ..operation }));
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
        truth.open -= 1;
        truth.ended[self.rank][number] = true;
        let is_part = self.skips[number] != Some(0);
        if truth.must_have_ended_so(number, &completion.result, is_part, &what) {
            let memory = completion.buffer.input(0, tensor.count * tensor.dtype.size());
            truth.check(self.rank, number, completion.from, memory, &what);
        }
    }
}

impl Truth {
    /// Another worker is at a rank, which has these operations before it.
    fn begin_anew(&mut self, rank: usize, skips: &[Option<u64>]) {
        self.ended[rank] = skips.iter().map(Option::is_none).collect();
        self.open = self.ended.iter().flatten().filter(|ended| !**ended).count();
    }

    /// How many of each tensor's first chunks come before these ones of the lanes; `None`: all.
    fn skips(&self, resume: &[u32]) -> Vec<Option<u64>> {
        let mut rest: Vec<u64> = resume.iter().map(|chunk| u64::from(*chunk)).collect();
        let skip = |tensor: &Tensor| {
            let chunks = self.job.params.chunks(tensor.dtype, tensor.arithmetic(), tensor.count);
            let rest = &mut rest[usize::from(tensor.lane)];
            let skip = chunks.min(*rest);
            *rest -= skip;
            (skip < chunks).then_some(skip)
        };
        self.job.tensors.iter().map(skip).collect()
    }

    /// Says whether an operation ended well, as it must have or may have: a sum of integers fails where it does not fit, and may
    /// fail where those of some workers do not; for all or for none but one that came when a part was done (`is_part`).
    fn must_have_ended_so(
        &mut self,
        number: usize,
        result: &Result<(), OpError>,
        is_part: bool,
        what: &str,
    ) -> bool {
        let chunks = &self.outputs[number];
        let (may_fail, must_fail) =
            (chunks.iter().any(|chunk| !chunk.is_safe), chunks.iter().any(|chunk| chunk.allowed.is_empty()));
        let is_integers = self.job.tensors[number].dtype == DType::Int32;
        match result {
            Ok(()) => assert!(!must_fail || is_part, "{what}: a sum that does not fit is none"),
            Err(OpError::SumTooLarge { .. }) if is_integers && may_fail => {}
            Err(why) => panic!("{what}: {why}"),
        }
        if is_part {
            return result.is_ok();
        }
        let ended_well = self.ended_well[number].get_or_insert(result.is_ok());
        assert_eq!(*ended_well, result.is_ok(), "{what}: another worker's ended otherwise");
        *ended_well
    }

    /// Holds what a worker has from element `from` on against what it must have.
    fn check(&mut self, rank: usize, number: usize, from: usize, memory: &[u8], what: &str) {
        let tensor = self.job.tensors[number];
        let (_, takes) = tensor.parts(rank, self.inputs.len());
        let size = tensor.dtype.size();
        let input = &self.inputs[rank][number];
        for (at, chunk) in self.outputs[number].iter().enumerate() {
            if chunk.span.start < from {
                continue;
            }
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
