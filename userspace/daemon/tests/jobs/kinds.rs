//! Every kind of operation with every type, and its expected results.

use sumac_client::{
    Client, ClientError, Element, Failure, Job, OpOptions, Pending, Reduction, Submitted, Tensor, bf16, f16,
};

pub const WORLD: u16 = 3;
/// Blocks of three, four or six ranks, and a partial last packet.
const COUNT: usize = 12 * 277;

/// A type that represents small integers exactly.
pub trait Number: Element + PartialEq + std::fmt::Debug + Send {
    fn of(value: i32) -> Self;
}

macro_rules! number {
    ($type:ty, |$value:ident| $of:expr) => {
        impl Number for $type {
            fn of($value: i32) -> $type {
                $of
            }
        }
    };
}

number!(f32, |value| value as f32);
number!(f16, |value| f16::from_f32(value as f32));
number!(bf16, |value| bf16::from_f32(value as f32));
number!(i32, |value| value);

/// Returns the element `i` of a rank: sums are exact in eight bits of mantissa.
fn value(rank: u16, i: usize) -> i32 {
    (i % 31) as i32 * if (i / 31 + usize::from(rank)).is_multiple_of(2) { 1 } else { -1 } + i32::from(rank)
}

/// Returns a tensor of these elements.
pub fn tensor<T: Element>(client: &Client, count: usize, element: impl Fn(usize) -> T) -> Tensor<T> {
    let mut tensor = client.tensor::<T>(count).unwrap();
    (0..).zip(tensor.iter_mut()).for_each(|(i, place)| *place = element(i));
    tensor
}

/// Returns this worker's sum of such tensors.
pub fn sum<T: Element + std::fmt::Debug>(
    client: &Client,
    job: &Job,
    count: usize,
    element: impl Fn(usize) -> T,
) -> Vec<T> {
    ended(job.allreduce(tensor(client, count, element)))
}

fn filled<T: Number>(client: &Client, rank: u16) -> Tensor<T> {
    tensor(client, COUNT, |i| T::of(value(rank, i)))
}

pub fn ended<T: Element + std::fmt::Debug>(pending: Submitted<T>) -> Vec<T> {
    pending.unwrap().wait().unwrap().to_vec()
}

/// Returns the daemon's error of an operation.
pub fn failure<T: Element + std::fmt::Debug>(pending: Submitted<T>) -> Failure {
    match pending.and_then(Pending::wait).unwrap_err().error {
        ClientError::Daemon(failure) => failure,
        other => panic!("{other}"),
    }
}

/// Returns element `i` of all ranks.
fn column(world: u16, i: usize) -> impl Iterator<Item = i32> {
    (0..world).map(move |rank| value(rank, i))
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
    let world = job.opened().world;
    let column = |i| column(world, i);
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
    expect("allgather", &gathered, |i| value((i / (COUNT / usize::from(world))) as u16, i));
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

/// Submits operations with names, in an order of each rank's own.
pub fn sums_by_name(client: &Client, job: &Job, rank: u16) {
    let named = |name| OpOptions { name: Some(name), ..OpOptions::default() };
    let submit = |name: &'static str, value: i32| {
        let pending = job.allreduce_with(tensor(client, 10, |_| value), named(name)).unwrap();
        (value, pending)
    };
    let mut values = vec![("a", 1), ("b", 10), ("c", 100)];
    values.rotate_left(usize::from(rank) % 3);
    let pending: Vec<_> = values.into_iter().map(|(name, value)| submit(name, value)).collect();
    for (value, pending) in pending {
        assert_eq!(pending.wait().unwrap()[0], i32::from(job.opened().world) * value);
    }
}
