//! Every kind of operation with every type through daemons, the UDP backend and a host aggregator. See
//! `lab.rs` for the topology.

use crate::kinds::{WORLD, every_kind, every_type, sum};
use crate::lab::Lab;
use sumac_client::{Client, Job, JobOptions, OpOptions, f16};

fn all(options: impl Fn(JobOptions) -> JobOptions, work: fn(&Client, &Job, u16)) {
    Lab::new(usize::from(WORLD)).train("kinds", options, work);
}

#[test]
fn every_kind_with_every_type() {
    // A power of two, so that small integers are exact.
    all(|o| o.scale(65536.0), every_type);
}

#[test]
fn results_do_not_depend_on_shards_and_packet_size() {
    let lab = Lab::with(usize::from(WORLD), "shards = 2");
    lab.train(
        "kinds",
        |o| o.scale(65536.0).elements(40).slots(16),
        |client, job, rank| {
            let opened = job.opened();
            assert_eq!((opened.shards, opened.elements, opened.slots), (2, 40, 16));
            every_kind::<f16>(client, job, rank);
            every_kind::<i32>(client, job, rank);
            let lanes = &client.stats().unwrap().jobs[0].lanes;
            assert_eq!(lanes.len(), 4);
            assert!(lanes.iter().all(|lane| lane["engine"]["results"].as_u64() > Some(0)), "{lanes:?}");
        },
    );
}

#[test]
fn slots_depend_on_the_path_and_packets_on_the_mtu() {
    all(JobOptions::block, |client, job, _| {
        let opened = job.opened();
        assert_eq!(opened.max_float, None, "each chunk has its exponent");
        // The aggregator's limit; the loopback's is higher.
        assert_eq!(opened.elements, 352);
        assert!(opened.slots.is_power_of_two() && opened.slots_reason.contains("ms x"), "{opened:?}");
        let stats = client.stats().unwrap();
        assert_eq!((stats.jobs[0].slots, &stats.jobs[0].slots_reason), (opened.slots, &opened.slots_reason));
    });
}

#[test]
fn an_empty_operation_is_a_barrier() {
    use std::sync::atomic::{AtomicU16, Ordering};
    static ARRIVED: AtomicU16 = AtomicU16::new(0);

    all(
        |o| o,
        |client, job, rank| {
            std::thread::sleep(std::time::Duration::from_millis(20 * u64::from(rank)));
            ARRIVED.fetch_add(1, Ordering::SeqCst);
            sum(client, job, 0, |_| 0.0f32);
            assert_eq!(ARRIVED.load(Ordering::SeqCst), WORLD);
        },
    );
}

#[test]
fn urgent_operations_overtake_others() {
    all(
        |o| o,
        |client, job, _| {
            // Thousands of packets before the small one's.
            let mut large = job.allreduce(client.tensor::<f32>(3_000_000).unwrap()).unwrap();
            let urgent = OpOptions { priority: 7, ..OpOptions::default() };
            job.allreduce_with(client.tensor::<f32>(100).unwrap(), urgent).unwrap().wait().unwrap();
            assert!(!large.wait_timeout(std::time::Duration::ZERO).unwrap());
            large.wait().unwrap();
        },
    );
}
