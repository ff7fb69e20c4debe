//! The conformance vectors on the host aggregator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::net::Ipv4Addr;

use sumac_agg_host::{Answer, HostAggregator};
use sumac_agg_job::NewJob;
use sumac_vectors::{
    cases, packets,
    random::{self, Profile, SWITCH_SEED},
    record::{Job, Setup, Step, To},
};
use sumac_wire::{
    frame::{self, Parsed, Ports},
    tos,
};

fn installed(job: &Job) -> NewJob {
    let hosts = |hosts: &[sumac_vectors::record::Host]| hosts.iter().map(|host| host.entry(0)).collect();
    NewJob { job: job.job, entry: job.entry(), workers: job.worker_entries(0), parents: hosts(&job.parents) }
}

fn run(setup: &Setup, steps: &[Step]) -> usize {
    let of_shard = |shard| {
        let elements = setup.jobs.iter().map(|job| job.elements).max().unwrap();
        let aggregator = HostAggregator::of_shard(shard, setup.shards, setup.slots, elements).unwrap();
        let mut aggregator = aggregator.with_dynamic(setup.dynamic_slots).unwrap();
        setup.jobs.iter().for_each(|job| aggregator.install(&installed(job)).unwrap());
        aggregator
    };
    let mut shards: Vec<HostAggregator> = (0..setup.shards).map(of_shard).collect();
    let mut taken = 0;
    for (at, step) in steps.iter().enumerate() {
        let what = format!("{}, seed {:?}, step {at}: {step:?}", setup.name, setup.seed);
        let ports = Ports { base: setup.base_port, shards: setup.shards };
        // The kernel takes everything else off, and what its checksum or address refuses.
        let Parsed::Ours(parsed) = frame::parse(&step.frame[..], ports) else { continue };
        let checked = setup.jobs.iter().any(|job| job.checksum);
        if step.reason == "foreign" || checked && !frame::has_valid_checksum(&step.frame, &parsed) {
            continue;
        }
        let shard = parsed.dst_port - setup.base_port;
        let mut payload = step.frame[parsed.payload()..][..parsed.payload_len()].to_vec();
        let aggregator = &mut shards[usize::from(shard)];
        let source = Ipv4Addr::from_bits(parsed.src_ip);
        let answer = match tos::is_marked(parsed.dscp_ecn) {
            true => aggregator.on_marked_packet(source, &mut payload),
            false => aggregator.on_packet(source, &mut payload),
        };
        assert_eq!(answer.reason().name(), step.reason, "{what}");
        let to = step.answer.as_ref().map(|answer| answer.to);
        let job = || {
            let number = u16::from_be_bytes([payload[4], payload[5]]);
            setup.jobs.iter().find(|job| job.job == number).unwrap()
        };
        let host = match (answer, to) {
            (Answer::None(_), None) => None,
            (Answer::All(..), Some(To::All)) => None,
            (Answer::One(_, got, _), Some(To::Worker(rank))) => {
                Some((got, &job().workers[usize::from(rank)]))
            }
            (Answer::One(_, got, _), Some(To::Parent(number))) => {
                Some((got, &job().parents[usize::from(number)]))
            }
            (answer, to) => panic!("{what}: {answer:?} and not {to:?}"),
        };
        if let Some((got, host)) = host {
            assert_eq!((*got.ip(), got.port()), (host.ip, host.port + shard), "{what}");
        }
        if let Some(answer) = &step.answer {
            let len = answer.payload.len();
            assert_eq!(payload[..len.min(payload.len())], answer.payload, "{what}");
        }
        taken += 1;
    }
    taken
}

#[test]
fn the_table_of_cases() {
    for (setup, steps) in cases::all(false) {
        assert_eq!(run(&setup, &steps), steps.len(), "{}", setup.name);
    }
}

#[test]
fn random_packets() {
    for (seed, profile, checksum) in
        [(14, Profile::Host, false), (15, Profile::Host, true), (SWITCH_SEED, Profile::Switch, false)]
    {
        let setup = packets::setup("random", Some(seed), random::jobs(profile, checksum));
        let taken = run(&setup, &random::steps(&setup, seed, 10_000));
        assert!(taken > 8_000, "only {taken} packets reach an aggregator");
    }
}
