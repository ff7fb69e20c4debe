//! The P4 program on the behavioural model of a switch (BMv2), programmed over P4Runtime, with the daemons as
//! they are: its sums are those of the XDP programs, bit by bit.
//!
//! ```text
//! w0 net0 --[cable]-- port0 +------------------+
//! w1 net0 --[cable]-- port1 | agg              | host0 --[cable]-- net0 ph0
//! w2 net0 --[cable]-- port2 | simple_switch_grpc|
//!                           +------------------+
//! ```
//!
//! The model moves some thousand packets a second, so tensors are small.

use std::time::Duration;

use sumac_lab::capture::CaptureOptions;
use sumac_lab::deployment::{Backend, Deployment, DynamicOptions, Pipeline, SumacOptions};
use sumac_lab::run::{Operation, Report, RunOptions, run};
use sumac_lab::units::Probability;
use sumac_lab::{Faults, LabSpec};
use sumac_tests::site::{in_turn, with_sumac};
use sumac_tests::{Crew, exact, stats};

use crate::bounded::stops;

/// Elements in a chunk of a static job on the lab's P4 program, and of a dynamic one.
const CHUNK: usize = 256;
const DYNAMIC_CHUNK: usize = 64;

/// Elements in a chunk of one block. A flush of more takes ten turns: on a busy machine the model falls behind the
/// timers that send the next one.
const BLOCK: u16 = 64;

const ROUNDS: u64 = 2;
/// The rounds by which some sums of a dynamic job have come from the aggregator.
const MOST_ROUNDS: u64 = 30;

/// Chunks in flight. With more the model's queues take longer than timers wait, and nearly all is sent again.
const IN_FLIGHT: u32 = 8;

/// One in fifty.
const LOSS: Probability = Probability(20_000);

/// The part of its values that a worker may be left out with.
const BOUND: f32 = 0.2;

/// Whether the model and the compiled program are there; prints a line where they are not.
fn is_there(test: &str) -> bool {
    let found = Pipeline::find();
    if let Err(why) = &found {
        println!("SKIP {test}: {why}");
    }
    found.is_ok()
}

/// The sums that all workers get over the XDP programs or the P4 program, round by round.
fn sums(what: &str, spec: LabSpec, options: SumacOptions) -> Vec<Vec<Vec<f32>>> {
    let mut rounds = Vec::new();
    // Of a static job at two levels too.
    let is_one_block = options.dynamic.is_some() || spec.racks > 0;
    let announced = if is_one_block { DYNAMIC_CHUNK } else { CHUNK };
    let chunk = options.chunk.map_or(announced, usize::from);
    let asked = if options.on_model { options.chunk } else { Some(chunk as u16) };
    let options = SumacOptions { chunk: asked, ..options };
    // Each slot holds several chunks, one after the other; the last one is a part.
    let count = 6 * IN_FLIGHT as usize * chunk + 3;
    with_sumac(spec, &options, |sumac| {
        let crew = Crew::join(sumac, "p4");
        let opened = crew.trainers[0].job.opened();
        assert_eq!(opened.plane, if options.on_model { "p4" } else { "ebpf" }, "{what}");
        assert_eq!(usize::from(opened.elements), chunk, "{what}");
        for seed in 0..ROUNDS {
            let results = crew.allreduce(seed, count);
            exact::assert_sums(what, seed, &results);
            rounds.push(results.by_rank);
        }
        if options.dynamic.is_some() {
            // On a busy machine the model may be slower than timers wait, and all goes to the parameter host.
            let mut further = ROUNDS..MOST_ROUNDS;
            while stats::at_parameter_host(sumac, 0, "full_sums") <= 10
                && let Some(seed) = further.next()
            {
                exact::assert_sums(what, seed, &crew.allreduce(seed, count));
            }
        }
        let (sent_again, counters) = (crew.counter("resent"), stats::at_aggregator(sumac));
        println!("{what}: {sent_again} chunks sent again, counters {counters:?}");
        if !options.drop.is_zero() {
            assert!(counters["injected_drop"] > 0 && sent_again > 0, "{what}: nothing was dropped");
        }
        if options.dynamic.is_some() {
            let full = stats::at_parameter_host(sumac, 0, "full_sums");
            println!("{what}: {full} sums of all workers came from the aggregator");
            assert!(full > 10, "{what}: {full} sums of all workers");
        }
        if options.on_model {
            assert_eq!(unreachables(sumac), 0, "{what}: the kernel answered the aggregator's packets");
        }
        crew.leave();
    });
    rounds
}

/// The same by the P4 program, whose lab loses frames and which drops some itself.
fn lossy_sums(what: &str, spec: LabSpec, options: SumacOptions) -> Vec<Vec<Vec<f32>>> {
    let faults = Faults { loss: LOSS, duplicate: LOSS, reorder: LOSS };
    sums(what, LabSpec { faults, ..spec }, SumacOptions { on_model: true, drop: LOSS, ..options })
}

/// Returns the number of ICMP messages of the aggregator's kernel that a destination, such as a UDP port, is
/// unreachable.
fn unreachables(sumac: &Deployment<'_>) -> u64 {
    let mut snmp = sumac.lab().aggregator().command("cat");
    let text = String::from_utf8(snmp.arg("/proc/net/snmp").output().unwrap().stdout).unwrap();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("Icmp: "))
        .map(|line| line.split(' ').collect())
        .collect();
    let place = lines[0].iter().position(|name| *name == "OutDestUnreachs").unwrap();
    lines[1][place].parse().unwrap()
}

/// Asserts that the P4 program, with loss, yields the bits of the XDP programs.
fn assert_same_bits(what: &str, spec: &LabSpec, options: &SumacOptions) {
    let kernel = sums(&format!("{what}, XDP programs"), spec.clone(), options.clone());
    let model = lossy_sums(&format!("{what}, P4 program with loss"), spec.clone(), options.clone());
    assert_eq!(kernel, model, "{what}: the sums of the XDP programs and those of the P4 program differ");
}

#[test]
fn static_sums_are_those_of_the_xdp_programs() {
    if is_there("static_sums_are_those_of_the_xdp_programs") {
        let options = SumacOptions { slots: Some(IN_FLIGHT), ..SumacOptions::default() };
        assert_same_bits("static", &LabSpec::new(3), &options);
    }
}

/// Racks send their parts again while the root's results arrive.
#[test]
fn static_sums_of_two_racks() {
    if is_there("static_sums_of_two_racks") {
        let options = SumacOptions { slots: Some(IN_FLIGHT), ..SumacOptions::default() };
        lossy_sums("two racks", LabSpec { racks: 2, ..LabSpec::new(4) }, options);
    }
}

#[test]
fn dynamic_sums_are_those_of_the_xdp_programs() {
    if is_there("dynamic_sums_are_those_of_the_xdp_programs") {
        let dynamic = DynamicOptions { window: Some(IN_FLIGHT), ..DynamicOptions::default() };
        let options = SumacOptions { dynamic: Some(dynamic), ..SumacOptions::default() };
        assert_same_bits("dynamic", &LabSpec { parameter_hosts: 1, ..LabSpec::new(3) }, &options);
    }
}

/// A model for each rack, one for the root, and the parameter host behind that.
#[test]
fn dynamic_sums_of_two_racks() {
    if is_there("dynamic_sums_of_two_racks") {
        let spec = LabSpec { racks: 2, parameter_hosts: 1, ..LabSpec::new(4) };
        let dynamic = DynamicOptions { window: Some(IN_FLIGHT), ..DynamicOptions::default() };
        let options = SumacOptions { dynamic: Some(dynamic), ..SumacOptions::default() };
        lossy_sums("dynamic, two racks", spec, options);
    }
}

/// The parameter host decides about a bound, so the program needs nothing for it.
#[test]
fn dynamic_sums_within_a_loss_bound() {
    if is_there("dynamic_sums_within_a_loss_bound") {
        let dynamic = DynamicOptions { window: Some(IN_FLIGHT), ..DynamicOptions::default() };
        let options = SumacOptions { dynamic: Some(dynamic), ..SumacOptions::default() };
        let spec = LabSpec { parameter_hosts: 1, ..LabSpec::new(4) };
        in_turn(|| assert_bounded(&bounded(spec, options, 100 * DYNAMIC_CHUNK)));
    }
}

/// The program counts the chunks of each lane that are flushed.
#[test]
fn static_sums_within_a_loss_bound() {
    if is_there("static_sums_within_a_loss_bound") {
        let options = SumacOptions { slots: Some(IN_FLIGHT), chunk: Some(BLOCK), ..SumacOptions::default() };
        in_turn(|| assert_bounded(&bounded(LabSpec::new(4), options, 400 * usize::from(BLOCK))));
    }
}

/// A worker that stops: the others go on without it, and all have the same sums.
#[test]
fn a_late_worker_of_a_static_job_is_left_out() {
    if is_there("a_late_worker_of_a_static_job_is_left_out") {
        let (slots, chunk) = (Some(IN_FLIGHT), Some(BLOCK));
        let options = SumacOptions { on_model: true, slots, chunk, drop: LOSS, ..SumacOptions::default() };
        let faults = Faults { loss: LOSS, ..Faults::default() };
        let count = 400 * usize::from(BLOCK);
        stops(LabSpec { faults, ..LabSpec::new(3) }, &options, count, Duration::from_millis(400));
    }
}

fn assert_bounded(report: &Report) {
    assert!(report.verified, "{report}");
    let loss = report.loss.clone().unwrap();
    println!("{loss:?}, {} s", report.tat_s.median);
    assert!(loss.budget > 0.0 && loss.budget <= f64::from(BOUND), "{loss:?}");
    assert!(loss.by_worker.iter().all(|spent| *spent <= loss.budget), "{loss:?}");
    assert!(loss.by_worker.iter().any(|spent| *spent > 0.0), "nobody was left out: {loss:?}");
}

/// Sums of so many values with a bound on the program, on cables that lose frames. The run compares every
/// element with the sum over the contributors that the workers report.
fn bounded(spec: LabSpec, options: SumacOptions, count: usize) -> Report {
    let faults = Faults { loss: LOSS, ..Faults::default() };
    // Labs of both tests are there at once.
    let name = format!("p4b{}{}", if options.dynamic.is_some() { "dyn" } else { "sta" }, std::process::id());
    run(&RunOptions {
        lab: LabSpec { faults, name, ..spec },
        sumac: SumacOptions { on_model: true, drop: LOSS, ..options },
        operation: Operation { loss_bound: BOUND, ..Operation::sum(count) },
        jobs: 1,
        iterations: 3,
        warmup: 1,
        seed: 11,
        limit: Duration::from_secs(120),
        trace: false,
        captures: CaptureOptions::default(),
    })
    .unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn workers_with_udp_sockets() {
    if is_there("workers_with_udp_sockets") {
        // On the same program.
        let (slots, chunk) = (Some(IN_FLIGHT), Some(BLOCK));
        let options =
            SumacOptions { backend: Backend::Udp, on_model: true, slots, chunk, ..SumacOptions::default() };
        sums("UDP sockets", LabSpec::new(2), options);
    }
}
