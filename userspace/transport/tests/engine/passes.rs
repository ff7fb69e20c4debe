//! Passes over a tensor: one per transmission, one per result, and no other.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::support::{Lone, block, job};
use sumac_transport::{
    Arithmetic, Buffer, DType, DynamicParams, JobParams, LocalPart, LocalSum, NonFinitePolicy, WorkerBuffer,
};

const SIZE: usize = 4;

/// The number of reads of each element.
#[derive(Clone)]
struct Counts {
    reads: Arc<Vec<AtomicUsize>>,
    writes: Arc<Vec<AtomicUsize>>,
}

impl Counts {
    fn new(elements: usize) -> Counts {
        let zeros = || Arc::new((0..elements).map(|_| AtomicUsize::new(0)).collect());
        Counts { reads: zeros(), writes: zeros() }
    }

    fn seen(&self) -> (Vec<usize>, Vec<usize>) {
        let load = |counts: &[AtomicUsize]| counts.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        (load(&self.reads), load(&self.writes))
    }
}

/// Memory that counts. The engine has no way to it but this.
struct Counting {
    bytes: Vec<u8>,
    counts: Counts,
}

fn count(counts: &[AtomicUsize], byte_offset: usize, len: usize) {
    assert!(byte_offset.is_multiple_of(SIZE) && len.is_multiple_of(SIZE), "whole elements");
    for counter in &counts[byte_offset / SIZE..(byte_offset + len) / SIZE] {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Buffer for Counting {
    fn input(&self, byte_offset: usize, len: usize) -> &[u8] {
        count(&self.counts.reads, byte_offset, len);
        self.bytes.input(byte_offset, len)
    }

    fn output(&mut self, byte_offset: usize, len: usize) -> &mut [u8] {
        count(&self.counts.writes, byte_offset, len);
        self.bytes.output(byte_offset, len)
    }
}

/// 10 chunks of 16 elements and one of 5, in 4 slots.
const ELEMENTS: usize = 165;

fn start(params: JobParams) -> (Lone, Counts) {
    let mut lone = Lone::ready(params, 50_000);
    let counts = Counts::new(ELEMENTS);
    lone.submit(
        DType::Float32,
        ELEMENTS,
        Counting { bytes: vec![0; ELEMENTS * SIZE], counts: counts.clone() },
    );
    (lone, counts)
}

/// Each element is read and written once when nothing is lost.
fn passes(params: JobParams) -> (Vec<usize>, Vec<usize>) {
    let (mut lone, counts) = start(params);
    lone.finish();
    assert!(lone.engine.poll_completion().is_some_and(|completion| completion.result.is_ok()));
    counts.seen()
}

#[test]
fn without_loss_every_element_is_read_once_and_written_once() {
    assert_eq!(passes(job(2, 4, 16)), (vec![1; ELEMENTS], vec![1; ELEMENTS]));
}

/// The passes over each rank's tensor where the worker has three. `takers`: the ranks whose result is
/// written.
fn passes_of_ranks(params: JobParams, takers: usize) {
    let counts: Vec<Counts> = (0..3).map(|_| Counts::new(ELEMENTS)).collect();
    let part = |(rank, counts): (usize, &Counts)| LocalPart {
        gives: 0..ELEMENTS,
        takes: if rank < takers { 0..ELEMENTS } else { 0..0 },
        buffer: Box::new(Counting { bytes: 1f32.to_ne_bytes().repeat(ELEMENTS), counts: counts.clone() }),
    };
    let sum = LocalSum {
        dtype: DType::Float32,
        arithmetic: Arithmetic::Sum,
        not_finite: NonFinitePolicy::Error,
        count: ELEMENTS,
        base: 0,
        parts: counts.iter().enumerate().map(part).collect(),
    };
    let mut lone = Lone::ready(JobParams { local_world: 3, ..params }, 50_000);
    lone.submit(DType::Float32, ELEMENTS, WorkerBuffer::new(sum));
    lone.finish();
    assert!(lone.engine.poll_completion().is_some_and(|completion| completion.result.is_ok()));
    for (rank, counts) in counts.iter().enumerate() {
        assert_eq!(counts.seen(), (vec![1; ELEMENTS], vec![usize::from(rank < takers); ELEMENTS]));
    }
}

#[test]
fn every_ranks_element_is_read_once_and_written_once() {
    // All of them, or the one that writes for all.
    for takers in [3, 1] {
        passes_of_ranks(job(2, 4, 16), takers);
        // The exponent's pass is over the sums.
        passes_of_ranks(block(2, 4, 16), takers);
        passes_of_ranks(dynamic(block(2, 4, 16)), takers);
    }
}

fn dynamic(params: JobParams) -> JobParams {
    JobParams { dynamic: Some(DynamicParams::new(64).with_window(8)), ..params }
}

#[test]
fn neither_do_dynamic_jobs_touch_an_element_more_often() {
    assert_eq!(passes(dynamic(job(2, 4, 16))), (vec![1; ELEMENTS], vec![1; ELEMENTS]));
}

/// The exponent of a chunk goes out before the chunk does: in the exponent chunk or with the chunk a window
/// before it.
#[test]
fn block_exponents_cost_one_more_read() {
    assert_eq!(passes(block(2, 4, 16)), (vec![2; ELEMENTS], vec![1; ELEMENTS]));
    assert_eq!(passes(dynamic(block(2, 4, 16))), (vec![2; ELEMENTS], vec![1; ELEMENTS]));
}

#[test]
fn a_retransmission_reads_again_and_a_duplicate_writes_nothing() {
    let (mut lone, counts) = start(job(2, 4, 16));
    let first = lone.send_all();
    // Nothing is heard: the timer asks for two chunks at a time, one of them the first, and both are missing.
    let mut again = Vec::new();
    for _ in 0..3 {
        lone.expire();
        let questions = lone.send_all();
        assert_eq!(lone.engine.stats().elements_sent, 64 + again.len() as u64 * 16, "questions read nothing");
        questions.iter().for_each(|question| lone.take(&question.answer()));
        again.extend(lone.send_all());
    }
    assert_eq!((first.len(), again.len()), (4, 6));
    for sent in first.iter().chain(&again) {
        lone.take(&sent.answer());
        lone.take(&sent.answer());
    }
    let (reads, writes) = counts.seen();
    assert_eq!((&reads[..16], &reads[16..64]), (&[4; 16][..], &[2; 48][..]), "once per transmission");
    assert_eq!(writes[..64], [1; 64], "once per chunk");
    assert_eq!((&reads[64..], &writes[64..]), (&[0; 101][..], &[0; 101][..]), "nothing ahead of its turn");
    let stats = lone.engine.stats();
    assert_eq!(stats.elements_sent, reads.iter().sum::<usize>() as u64);
    assert_eq!(stats.elements_received, writes.iter().sum::<usize>() as u64);
}
