//! Every kind of operation with every type through daemons, the UDP backend and a host aggregator. See
//! `lab.rs` for the topology.

use crate::kinds::{WORLD, ended, every_kind, every_type, sum, tensor};
use crate::lab::Lab;
use sumac_client::{Client, Job, JobOptions, NonFinitePolicy, OpOptions, Reduction, WireFormat, f16};

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
    all(
        |o| o,
        |client, job, _| {
            let opened = job.opened();
            // The aggregator's limit; the loopback's is higher.
            assert_eq!(opened.elements, 352);
            assert!(opened.slots.is_power_of_two() && opened.slots_reason.contains("ms x"), "{opened:?}");
            let stats = client.stats().unwrap();
            assert_eq!(
                (stats.jobs[0].slots, &stats.jobs[0].slots_reason),
                (opened.slots, &opened.slots_reason)
            );
        },
    );
}

#[test]
fn means_are_sums_divided() {
    all(
        |o| o.scale(65536.0),
        |client, job, rank| {
            let mean = OpOptions { reduction: Reduction::Mean, ..OpOptions::default() };
            let floats = tensor(client, 100, |_| f32::from(rank) * 3.0);
            assert_eq!(ended(job.allreduce_with(floats, mean)), [3.0; 100]);
            let integers = tensor(client, 1, |_| i32::from(rank) * 5);
            assert_eq!(ended(job.allreduce_with(integers, mean)), [5]);
        },
    );
}

/// Checks the error bound of block floating point with large and small values in one chunk.
fn stays_within_its_bound(client: &Client, job: &Job, rank: u16, levels: f64) {
    for magnitude in [1e-30, 1.0, 1e30] {
        let mine =
            |rank: u16, i: usize| (((i * 7919 + usize::from(rank) * 31) % 2001) as f32 - 1000.0) * magnitude;
        let sums = sum(client, job, 5000, |i| mine(rank, i));
        let n = f64::from(WORLD);
        let bound = n * n * f64::from(magnitude) * 1024.0 / levels;
        for (i, sum) in sums.iter().enumerate() {
            let exact: f64 = (0..WORLD).map(|rank| f64::from(mine(rank, i))).sum();
            let error = (f64::from(*sum) - exact).abs();
            let rounding = exact.abs() * f64::from(f32::EPSILON);
            assert!(error <= bound + rounding, "{magnitude:e}, element {i}: {sum} for {exact}");
        }
    }
}

#[test]
fn block_floating_point_holds_its_bound_for_all_magnitudes() {
    all(sumac_client::JobOptions::block, |client, job, rank| {
        assert_eq!(job.opened().max_float, None);
        stays_within_its_bound(client, job, rank, f64::from(i32::MAX));
    });
}

#[test]
fn int16_holds_its_bound() {
    all(
        |o| o.wire(WireFormat::Int16),
        |client, job, rank| stays_within_its_bound(client, job, rank, 32767.0),
    );
}

#[test]
fn non_finite_values_can_be_carried() {
    all(
        |o| o.not_finite(NonFinitePolicy::Carry).elements(100),
        |client, job, rank| {
            let sums = sum(client, job, 1000, |i| if rank == 1 && i == 555 { f32::INFINITY } else { 1.0 });
            assert!(sums[555].is_nan());
            assert!(sums[..500].iter().chain(&sums[600..]).all(|sum| (*sum - 3.0).abs() < 1e-6), "{sums:?}");
        },
    );
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
