//! A worker of a dynamic job is replaced in the middle of a sum that overflows.

use sumac_sim::events::MILLI;
use sumac_transport::{Arithmetic, DType, DynamicParams, JobParams, Operation, Scale};

use crate::{PERFECT, bytes, job, network::Network};

/// Milliseconds that the rest of a sum takes after a worker was replaced, for values of this size.
fn recovery(value: f32) -> u64 {
    let params =
        JobParams { dynamic: Some(DynamicParams::new(1024)), scaling: Scale::Fixed(1e8), ..job(3, 64) };
    let mut net = Network::new(&params, 6, PERFECT);
    net.join();
    let count = 8 * 2000;
    let values = bytes(&vec![value; count]);
    let sum = |skip| Operation {
        skip,
        ..Operation::allreduce(5, DType::Float32, Arithmetic::Sum, count, Box::new(values.clone()))
    };
    (0..3).for_each(|rank| net.submit(rank, sum(0)));
    let end = net.world.now() + 1_000 * MILLI;
    net.world.run_until(end, |world| world.workers[0].stats().results >= 1000);
    let resume = net.replace(1);
    assert!((1000..2000).contains(&resume), "{resume} of 2000 chunks");
    net.idle(300);
    let began = net.world.now();
    net.submit(1, sum(u64::from(resume)));
    net.run(1, 600);
    (net.world.now() - began) / MILLI
}

#[test]
fn a_replacement_takes_no_longer_when_sums_overflow() {
    let (fitting, overflowing) = (recovery(1.0), recovery(30.0));
    assert!(overflowing < 10 * fitting.max(5), "{overflowing} ms where sums overflow, else {fitting} ms");
}
