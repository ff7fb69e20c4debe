//! Every kind of operation with every type, and its expected results.

use sumac_client::{Client, Element, Job, OpOptions, Pending, Reduction, Tensor, bf16, f16};

pub const WORLD: u16 = 3;
/// Three blocks, and a partial last packet.
const COUNT: usize = 3 * 1111;

/// A type that represents small integers exactly.
pub trait Number: Element + PartialEq + std::fmt::Debug + Send {
    fn of(value: i32) -> Self;
}

impl Number for f32 {
    fn of(value: i32) -> f32 {
        value as f32
    }
}
impl Number for f16 {
    fn of(value: i32) -> f16 {
        f16::from_f32(value as f32)
    }
}
impl Number for bf16 {
    fn of(value: i32) -> bf16 {
        bf16::from_f32(value as f32)
    }
}
impl Number for i32 {
    fn of(value: i32) -> i32 {
        value
    }
}

/// Returns the element `i` of a rank: sums are exact in eight bits of mantissa.
fn value(rank: u16, i: usize) -> i32 {
    (i % 31) as i32 * if (i / 31 + usize::from(rank)).is_multiple_of(2) { 1 } else { -1 } + i32::from(rank)
}

fn filled<T: Number>(client: &Client, rank: u16) -> Tensor<T> {
    let mut tensor = client.tensor::<T>(COUNT).unwrap();
    for (i, place) in tensor.iter_mut().enumerate() {
        *place = T::of(value(rank, i));
    }
    tensor
}

pub fn ended<T: Element + std::fmt::Debug>(
    pending: Result<Pending<T>, Box<sumac_client::Failed<T>>>,
) -> Vec<T> {
    pending.unwrap().wait().unwrap().to_vec()
}

/// Returns element `i` of all ranks.
fn column(i: usize) -> impl Iterator<Item = i32> {
    (0..WORLD).map(move |rank| value(rank, i))
}

fn expect<T: Number>(what: &str, found: &[T], expected: impl Fn(usize) -> i32) {
    for (i, found) in found.iter().enumerate() {
        assert_eq!(*found, T::of(expected(i)), "{what}, {:?}, element {i}", T::DTYPE);
    }
}

/// Runs all kinds of operations in one job.
pub fn every_kind<T: Number>(client: &Client, job: &Job, rank: u16) {
    let with = |reduction| OpOptions { reduction, ..OpOptions::default() };
    let plain = OpOptions::default();
    let sums = ended(job.allreduce(filled::<T>(client, rank)));
    expect("sum", &sums, |i| column(i).sum());
    let least = ended(job.allreduce_with(filled::<T>(client, rank), with(Reduction::Min)));
    expect("min", &least, |i| column(i).min().unwrap());
    let greatest = ended(job.allreduce_with(filled::<T>(client, rank), with(Reduction::Max)));
    expect("max", &greatest, |i| column(i).max().unwrap());
    let sent = ended(job.broadcast(1, filled::<T>(client, rank), plain));
    expect("broadcast", &sent, |i| value(1, i));
    let reduced = ended(job.reduce(2, filled::<T>(client, rank), plain));
    expect("reduce", &reduced, |i| if rank == 2 { column(i).sum() } else { value(rank, i) });
    let own = job.block(COUNT);
    let scattered = ended(job.reduce_scatter(filled::<T>(client, rank), with(Reduction::Max)));
    expect("reduce_scatter", &scattered, |i| {
        if own.contains(&i) { column(i).max().unwrap() } else { value(rank, i) }
    });
    let gathered = ended(job.allgather(filled::<T>(client, rank), plain));
    expect("allgather", &gathered, |i| value((i / (COUNT / usize::from(WORLD))) as u16, i));
    let urgent = OpOptions { priority: 7, ..plain };
    let pending =
        [plain, urgent].map(|options| job.allreduce_with(filled::<T>(client, rank), options).unwrap());
    for pending in pending {
        expect("urgent and not", &pending.wait().unwrap(), |i| column(i).sum());
    }
}

/// Runs all kinds with all types.
pub fn every_type(client: &Client, job: &Job, rank: u16) {
    every_kind::<f32>(client, job, rank);
    every_kind::<f16>(client, job, rank);
    every_kind::<bf16>(client, job, rank);
    every_kind::<i32>(client, job, rank);
}
