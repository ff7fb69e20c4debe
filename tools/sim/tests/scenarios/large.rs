//! Jobs of hundreds of workers.

use sumac_sim::{
    events::{MICRO, MILLI, Nanos, SECOND},
    link::{Faults, LinkSpec},
};
use sumac_transport::{
    Arithmetic, DType, DynamicParams, JobParams, NonFinitePolicy, Scale, Tuning, WireFormat,
};

use crate::{
    draw::FRAMING,
    run,
    scenario::{JobPlan, Kind, Scenario, Shape, Sums, Tensor},
};

/// A job of racks that are full, with loss, whose values are sums of these kinds.
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
    };
    let params = JobParams {
        job: 1,
        epoch: 7,
        token: 0x5eed,
        rank: 0,
        world: workers as u16,
        rack_rank: 0,
        rack_world: OF_RACK as u16,
        lane: 0,
        shards: 1,
        slots: 1,
        elements,
        wire: WireFormat::Int32,
        scaling: Scale::Fixed(1e4),
        not_finite: NonFinitePolicy::Error,
        measure: false,
        dynamic: Some(DynamicParams::new(64).with_window(window)),
    };
    let plan = JobPlan {
        params,
        tuning: Tuning::default(),
        lanes: 1,
        first_slot: 0,
        racks: (0..workers).map(|rank| Some(rank / OF_RACK)).collect(),
        hosts: vec![None],
        tensors: sums.iter().enumerate().map(tensor).collect(),
        lateness: vec![0; workers],
        replaced: None,
        pause: None,
        ring: 64,
    };
    let cable = LinkSpec {
        rate: 10_000_000_000,
        delay: 10 * MICRO,
        queue: 4_096 * FRAMING.chunk_len(elements),
        mark: Some(1_024 * FRAMING.chunk_len(elements)),
        faults: Faults::default(),
    };
    Scenario {
        seed: 0,
        shape: Shape::Racks(racks),
        jobs: vec![plan],
        pool: 64,
        patience: SECOND,
        cable,
        faults: Faults { loss: 0.0005, ..Faults::default() },
        fates: Vec::new(),
        orphans: 0,
        flow: false,
    }
}

/// As many workers as two levels of bitmaps can tell apart: 32 racks of 32, with sums that overflow in parts.
#[test]
fn a_job_of_1024_workers_in_32_racks() {
    let totals =
        run::run(&racks(32, 32, 8, 40, &[(DType::Int32, Sums::Fit), (DType::Float32, Sums::InParts)]));
    totals.tell();
    assert!(totals.full_sums > 0 && totals.raw > 0 && totals.links.lost > 0);
}

/// Chunks as long as they may be, of so many workers that the parameter host has room for the floats of 31 of them: an
/// eighth of the window, all of which overflows. The first, which everybody waits for, must have room before those ahead of it.
#[test]
fn floats_of_more_chunks_than_there_is_room_for() {
    let (elements, window, chunks) = (832, 256, 260);
    let mut scenario = racks(5, window, elements, chunks, &[(DType::Float32, Sums::TooLarge)]);
    // What is lost makes windows small, and then workers wait for the first.
    scenario.faults.loss = 0.01;
    scenario.cable.queue = 512 * FRAMING.chunk_len(elements);
    let totals = run::run(&scenario);
    totals.tell();
    assert_eq!(totals.raw, chunks as u64, "all were summed as floats");
}
