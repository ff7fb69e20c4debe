//! Figure 10: throughput against packet loss, beside the static mode with a timer of 1 ms.

use std::time::Duration;

use serde_json::json;
use sumac_transport::{DynamicParams, Tuning};

use super::{
    Effort,
    figure::{Figure, Target, median, rounded},
    testbed::{Allocation, CABLES, CHUNK_BYTES, Cables, Testbed, over_seeds, tensors},
};
use sumac_sim::{
    events::{MICRO, MILLI, SECOND},
    job::SetupError,
    link::Faults,
    trainer::StepPlan,
};

const WORKERS: usize = 8;
/// Chunks of a tensor: 4 MB.
const CHUNKS: usize = 2_913;
/// A short path, as the paper's is: a timer of 1 ms is many of its round trips.
const SHORT: Cables = Cables { delay: 10 * MICRO, ..CABLES };
const LOSSES: [f64; 5] = [0.0, 1e-5, 1e-4, 1e-3, 1e-2];

/// The variants of loss detection.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    /// Dynamic: a later result and the reordering window, then a timer.
    Dynamic,
    /// Static as it is: a later result and the reordering window, questions, a timer that adapts.
    Static,
    /// SwitchML's: a timer of 1 ms.
    Timer,
}

const ALL: [Who; 3] = [Who::Dynamic, Who::Static, Who::Timer];

pub fn figure10(effort: Effort) -> Result<Figure, SetupError> {
    let cases: Vec<(Who, f64)> =
        ALL.into_iter().flat_map(|who| LOSSES.into_iter().map(move |loss| (who, loss))).collect();
    let count = effort.of(48);
    let results = over_seeds(&cases, effort.seeds, |(who, loss), seed| run(*who, *loss, count, seed))?;
    let medians: Vec<f64> = results.into_iter().map(median).collect();
    let of = |who: usize, loss: usize| medians[who * LOSSES.len() + loss];
    let normal = |who, loss| of(who, loss) / of(who, 0);
    let rows = LOSSES.iter().enumerate().map(|(at, loss)| {
        vec![
            json!(loss * 100.0),
            rounded(of(0, at) * 8e-9),
            rounded(of(1, at) * 8e-9),
            rounded(of(2, at) * 8e-9),
            rounded(normal(0, at)),
            rounded(normal(1, at)),
            rounded(normal(2, at)),
        ]
    });
    let told = |at| format!("{:.3} and {:.3} of no loss", normal(0, at), normal(2, at));
    Ok(Figure {
        figure: "fig10",
        title: "throughput against the loss of one worker's packets",
        lab: format!(
            "One job of {WORKERS} workers, tensors of 4 MB without a pause, 10 Gbit/s; one worker loses a \
            part of its packets in each direction; no congestion control (as in the paper). A round trip to \
            the aggregator takes 23 us. Dynamic: 64 chunks in flight, slots enough. Static: 32 slots, and \
            beside it SwitchML's: a timer of 1 ms and no other sign of loss, and slots that keep to their \
            own chunks."
        ),
        columns: vec![
            "loss_percent",
            "dynamic_gbps",
            "static_gbps",
            "timer_1ms_gbps",
            "dynamic",
            "static",
            "timer_1ms",
        ],
        rows: rows.collect(),
        targets: vec![
            Target::new(
                "0.1 % loss, dynamic and 1 ms timer",
                "dynamic keeps more",
                told(3),
                normal(0, 3) > normal(2, 3),
            ),
            Target::new(
                "1 % loss, dynamic and 1 ms timer",
                "dynamic keeps more",
                told(4),
                normal(0, 4) > normal(2, 4),
            ),
        ],
        ..Figure::default()
    })
}

/// Bytes per second that a worker gets.
fn run(who: Who, loss: f64, count: usize, seed: u64) -> Result<f64, SetupError> {
    let mut testbed = Testbed::new(SHORT, 4_096, seed);
    let center = testbed.center;
    let hosts: Vec<_> = (0..WORKERS).map(|_| testbed.host_at(center)).collect();
    let parameter = testbed.parameter_host();
    let faults = Faults { loss, ..Faults::default() };
    for direction in [hosts[0].1, hosts[0].1 + 1] {
        testbed.world.network.link_mut(direction).spec.faults = faults;
    }
    let nodes: Vec<_> = hosts.iter().map(|(node, _)| *node).collect();
    let mode = match who {
        Who::Dynamic => Allocation::Dynamic(DynamicParams {
            initial_window: Some(64),
            congestion: false,
            ..DynamicParams::new(4_096)
        }),
        _ => Allocation::Static(1, 32),
    };
    let mut job = testbed.job(&mode, &nodes, &[parameter]);
    if who == Who::Timer {
        job.stealing = false;
        let timer = Duration::from_millis(1);
        job.tuning = Tuning {
            initial_rto: timer,
            min_rto: timer,
            min_rto_confirmed: timer,
            max_rto: timer,
            timers_only: true,
            ..Tuning::default()
        };
    }
    let plan = StepPlan { until: MILLI * 101, ..tensors(count, CHUNKS, MILLI * 100) };
    let running = testbed.start(job, &plan)?;
    let log = running.logs.clone();
    testbed.world.run_until(100 * SECOND, |_| log.iter().all(|log| !log.borrow().steps.is_empty()));
    running.check()?;
    let ended = log[0].borrow().steps.first().copied().unwrap_or(100 * SECOND);
    Ok((count * CHUNKS) as f64 * CHUNK_BYTES as f64 * SECOND as f64 / (ended - plan.from) as f64)
}
