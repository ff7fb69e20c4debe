//! The conformance vectors on the program in the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::net::Ipv4Addr;

use sumac_agg_job::NewJob;
use sumac_loader::Variant;
use sumac_vectors::{
    cases, packets,
    random::{self, Profile, SWITCH_SEED},
    record::{self, Setup, Step, To},
};
use sumac_wire::Reason;
use support::{Bench, REDIRECT, frames::answer, needs_privileges, refusal};

/// The index of the aggregator's interface 0.
const FIRST_IFINDEX: u32 = 100;

fn installed(job: &record::Job) -> NewJob {
    let hosts = |hosts: &[record::Host]| hosts.iter().map(|host| host.entry(FIRST_IFINDEX)).collect();
    NewJob {
        job: job.job,
        entry: job.entry(),
        workers: job.worker_entries(FIRST_IFINDEX),
        parents: hosts(&job.parents),
    }
}

fn run(variant: Variant, setup: &Setup, steps: &[Step]) {
    let jobs: Vec<NewJob> = setup.jobs.iter().map(installed).collect();
    let bench = Bench::of(variant, &jobs);
    for (at, step) in steps.iter().enumerate() {
        let what = format!("{variant:?}, {}, seed {:?}, step {at}: {step:?}", setup.name, setup.seed);
        // A header without values completes its chunk where its frame has room (`questions.rs`). With bytes
        // behind it there is none.
        let behind: &[u8] = if step.reason == Reason::Wanted.name() { &[7; 4] } else { &[] };
        let shown = bench.show(&[&step.frame, behind].concat());
        assert_eq!(shown.reason.name(), step.reason, "{what}");
        let verdict = match (&step.answer, shown.reason) {
            (Some(_), _) => REDIRECT,
            (None, Reason::Foreign) => support::PASS,
            (None, reason) => refusal(reason),
        };
        assert_eq!(shown.verdict, verdict, "{what}");
        if let Some(expected) = &step.answer {
            let got = answer(&shown.out);
            let out = &shown.out[..shown.out.len() - behind.len()];
            assert_eq!(out[got.frame.payload()..], expected.payload, "{what}");
            assert_eq!(got.frame.dscp_ecn, expected.tos, "{what}");
            let job = setup.jobs.iter().find(|job| job.job == got.header.job).unwrap();
            let host = match expected.to {
                To::All => None,
                To::Worker(rank) => Some(&job.workers[usize::from(rank)]),
                To::Parent(number) => Some(&job.parents[usize::from(number)]),
            };
            if let Some(host) = host {
                let ips = [got.frame.src_ip, got.frame.dst_ip].map(Ipv4Addr::from_bits);
                assert_eq!(ips, [host.aggregator_ip, host.ip], "{what}");
                let shard = got.frame.src_port - setup.base_port;
                assert_eq!(got.frame.dst_port, host.port + shard, "{what}");
                assert_eq!(got.macs.concat(), [&host.mac[..], &host.aggregator_mac].concat(), "{what}");
            }
        }
        if let Some(transition) = &step.slot {
            let slot = bench.slot(transition.index);
            let values = slot.values.map(|values| values.map(|value| value as i32));
            let after = record::Slot {
                lane_next: transition.after.lane_next,
                spent: transition.after.spent.clone(),
                ..record::Slot::of(&slot.meta, [&values[0], &values[1]], 0, record::Spent::default())
            };
            assert_eq!((after, slot.lock), (transition.after.clone(), 0), "{what}");
        }
        if let Some(transition) = &step.shared {
            let index = u32::from(transition.shard) * setup.dynamic_slots + transition.slot;
            let slot = bench.dynamic_slot(index);
            let values = slot.values.map(|value| (value ^ 1 << 31) as i32);
            let after = record::SharedSlot::of(&slot.meta, &values);
            assert_eq!((&after, slot.lock), (&transition.after, 0), "{what}");
        }
    }
}

#[test]
fn the_table_of_cases() {
    needs_privileges!("the_table_of_cases");
    for checksum in [false, true] {
        cases::all(checksum).iter().for_each(|(setup, steps)| run(Variant::Plain, setup, steps));
    }
}

#[test]
fn random_packets() {
    needs_privileges!("random_packets");
    for (variant, seed, profile, checksum) in [
        (Variant::Plain, 14, Profile::Host, false),
        (Variant::Plain, 15, Profile::Host, true),
        (Variant::Jumbo, 16, Profile::Host, true),
        (Variant::Plain, SWITCH_SEED, Profile::Switch, false),
    ] {
        let setup = packets::setup("random", Some(seed), random::jobs(profile, checksum));
        run(variant, &setup, &random::steps(&setup, seed, 10_000));
    }
}
