//! Jobs of hundreds of workers.

use sumac_sim::{
    events::{MICRO, MILLI, Nanos},
    link::{Faults, LinkSpec},
};
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Scale};

use crate::{
    draw::{FRAMING, params, plan},
    run,
    scenario::{JobPlan, Kind, Scenario, Shape, Sums, Tensor},
    totals::print,
};

/// A job of full racks, with loss, whose tensors have these sums.
fn racks(racks: usize, window: u32, elements: u16, chunks: usize, sums: &[(DType, Sums)]) -> Scenario {
    const OF_RACK: usize = 32;
    let workers = racks * OF_RACK;
    let tensor = |(number, (dtype, sums)): (usize, &(DType, Sums))| Tensor {
        kind: Kind::AllReduce(Arithmetic::Sum),
        dtype: *dtype,
        count: usize::from(elements) * chunks,
        lane: 0,
        at: number as Nanos * MILLI,
        sums: *sums,
        poison: None,
    };
    let params = JobParams {
        rack_world: OF_RACK as u16,
        scaling: Scale::Fixed(1e4),
        dynamic: Some(DynamicParams::new(64).with_window(window)),
        ..params(1, workers as u16, elements)
    };
    let plan = JobPlan {
        racks: (0..workers).map(|rank| Some(rank / OF_RACK)).collect(),
        ring: 64,
        ..plan(params, sums.iter().enumerate().map(tensor).collect())
    };
    let cable = LinkSpec {
        queue: 4_096 * FRAMING.chunk_len(elements),
        mark: Some(1_024 * FRAMING.chunk_len(elements)),
        ..LinkSpec::new(10_000_000_000, 10 * MICRO)
    };
    let faults = Faults { loss: 0.0005, ..Faults::default() };
    Scenario { pool: 64, faults, ..Scenario::new(0, FRAMING, Shape::Racks(racks), vec![plan], cable) }
}

/// The most workers that two levels of bitmaps can name: 32 racks of 32, with sums that overflow in parts.
#[test]
fn a_job_of_1024_workers_in_32_racks() {
    let totals =
        run::run(&racks(32, 32, 8, 40, &[(DType::Int32, Sums::Fit), (DType::Float32, Sums::InParts)]));
    print(1, &totals.of_mixed());
    assert!(totals.full_sums > 0 && totals.raw > 0 && totals.links.lost > 0);
}

/// Chunks of the greatest length, of so many workers that the parameter host has memory for the floats of 31
/// of them: an eighth of the window, all of which overflows. The first, which all workers wait for, must have
/// memory before those ahead of it.
#[test]
fn floats_of_more_chunks_than_there_is_memory_for() {
    let (elements, window, chunks) = (832, 256, 260);
    let mut scenario = racks(5, window, elements, chunks, &[(DType::Float32, Sums::TooLarge)]);
    // Loss makes windows small, and then workers wait for the first chunk.
    scenario.faults.loss = 0.01;
    scenario.cable.queue = 512 * FRAMING.chunk_len(elements);
    let totals = run::run(&scenario);
    print(1, &totals.of_mixed());
    assert_eq!(totals.raw, chunks as u64, "all were summed as floats");
}
