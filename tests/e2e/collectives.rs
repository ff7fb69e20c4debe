//! Collectives that move values, and operations ordered by name.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//! w1 net0 ------ port1 | agg |
//! w2 net0 ------ port2 +-----+
//! ```

use sumac_client::{Failed, OpOptions, OperationOrder, Pending, Reduction, Tensor, bf16};
use sumac_lab::LabSpec;
use sumac_lab::deployment::{Backend, SumacOptions};
use sumac_lab::units::Rate;
use sumac_tests::crew::sum;
use sumac_tests::exact::{self, Value};
use sumac_tests::site::{with_crew, with_sumac};
use sumac_tests::{Crew, Trainer, stats};

const SEED: u64 = 31;
const WORLD: u16 = 3;

/// Three equal blocks, of neither whole packets nor an even number.
const COUNT: usize = 3 * 1_667;

const ROOT: u16 = 1;

/// The values of a broadcast.
const VALUES: usize = 1_000_000;

type Submitted<T> = Result<Pending<T>, Box<Failed<T>>>;

/// Lets all workers submit their values, and returns what they got, by rank.
fn all<T: Value>(crew: &Crew, submit: impl Fn(&Trainer, Tensor<T>) -> Submitted<T>) -> Vec<Vec<T>> {
    let start = |trainer: &Trainer| {
        let mut tensor = trainer.client.tensor::<T>(COUNT).unwrap();
        for (index, element) in tensor.iter_mut().enumerate() {
            *element = exact::value(SEED, trainer.rank, index);
        }
        submit(trainer, tensor).unwrap_or_else(|error| panic!("rank {}: {error}", trainer.rank))
    };
    let pending: Vec<_> = crew.trainers.iter().map(start).collect();
    pending.into_iter().map(|pending| sum(pending).to_vec()).collect()
}

fn own<T: Value>(rank: u16) -> Vec<T> {
    (0..COUNT).map(|index| exact::value(SEED, rank, index)).collect()
}

fn block(rank: u16) -> std::ops::Range<usize> {
    let size = COUNT / usize::from(WORLD);
    usize::from(rank) * size..(usize::from(rank) + 1) * size
}

fn assert_same<T: Value>(what: &str, rank: u16, got: &[T], expected: &[T]) {
    let differs = got.iter().zip(expected).position(|(got, expected)| !got.same(*expected));
    assert_eq!((differs, got.len()), (None, expected.len()), "{what} of {}, rank {rank}", T::DTYPE.name());
}

fn assert_collectives<T: Value>(crew: &Crew) {
    let options = OpOptions::default();
    let sums = crew.reduce::<T>(SEED, COUNT, Reduction::Sum);
    exact::assert_sums("allreduce", SEED, &sums);

    let broadcast = all::<T>(crew, |trainer, tensor| trainer.job.broadcast(ROOT, tensor, options));
    let reduced = all::<T>(crew, |trainer, tensor| trainer.job.reduce(ROOT, tensor, options));
    let scattered = all::<T>(crew, |trainer, tensor| trainer.job.reduce_scatter(tensor, options));
    let gathered = all::<T>(crew, |trainer, tensor| trainer.job.allgather(tensor, options));
    let all_blocks: Vec<T> = (0..WORLD).flat_map(|rank| own::<T>(rank)[block(rank)].to_vec()).collect();
    for (rank, sum) in (0..).zip(&sums.by_rank) {
        let at = usize::from(rank);
        assert_same("broadcast", rank, &broadcast[at], &own::<T>(ROOT));
        let expected = if rank == ROOT { sum.clone() } else { own::<T>(rank) };
        assert_same("reduce", rank, &reduced[at], &expected);
        assert_same("allgather", rank, &gathered[at], &all_blocks);
        let mut expected = own::<T>(rank);
        expected[block(rank)].copy_from_slice(&sum[block(rank)]);
        assert_same("reduce-scatter", rank, &scattered[at], &expected);
    }
}

#[test]
fn each_worker_gets_what_is_its_own() {
    with_crew(LabSpec::new(WORLD), &SumacOptions::default(), |_, crew| {
        assert_collectives::<f32>(crew);
        assert_collectives::<bf16>(crew);
        assert_collectives::<i32>(crew);
    });
}

/// Broadcasts a tensor at a rate at which the links limit the root, not its host. Returns the bytes of the
/// root and of all receivers, and the chunks whose zeros were wanted.
fn broadcast(values: usize, sumac: &SumacOptions) -> (u64, u64, u64) {
    let spec = LabSpec { rate: Some(Rate(100_000_000)), ..LabSpec::new(WORLD) };
    let mut measured = (0, 0, 0);
    with_crew(spec, sumac, |_, crew| {
        let sent =
            || crew.trainers.iter().map(|trainer| stats::counter(trainer, "bytes_sent")).collect::<Vec<_>>();
        let before = sent();
        let start = |trainer: &Trainer| {
            let mut tensor = trainer.client.tensor::<i32>(values).unwrap();
            tensor.fill(i32::from(trainer.rank) + 7);
            trainer.job.broadcast(ROOT, tensor, OpOptions::default()).unwrap()
        };
        let pending: Vec<_> = crew.trainers.iter().map(start).collect();
        for pending in pending {
            assert!(sum(pending).iter().all(|value| *value == i32::from(ROOT) + 7));
        }
        let bytes: Vec<u64> = sent().iter().zip(before).map(|(after, before)| after - before).collect();
        let (root, wanted) = (bytes[usize::from(ROOT)], crew.counter("empty_wanted"));
        println!("bytes by rank: {bytes:?}, zeros wanted of {wanted} chunks");
        assert!(root >= values as u64 * 4, "{bytes:?}");
        measured = (root, bytes.iter().sum::<u64>() - root, wanted);
    });
    measured
}

/// Receivers of a broadcast send headers, and their zeros only where a header comes last and its frame has no
/// room for the result, as in a lab: 5 to 40 % of the root's bytes each, in debug builds. With all zeros it
/// was twice its bytes together.
#[test]
fn receivers_of_a_broadcast_send_headers() {
    let (root, receivers, wanted) = broadcast(VALUES, &SumacOptions::default());
    assert!(receivers < root * 3 / 2, "{receivers} bytes after {root}, {wanted} wanted");
}

/// The frames of the shortest chunks have room in a lab, too.
#[test]
fn headers_of_short_chunks_leave_as_results() {
    let (_, _, wanted) = broadcast(20_000, &SumacOptions { chunk: Some(4), ..SumacOptions::default() });
    // Of lost frames alone: 5,000 chunks have two headers each.
    assert!(wanted < 500, "{wanted} wanted");
}

/// An aggregator in user space has room for every result.
#[test]
fn receivers_of_a_broadcast_over_udp_send_headers_alone() {
    let (root, receivers, wanted) =
        broadcast(VALUES, &SumacOptions { backend: Backend::Udp, ..SumacOptions::default() });
    assert!(receivers < root / 5, "{receivers} bytes of two after {root}, {wanted} wanted");
}

#[test]
fn names_find_each_other_in_any_order() {
    with_sumac(LabSpec::new(WORLD), &SumacOptions::default(), |sumac| {
        let crew = Crew::join_with(sumac, "named", |options| options.order(OperationOrder::Name));
        let names = ["a", "b", "c", "d"];
        let submit = |trainer: &Trainer| {
            let turn = usize::from(trainer.rank);
            let order = (0..names.len()).map(|place| (place + turn) % names.len());
            let mut pending: Vec<_> = order
                .map(|number| {
                    let mut tensor = trainer.client.tensor::<i32>(2_000).unwrap();
                    tensor.fill(number as i32 * 100 + i32::from(trainer.rank));
                    (number, trainer.job.allreduce_with(tensor, OpOptions::named(names[number])).unwrap())
                })
                .collect();
            pending.sort_by_key(|(number, _)| *number);
            pending
        };
        let pending: Vec<_> = crew.trainers.iter().map(submit).collect();
        for (number, pending) in pending.into_iter().flatten() {
            // Three times the hundred of the name, and the ranks.
            let sum = sum(pending);
            assert!(
                sum.iter().all(|value| *value == number as i32 * 300 + 3),
                "{}: {}",
                names[number],
                sum[0]
            );
        }
        crew.leave();
    });
}
