//! Sums of dynamic jobs are those of static ones, whatever is lost, however few slots there are, and beside
//! each other.

use sumac_client::{JobOptions, Mode, Reduction, WireFormat, bf16};
use sumac_lab::deployment::{Backend, DynamicOptions, SumacOptions};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::with_sumac;
use sumac_tests::{Crew, exact, stats};

use super::{lab, sumac};

const COUNT: usize = 100_003;

/// One in a hundred of each, in each direction of every cable.
const FAULTS: Faults =
    Faults { loss: Probability(10_000), duplicate: Probability(10_000), reorder: Probability(10_000) };

/// The scale of a dynamic job that is not told another.
const SCALE: f32 = 1e8;

/// A static and a dynamic job on one aggregator at the same time, through cables that lose, duplicate and
/// reorder.
fn both_modes_have_the_same_bits(backend: Backend) {
    let spec = LabSpec { faults: FAULTS, ..lab(3) };
    let options = SumacOptions { backend, ..sumac(DynamicOptions::default()) };
    with_sumac(spec, &options, |sumac| {
        let fixed = |options: JobOptions| options.mode(Mode::Static).scale(SCALE).slots(32);
        let still = Crew::join_with(sumac, "static", fixed);
        let moving = Crew::join(sumac, "dynamic");
        for seed in 0..2 {
            let (first, second) = (still.submit(seed, COUNT), moving.submit(seed, COUNT));
            let (first, second) = (still.results(first), moving.results(second));
            exact::assert_sums("static", seed, &first);
            exact::assert_sums("dynamic", seed, &second);
            assert_eq!(first.by_rank, second.by_rank, "{backend:?}, round {seed}: the modes differ");
        }
        exact::assert_sums("integers", 7, &moving.reduce::<i32>(7, COUNT, Reduction::Sum));
        exact::assert_sums("the largest", 8, &moving.reduce::<f32>(8, COUNT, Reduction::Max));
        let host = |name| stats::at_parameter_host(sumac, 0, name);
        println!(
            "{backend:?}: {} chunks of {} full sums, {} partial sums, {} contributions; {} sent again",
            host("completed"),
            host("full_sums"),
            host("partial_sums"),
            host("contributions"),
            moving.counter("resent"),
        );
        assert!(host("full_sums") > 0, "the aggregator summed nothing");
        assert!(moving.counter("resent") > 0, "frames were lost and no chunk was sent again");
        still.leave();
        moving.leave();
    });
}

#[test]
fn both_modes_have_the_same_bits_over_xdp() {
    both_modes_have_the_same_bits(Backend::Xdp);
}

#[test]
fn both_modes_have_the_same_bits_over_udp() {
    both_modes_have_the_same_bits(Backend::Udp);
}

/// Two values in each word, by slots and, where a chunk's exponent is not known, by the parameter host.
#[test]
fn values_of_16_bits_are_summed_under_loss() {
    with_sumac(LabSpec { faults: FAULTS, ..lab(3) }, &sumac(DynamicOptions::default()), |sumac| {
        let halves = |options| sumac.in_its_mode(options).wire(WireFormat::Int16);
        let crew = Crew::join_with(sumac, "halves", halves);
        exact::assert_sums("float32", 1, &crew.allreduce(1, COUNT));
        let words = u64::from(crew.trainers[0].job.opened().elements);
        let (chunks, resent) = (crew.counter("chunks_sent"), crew.counter("resent"));
        assert!(chunks < 3 * (COUNT as u64 / words) * 2 / 3, "{chunks} chunks of {words} words");
        assert!(resent > 0, "frames were lost and no chunk was sent again");
        exact::assert_sums("bfloat16", 2, &crew.reduce::<bf16>(2, COUNT, Reduction::Mean));
        assert!(stats::at_parameter_host(sumac, 0, "full_sums") > 0, "the aggregator summed nothing");
        crew.leave();
    });
}

#[test]
fn two_jobs_share_far_too_few_slots() {
    with_sumac(lab(3), &sumac(DynamicOptions { slots: 8, ..DynamicOptions::default() }), |sumac| {
        let crews = ["one", "two"].map(|name| Crew::join(sumac, name));
        let pending = crews.each_ref().map(|crew| crew.submit(1, COUNT));
        for (crew, pending) in crews.iter().zip(pending) {
            exact::assert_sums("with 8 slots", 1, &crew.results(pending));
        }
        let collisions = stats::at_parameter_host(sumac, 0, "collisions");
        println!("{collisions} packets found their slot busy");
        assert!(collisions > 0, "hundreds of packets cannot fit into 8 slots");
        crews.into_iter().for_each(Crew::leave);
    });
}

/// Integers of values of up to 1 times 1e9 fit, and those of two workers; the sum of three does not always.
#[test]
fn sums_that_saturate_are_made_of_floats() {
    with_sumac(lab(3), &sumac(DynamicOptions::default()), |sumac| {
        let crew = Crew::join_with(sumac, "loud", |options| sumac.in_its_mode(options).scale(1e9));
        exact::assert_sums("beyond 2^31", 1, &crew.allreduce(1, COUNT));
        let (raw, all) = ["raw", "completed"].map(|name| stats::at_parameter_host(sumac, 0, name)).into();
        println!("{raw} of {all} chunks were summed as floats");
        assert!(0 < raw && raw < all, "{raw} of {all} chunks as floats");
        assert!(crew.counter("raw_chunks") > 0);
        crew.leave();
    });
}

#[test]
fn block_floating_point_keeps_its_bound() {
    with_sumac(lab(3), &sumac(DynamicOptions::default()), |sumac| {
        let crew = Crew::join_with(sumac, "block", |options| sumac.in_its_mode(options).block());
        for seed in 1..3 {
            let results = crew.allreduce(seed, COUNT);
            exact::assert_within_bound("block floating point", seed, &results);
            assert!(results.by_rank.windows(2).all(|pair| pair[0] == pair[1]), "workers differ");
        }
        crew.leave();
    });
}
