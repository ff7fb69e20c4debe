//! Workers with several ranks, whose tensors are summed as the engine reads them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::direct_network::Network;
use crate::support::{Lone, SIGNATURE, block, job};
use sumac_transport::{
    Arithmetic, Buffer, DType, DirectWorkerBuffer, Exchange, JobParams, LocalFault, LocalPart, LocalSum,
    NonFinitePolicy, OpError, Operation, Pattern, WorkerBuffer,
};

/// The ranks' tensors after the operation, by rank.
type Tensors = Arc<Mutex<BTreeMap<usize, Vec<u8>>>>;

/// A rank's tensor, in place, that is kept when the operation has ended.
struct Tensor {
    rank: usize,
    bytes: Vec<u8>,
    kept: Tensors,
}

impl Buffer for Tensor {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        self.bytes.input(byte_offset, len)
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        self.bytes.output(byte_offset, len)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.kept.lock().expect("no thread").insert(self.rank, std::mem::take(&mut self.bytes));
    }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_ne_bytes).collect()
}

fn integers(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_ne_bytes).collect()
}

/// A worker's ranks, from `first` on. `takes`: by rank.
fn sum(
    dtype: DType,
    arithmetic: Arithmetic,
    first: usize,
    tensors: Vec<Vec<u8>>,
    takes: impl Fn(usize) -> Range<usize>,
    kept: &Tensors,
) -> LocalSum {
    let count = tensors[0].len() / dtype.size();
    let parts = tensors.into_iter().zip(first..).map(|(bytes, rank)| LocalPart {
        gives: 0..count,
        takes: takes(rank),
        buffer: Box::new(Tensor { rank, bytes, kept: kept.clone() }),
    });
    let not_finite = NonFinitePolicy::Error;
    LocalSum { dtype, arithmetic, not_finite, count, base: 0, parts: parts.collect() }
}

/// The outcome of a worker of three ranks. The other worker contributes zeros.
fn run(params: JobParams, sum: LocalSum) -> (Result<(), OpError>, Option<LocalFault>) {
    let (dtype, arithmetic, count) = (sum.dtype, sum.arithmetic, sum.count);
    let takes = sum.parts.iter().map(|part| part.takes.clone());
    let hull = takes.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).expect("ranks");
    let mut lone = Lone::ready(JobParams { local_world: 3, ..params }, 50_000);
    let buffer = Box::new(WorkerBuffer::new(sum));
    lone.operate(Operation {
        takes: hull,
        ..Operation::allreduce(SIGNATURE, dtype, arithmetic, count, buffer)
    });
    lone.finish();
    let end = lone.engine.poll_completion().expect("it has ended");
    (end.result, end.buffer.fault())
}

const COUNT: usize = 75;

fn value(rank: usize, at: usize) -> i32 {
    (rank * 1000 + at) as i32
}

fn tensors<T>(of: impl Fn(usize) -> T) -> Vec<T> {
    (0..3).map(of).collect()
}

#[test]
fn every_rank_has_the_sum_of_all() {
    let kept = Tensors::default();
    let own = tensors(|rank| integers((0..COUNT).map(|at| value(rank, at))));
    let sum = sum(DType::Int32, Arithmetic::Sum, 0, own, |_| 0..COUNT, &kept);
    assert_eq!(run(job(2, 4, 16), sum), (Ok(()), None));
    let expected = integers((0..COUNT).map(|at| (0..3).map(|rank| value(rank, at)).sum()));
    assert!(kept.lock().unwrap().values().eq([&expected; 3]));
}

#[test]
fn a_mean_is_that_of_all_ranks_of_all_workers() {
    for dtype in [DType::Int32, DType::Float32] {
        let kept = Tensors::default();
        let own = tensors(|rank| match dtype {
            DType::Int32 => integers((0..COUNT).map(|at| value(rank, at))),
            _ => floats((0..COUNT).map(|at| value(rank, at) as f32)),
        });
        let sum = sum(dtype, Arithmetic::Mean, 0, own, |_| 0..COUNT, &kept);
        assert_eq!(run(job(2, 4, 16), sum), (Ok(()), None));
        let mean = |at| (0..3).map(|rank| f64::from(value(rank, at))).sum::<f64>() / 6.0;
        let kept = kept.lock().unwrap();
        for (at, word) in (0..).zip(kept[&2].as_chunks::<4>().0) {
            match dtype {
                DType::Int32 => assert_eq!(i32::from_ne_bytes(*word), mean(at).round_ties_even() as i32),
                _ => assert!((f64::from(f32::from_ne_bytes(*word)) - mean(at)).abs() < 1e-3, "{at}"),
            }
        }
        assert!(kept.values().all(|tensor| *tensor == kept[&0]));
    }
}

#[test]
fn each_rank_has_its_block() {
    let kept = Tensors::default();
    let own = tensors(|rank| integers((0..COUNT).map(|at| value(rank, at))));
    // Blocks end within packets of 16.
    let sum = sum(DType::Int32, Arithmetic::Sum, 0, own, |rank| rank * 25..(rank + 1) * 25, &kept);
    assert_eq!(run(block(2, 4, 16), sum), (Ok(()), None));
    for (rank, tensor) in &*kept.lock().unwrap() {
        let is_own = |at| at / 25 == *rank;
        let expected = (0..COUNT).map(|at| match is_own(at) {
            true => (0..3).map(|rank| value(rank, at)).sum(),
            false => value(*rank, at),
        });
        assert_eq!(*tensor, integers(expected), "rank {rank}");
    }
}

#[test]
fn the_rank_whose_value_is_not_finite_is_known() {
    let own = tensors(|rank| floats((0..COUNT).map(|at| if (rank, at) == (1, 40) { f32::NAN } else { 1.0 })));
    let sum = sum(DType::Float32, Arithmetic::Sum, 0, own, |_| 0..COUNT, &Tensors::default());
    let (result, fault) = run(job(2, 4, 16), sum);
    assert!(matches!(result, Err(OpError::NotFinite { index: 40, .. })), "{result:?}");
    let Some(LocalFault { part: Some(1), error: OpError::NotFinite { index: 40, value } }) = fault else {
        panic!("{fault:?}")
    };
    assert!(value.is_nan());
}

#[test]
fn a_sum_of_integers_that_is_too_large_fails() {
    for dynamic in [None, Some(sumac_transport::DynamicParams::new(64).with_window(8))] {
        let own = tensors(|_| integers((0..COUNT).map(|at| if at == 20 { 1 << 30 } else { 1 })));
        let sum = sum(DType::Int32, Arithmetic::Sum, 0, own, |_| 0..COUNT, &Tensors::default());
        let (result, fault) = run(JobParams { dynamic, ..job(2, 4, 16) }, sum);
        assert!(result.is_err());
        let error = OpError::SumTooLarge { first: 20, last: 20 };
        assert_eq!(fault, Some(LocalFault { part: None, error }));
    }
}

/// Two workers of three ranks, with loss.
fn run_direct(reduces_and: bool, takes: impl Fn(usize) -> Range<usize>) -> BTreeMap<usize, Vec<u8>> {
    const COUNT: usize = 6000;
    let kept = Tensors::default();
    let mut network = Network::new(2, 5, 0.05);
    for worker in 0..2 {
        let ranks = worker * 3..(worker + 1) * 3;
        let own = ranks.clone().map(|rank| integers((0..COUNT).map(|at| value(rank, at)))).collect();
        let sum = sum(DType::Int32, Arithmetic::Sum, worker * 3, own, &takes, &kept);
        let (first, last) = (takes(ranks.start), takes(ranks.end - 1));
        let owned = vec![0..COUNT / 2, COUNT / 2..COUNT];
        let distributes = reduces_and;
        let pattern =
            Pattern::Collective { reduces: true, distributes, owned, contributors: 0..2, ring: false };
        let whole = Operation::allreduce(
            9,
            DType::Int32,
            Arithmetic::Sum,
            COUNT,
            Box::new(DirectWorkerBuffer::new(sum)),
        );
        let exchange = Some(Box::new(Exchange { number: 0, pattern }));
        network.submit(worker, Operation { takes: first.start..last.end, exchange, ..whole });
    }
    network.run(1);
    for completion in network.completions.drain(..).flatten() {
        completion.result.expect("a sum");
    }
    std::mem::take(&mut *kept.lock().expect("no thread"))
}

#[test]
fn direct_workers_sum_all_ranks() {
    let sum = |at| (0..6).map(|rank| value(rank, at)).sum();
    for (rank, tensor) in run_direct(true, |_| 0..6000) {
        assert_eq!(tensor, integers((0..6000).map(sum)), "rank {rank}");
    }
    for (rank, tensor) in run_direct(false, |rank| rank * 1000..(rank + 1) * 1000) {
        let own = rank * 1000..(rank + 1) * 1000;
        let expected = (0..6000).map(|at| if own.contains(&at) { sum(at) } else { value(rank, at) });
        assert_eq!(tensor, integers(expected), "rank {rank}");
    }
}
