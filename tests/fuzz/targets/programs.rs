//! The XDP programs, by the kernel's test run. The fuzzer follows the coverage of the same parser in this
//! process.

use std::panic::AssertUnwindSafe;

use aya::{TestRun as _, TestRunOptions, programs::Xdp};
use sumac_fuzz::edited;
use sumac_hostprog::{AttachOptions, attach};
use sumac_loader::{Variant, program};
use sumac_wire::{
    frame::{self, Parsed, Ports},
    tables::{HostJobEntry, job_flag},
};

use crate::{
    fuzz,
    support::{
        AGGREGATOR, Bench, DROP, PASS, REDIRECT, TOKEN, dynamic, job_of,
        net::{Namespace, needs_privileges},
    },
    wire::example_frames,
};

const PORTS: Ports = Ports { base: 48700, shards: 2 };

#[test]
fn frames_at_the_aggregator_program() {
    needs_privileges!("frames_at_the_aggregator_program");
    let shared = sumac_agg_job::NewJob { job: 6, ..dynamic::dynamic_job(3, 17) };
    let bench = AssertUnwindSafe(Bench::of(Variant::Plain, &[job_of(3, 17), shared]));
    let examples = example_frames();
    fuzz!(|input: &[u8]| {
        let frame = edited(&examples, input);
        // The kernel takes no test frame without an Ethernet header.
        if !(14..3000).contains(&frame.len()) {
            return;
        }
        let (verdict, out) = bench.run(&frame);
        assert!([DROP, PASS, REDIRECT, TX].contains(&verdict), "verdict {verdict}");
        match frame::parse(&frame[..], PORTS) {
            Parsed::Foreign if verdict == PASS => {
                assert_eq!(out, frame, "somebody else's frame is as it was");
            }
            Parsed::Bad(_) => assert!(verdict == DROP || verdict == PASS),
            Parsed::Foreign | Parsed::Ours(_) => {}
        }
    });
}

/// `XDP_TX`: replies to ARP and echo requests.
const TX: u32 = 3;

#[test]
fn frames_at_the_host_program() {
    needs_privileges!("frames_at_the_host_program");
    let namespace = Namespace::new("fuzz");
    let pins = namespace.pins.clone();
    let examples = example_frames();
    // A thread of its own enters the namespace.
    namespace.inside(|| {
        namespace.run("ip link add h0 type veth peer name h1");
        namespace.run("ip link set h0 up");
        namespace.run("ip link set h1 up");
        let mut attached = attach(&AttachOptions { pin_root: pins, ..AttachOptions::new("h0") }).unwrap();
        let flags = job_flag::ACTIVE | job_flag::CHECKSUM;
        let (aggregator_ip, world) = (AGGREGATOR.to_bits(), 3);
        let entry = HostJobEntry {
            token: TOKEN,
            result_token: TOKEN,
            aggregator_ip,
            // The examples' destination.
            ip: aggregator_ip,
            epoch: 3,
            elements: 17,
            world,
            flags,
            ..Default::default()
        };
        attached.add_job(5, entry).unwrap();
        let program: Xdp = program::open_pinned(&attached.pin_path().join("prog")).unwrap();
        let program = AssertUnwindSafe(program);
        fuzz!(|input: &[u8]| {
            let frame = edited(&examples, input);
            if !(14..3000).contains(&frame.len()) {
                return;
            }
            let _ = frame::parse(&frame[..], PORTS);
            let mut out = vec![0; frame.len() + 256];
            let options =
                TestRunOptions { data_in: Some(&frame), data_out: Some(&mut out), ..TestRunOptions::new() };
            let result = program.test_run(options).unwrap();
            assert!([DROP, PASS, REDIRECT].contains(&result.return_value), "verdict {}", result.return_value);
            assert_eq!(out[..result.data_size_out as usize], frame, "the program writes no frame");
        });
    });
}
