//! The trainer of one worker: submits its tensors on time and compares what comes back with what is expected.

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
    trainer::{CommandQueue, Trainer},
};
use sumac_transport::{Buffer, Completion, DType, OpError, Operation};

use crate::{
    scenario::{JobPlan, Replaced, Tensor},
    tensors::{self, Chunk, Form, must_fail, overlap},
};

/// The expected results of a job, and what its workers have received so far.
pub struct Truth {
    pub job: JobPlan,
    /// By rank and tensor.
    pub inputs: Vec<Vec<Vec<u8>>>,
    /// By tensor.
    pub outputs: Vec<Vec<Chunk>>,
    /// The forms that fit all workers so far, by tensor and chunk.
    pub forms: Vec<Vec<Vec<Form>>>,
    /// By tensor, whether it succeeded, on the workers that completed it.
    pub ended_well: Vec<Option<bool>>,
    /// By rank and tensor, whether the operation has ended; and the number of those that have not.
    pub ended: Vec<Vec<bool>>,
    pub open: usize,
    /// By tensor, the last worker's completion.
    pub ends: Vec<Nanos>,
    /// By tensor, whether it runs in the job's current incarnation.
    pub runs: Vec<bool>,
    /// Whether the job fails at this moment, to begin anew.
    pub is_restarting: bool,
    /// Completions with NaN in a chunk.
    pub carried: u64,
}

/// A worker's trainer.
pub struct Checker {
    rank: usize,
    truth: Rc<RefCell<Truth>>,
    /// The next tensor to submit.
    next: usize,
    /// By tensor, the number of first chunks that were summed before this worker started; `None`: all of
    /// them.
    skips: Vec<Option<u64>>,
    /// The operations of each lane: the tensor, and the fence around its memory.
    running: Vec<Vec<(usize, Arc<AtomicBool>)>>,
}

impl Checker {
    pub fn new(rank: usize, truth: Rc<RefCell<Truth>>) -> Checker {
        let (lanes, tensors) = (usize::from(truth.borrow().job.lanes), truth.borrow().job.tensors.len());
        Checker { rank, truth, next: 0, skips: vec![Some(0); tensors], running: vec![Vec::new(); lanes] }
    }

    /// The trainer of a worker that takes a dead one's place, whose lanes begin with chunks `resume`.
    pub fn taking_over(rank: usize, truth: Rc<RefCell<Truth>>, resume: &[u32]) -> Checker {
        let skips = truth.borrow().skips(resume);
        Checker::skipping(rank, truth, skips)
    }

    /// The trainer of a worker of a job that begins anew with the tensors that run.
    pub fn restarted(rank: usize, truth: Rc<RefCell<Truth>>) -> Checker {
        let skips = truth.borrow().runs.iter().map(|runs| runs.then_some(0)).collect();
        Checker::skipping(rank, truth, skips)
    }

    fn skipping(rank: usize, truth: Rc<RefCell<Truth>>, skips: Vec<Option<u64>>) -> Checker {
        truth.borrow_mut().begin_anew(rank, &skips);
        Checker { skips, ..Checker::new(rank, truth) }
    }
}

impl Trainer for Checker {
    fn wake(&mut self, now: Nanos, commands: &mut CommandQueue) {
        let truth = self.truth.borrow();
        while let Some(tensor) = truth.job.tensors.get(self.next) {
            let Some(skip) = self.skips[self.next] else {
                self.next += 1;
                continue;
            };
            let at = tensor.at + truth.job.lateness[self.rank];
            if at > now {
                commands.wake_at = Some(at);
                return;
            }
            let lane = usize::from(tensor.lane);
            let fence = Arc::new(AtomicBool::new(false));
            let memory = (truth.inputs[self.rank][self.next].clone(), fence.clone());
            let world = truth.inputs.len();
            let operation = operation(tensor, self.next, self.rank, world, memory);
            commands.submits.push((lane, Operation { skip, ..operation }));
            self.running[lane].push((self.next, fence));
            self.next += 1;
        }
    }

    fn completed(&mut self, now: Nanos, lane: usize, completion: Completion, _: &mut CommandQueue) {
        let (number, fence) = self.running[lane].remove(0);
        fence.store(true, Ordering::Relaxed);
        let mut truth = self.truth.borrow_mut();
        if truth.is_restarting && matches!(completion.result, Err(OpError::Job(_))) {
            return;
        }
        let tensor = truth.job.tensors[number];
        let what = format!("job {}, rank {}, tensor {number}, {tensor:?}", truth.job.params.job, self.rank);
        truth.open -= 1;
        truth.ended[self.rank][number] = true;
        truth.ends[number] = now;
        if must_fail(&truth.job, &tensor) {
            return Truth::check_culprit(self.rank, &tensor, &completion.result, &what);
        }
        truth.carried += u64::from(tensor.poison.is_some());
        let is_part = self.skips[number] != Some(0);
        if truth.check_result(number, &completion.result, is_part, &what) {
            let memory = completion.buffer.input(0, tensor.count * tensor.dtype.size());
            truth.check(self.rank, number, completion.from, memory, &what);
        }
    }
}

impl Truth {
    /// The inputs of a job's workers and the expected results.
    pub fn new(plan: &JobPlan, seed: u64) -> Truth {
        let world = usize::from(plan.params.world);
        let inputs: Vec<_> = (0..world).map(|rank| tensors::inputs(plan, seed, rank, 0)).collect();
        let numbers = 0..plan.tensors.len();
        let mut outputs: Vec<_> = numbers.map(|number| tensors::outputs(plan, number, &inputs, 0)).collect();
        if let Some(Replaced { rank, .. }) = plan.replaced {
            let mut inputs = inputs.clone();
            inputs[rank] = tensors::inputs(plan, seed, rank, 1);
            for (number, chunks) in outputs.iter_mut().enumerate() {
                let after = tensors::outputs(plan, number, &inputs, 1);
                chunks.iter_mut().zip(after).for_each(|(chunk, after)| chunk.or(after));
            }
        }
        let forms = |chunk: &tensors::Chunk| chunk.allowed.iter().map(|(form, _)| *form).collect();
        let forms = outputs.iter().map(|chunks| chunks.iter().map(forms).collect()).collect();
        let tensors = plan.tensors.len();
        Truth {
            job: plan.clone(),
            inputs,
            outputs,
            forms,
            ended_well: vec![None; tensors],
            ended: vec![vec![false; tensors]; world],
            open: world * tensors,
            ends: vec![0; tensors],
            runs: vec![true; tensors],
            is_restarting: false,
            carried: 0,
        }
    }

    /// Resets a rank whose new worker has these operations before it.
    fn begin_anew(&mut self, rank: usize, skips: &[Option<u64>]) {
        self.ended[rank] = skips.iter().map(Option::is_none).collect();
        self.open = self.ended.iter().flatten().filter(|ended| !**ended).count();
    }

    /// Begins the job anew with the first tensor of each lane that any worker lacks.
    pub fn restart(&mut self) {
        self.is_restarting = false;
        for lane in 0..usize::from(self.job.lanes) {
            let has_ended = |tensor: &usize| self.ended.iter().all(|ended| ended[*tensor]);
            let missing = self.job.of_lane(lane).skip_while(has_ended);
            let missing: Vec<usize> = missing.collect();
            self.job.of_lane(lane).for_each(|tensor| self.runs[tensor] = missing.contains(&tensor));
        }
    }

    /// The number of each tensor's first chunks that come before chunks `resume` of the lanes; `None`: all.
    fn skips(&self, resume: &[u32]) -> Vec<Option<u64>> {
        let mut next = vec![0u32; resume.len()];
        let skip = |tensor: &Tensor| {
            let lane = usize::from(tensor.lane);
            let first = next[lane];
            let chunks = self.job.stream_chunks(first, tensor);
            next[lane] += chunks as u32;
            let skip = chunks.min(u64::from(resume[lane].saturating_sub(first)));
            (skip < chunks).then_some(skip)
        };
        self.job.tensors.iter().map(skip).collect()
    }

    /// Checks that an operation with a value that cannot be summed fails, and that the error names it.
    fn check_culprit(rank: usize, tensor: &Tensor, result: &Result<(), OpError>, what: &str) {
        let Some((culprit, at)) = tensor.poison else { return };
        let at = tensor.base() as usize + at;
        let is_named = match result {
            Err(
                OpError::Saturated { index, .. }
                | OpError::IntegerTooLarge { index, .. }
                | OpError::NotFinite { index, .. },
            ) => rank == culprit && *index == at,
            Err(OpError::Peer { first, last }) => rank != culprit && (*first..=*last).contains(&at),
            _ => false,
        };
        assert!(is_named, "{what}: {result:?}");
    }

    /// Checks whether an operation may have succeeded or failed; returns whether it succeeded. A sum of
    /// integers fails where it overflows, and may fail where those of some workers do; on all workers or on
    /// none, but for a replacement that came in the middle (`is_part`).
    fn check_result(
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
            Ok(()) => assert!(!must_fail || is_part, "{what}: the sum overflows"),
            Err(OpError::SumTooLarge { .. }) if is_integers && may_fail => {}
            Err(why) => panic!("{what}: {why}"),
        }
        if is_part {
            return result.is_ok();
        }
        let ended_well = self.ended_well[number].get_or_insert(result.is_ok());
        assert_eq!(*ended_well, result.is_ok(), "{what}: not the result of the other workers");
        *ended_well
    }

    /// Compares a worker's memory from element `from` on with the expected results.
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
                assert!(
                    memory[place(&rest)] == input[place(&rest)],
                    "{what}: chunk {at}: written outside of its part"
                );
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

/// Memory that may be read and written only where the worker contributes and receives, until the fence is
/// `open`.
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
    Operation { base: tensor.base(), gives, takes, ..whole }
}
