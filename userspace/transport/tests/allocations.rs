//! No allocation per packet: a whole operation, with losses, costs none.

#![allow(clippy::expect_used, reason = "a test that cannot go on")]

#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "engine/support.rs"]
mod support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use sumac_transport::{Arithmetic, DType, DynamicParams, Engine, JobParams, Operation, PeerId, Time};
use sumac_wire::{
    Kind,
    header::{VERSION, flag, offset},
};
use support::block;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Makes the answer of a lone worker's contribution, exponent round or probe, in place.
fn turn_round(frame: &mut [u8], token: [u8; 8], is_dynamic: bool) {
    frame[offset::TOKEN..][..8].copy_from_slice(&token);
    let kind = if frame[0] & 0x0f == Kind::Probe as u8 { Kind::Report } else { Kind::Result };
    frame[0] = VERSION << 4 | kind as u8;
    frame[offset::CONTRIBUTORS + 1] = 1;
    if frame[offset::FLAGS] & (flag::EXPONENT >> 8) as u8 != 0 {
        frame[offset::EXPONENT] = frame[offset::NEXT_EXPONENT];
    }
    if is_dynamic {
        // Results of dynamic jobs name the lane as contributions do.
        frame[offset::FLAGS + 1] &= !(flag::RESEND as u8);
        return;
    }
    let seq = frame[offset::SEQ..].first_chunk().copied().map_or(0, u32::from_be_bytes);
    frame[offset::NEXT_SEQ..][..4].copy_from_slice(&seq.wrapping_add(2 * SLOTS).to_be_bytes());
}

const SLOTS: u32 = 8;

/// Runs an operation of `count` elements in which every seventh frame is lost; gives the number of
/// allocations between its submission and its completion.
fn allocations(engine: &mut Engine, now: &mut Time, count: usize) -> usize {
    let buffer = Box::new(vec![0u8; count * 4]);
    let operation = Operation::allreduce(0, DType::Float32, Arithmetic::Sum, count, buffer);
    let mut frame = [0; 128];
    let mut frames = 0u32;
    let is_dynamic = engine.params().dynamic.is_some();
    let token = sumac_job::result_token(engine.params().token).to_be_bytes();
    let region = Region::new(ALLOCATOR);
    engine.submit(*now, operation).map_err(|(error, _)| error).expect("a good operation");
    let completion = loop {
        if let Some(completion) = engine.poll_completion() {
            break completion;
        }
        *now = now.plus(1_000);
        if let Some(sent) = engine.poll_transmit(*now, &mut frame) {
            frames += 1;
            turn_round(&mut frame[..sent.len], token, is_dynamic);
            if !frames.is_multiple_of(7) {
                engine.on_payload(*now, PeerId(0), &frame[..sent.len]);
            }
        } else if let Some(due) = engine.poll_timeout() {
            *now = due.max(*now);
            engine.on_timeout(*now);
        }
    };
    let allocations = region.change().allocations;
    assert_eq!(completion.result, Ok(()));
    allocations
}

/// An engine with these parameters after three operations of 10,000 chunks, none of which cost an allocation.
fn run(params: JobParams) -> Engine {
    let mut engine = Engine::new(params, &support::peers()).expect("good parameters");
    let mut now = Time(1);
    // The first operation makes room in the list of operations.
    allocations(&mut engine, &mut now, 4);
    // The test runner's own thread may allocate beside it: the best of three.
    let fewest = (0..3).map(|_| allocations(&mut engine, &mut now, 40_000)).min();
    assert_eq!(fewest, Some(0), "10,000 chunks of {:?}", engine.params());
    engine
}

// One test in this file: the allocator counts for the whole process.
#[test]
fn packets_cost_no_allocation() {
    let dynamic = DynamicParams::new(64).with_window(SLOTS);
    let engine = run(JobParams { dynamic: Some(dynamic), ..block(1, SLOTS, 4) });
    let stats = engine.stats();
    assert!(stats.resent > 1000 && stats.raw_chunks >= 8, "{stats:?}");

    let engine = run(block(1, SLOTS, 4));
    let stats = engine.stats();
    assert!(stats.questions > 1000, "and the recovery of lost ones");
    assert!(stats.exponent_rounds >= 8 && stats.elements_scanned > 3 * 40_000, "and exponents");
}
