//! No allocation per packet, once each place of the ring was used.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "host/support.rs"]
mod support;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use sumac_parameter::ParameterHost;
use sumac_wire::{
    Header, Time,
    header::{HEADER_LEN, flag},
};
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Three workers' contributions to a chunk, one direct; every third chunk is asked for as floats.
fn chunk(host: &mut ParameterHost, packets: &mut [[Vec<u8>; 2]; 3], seq: u32) -> usize {
    let job = [aggregator(), aggregator(), "10.1.0.3:48801".parse().unwrap()];
    let mut out = [0; 256];
    let mut count = 0;
    for raw in [0, 1] {
        for (from, packet) in job.iter().zip(&mut *packets) {
            let packet = &mut packet[raw];
            packet[8..12].copy_from_slice(&seq.to_be_bytes());
            if raw == 0 {
                packet[HEADER_LEN..HEADER_LEN + 4]
                    .copy_from_slice(&(if seq.is_multiple_of(3) { i32::MAX } else { 1 }).to_be_bytes());
            }
            host.on_packet(Time(0), *from, 1, packet, false);
        }
        while host.poll_transmit(&mut out).is_some() {
            count += 1;
        }
        if !seq.is_multiple_of(3) {
            break;
        }
    }
    count
}

#[test]
fn a_long_stream_costs_none() {
    let mut host = ParameterHost::new();
    host.install(job(&[3])).unwrap();
    let mut packets: [[Vec<u8>; 2]; 3] = std::array::from_fn(|bit| {
        let own = header(&[3], 0, bit as u32, 0);
        let own = if bit == 2 { direct(own) } else { passed(own) };
        let raw = Header { flags: own.flags | flag::RESEND | flag::RAW_FLOAT, ..own };
        [packet(&own, &[1; 4]), packet(&raw, &[0; 4])]
    });
    for seq in 0..2 * WINDOW {
        assert_eq!(chunk(&mut host, &mut packets, seq), if seq.is_multiple_of(3) { 4 } else { 2 });
    }
    // The test's own threads may allocate meanwhile, but not always.
    let mut rounds = (2 * WINDOW..).step_by(200).take(20).map(|first| {
        let region = Region::new(ALLOCATOR);
        for seq in first..first + 200 {
            chunk(&mut host, &mut packets, seq);
        }
        region.change().allocations
    });
    assert!(rounds.any(|allocations| allocations == 0));
}
