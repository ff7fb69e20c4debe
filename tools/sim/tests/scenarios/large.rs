//! As many workers as two levels of bitmaps can tell apart.

use sumac_sim::{
    events::{MICRO, MILLI, SECOND},
    link::{Faults, LinkSpec},
};
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, NotFinite, Scaling, WireFormat};

use crate::{
    draw::FRAMING,
    run,
    scenario::{JobPlan, Kind, Scenario, Shape, Tensor},
};

const RACKS: usize = 32;
const WORKERS: usize = 1_024;

/// 32 racks of 32 workers, below a root, with loss, and sums that overflow.
#[test]
fn a_job_of_1024_workers_in_32_racks() {
    let elements = 8;
    let tensor = |dtype, overflows, at| Tensor {
        kind: Kind::AllReduce(Arithmetic::Sum),
        dtype,
        count: usize::from(elements) * 40,
        lane: 0,
        at,
        overflows,
    };
    let params = JobParams {
        job: 1,
        epoch: 7,
        token: 0x5eed,
        rank: 0,
        world: WORKERS as u16,
        rack_rank: 0,
        rack_world: 32,
        lane: 0,
        shards: 1,
        slots: 1,
        elements,
        wire: WireFormat::Int32,
        scaling: Scaling::Fixed(1e4),
        not_finite: NotFinite::Error,
        measure: false,
        dynamic: Some(DynamicParams::new(64).with_window(32)),
    };
    let plan = JobPlan {
        params,
        lanes: 1,
        first_slot: 0,
        racks: (0..WORKERS).map(|rank| Some(rank / (WORKERS / RACKS))).collect(),
        hosts: vec![None],
        tensors: vec![tensor(DType::I32, false, 0), tensor(DType::F32, true, MILLI)],
        lateness: vec![0; WORKERS],
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
    let scenario = Scenario {
        seed: 0,
        shape: Shape::Racks(RACKS),
        jobs: vec![plan],
        pool: 64,
        patience: SECOND,
        cable,
        faults: Faults { loss: 0.0005, ..Faults::default() },
        fates: Vec::new(),
        orphans: 0,
        flow: false,
    };
    let totals = run::run(&scenario);
    totals.tell();
    assert!(totals.full_sums > 0 && totals.raw > 0 && totals.links.lost > 0);
}
