//! Forged frames, injected on the live wire: each is counted by its reason, and no sum is any different.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//!         ^            | agg |
//! w1 net0 ------ port1 +-----+
//!         ^
//!         forged frames are sent here
//! ```
//!
//! To the aggregator come contributions to the very chunk that waits for worker 1's, from its own host, wrong
//! in one thing each; to worker 0 come results of that chunk, from the aggregator's end of its wire. Whatever
//! is let in ruins the sum: every element is 0x55555555.

use std::net::Ipv4Addr;

use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::inject::{Injector, STRANGER, job_at, to_aggregator, to_worker};
use sumac_tests::siege::{self, ANYWHERE, Case, FORGER, Siege, cut, forge, good, more_elements, no_elements};
use sumac_tests::site::with_sumac;
use sumac_tests::stats;
use sumac_wire::header::{Kind, flag};

/// Counters of the job's own frames; `steered` are answers to the probes of its path while it waits.
const ALIVE: &[&str] = &["foreign", "probed", "duplicate", "added", "steered"];

/// Wrong at the aggregator, which takes contributions and probes.
const AT_AGGREGATOR: &[Case] = &[
    ("a stranger's address", |f| f.from(STRANGER), "wrong_source"),
    ("a result", |f| f.header.kind = Kind::Result as u8, "bad_type"),
    ("another worker's bit", |f| f.header.bitmap_0 = 1, "wrong_source"),
    ("another worker's address", |f| f.from(Ipv4Addr::new(10, 77, 0, 2)), "wrong_source"),
    ("two workers' bits", |f| f.header.bitmap_0 = 3, "wrong_worker"),
    ("no worker's bit", |f| f.header.bitmap_0 = 0, "wrong_worker"),
    ("the bit of a worker that the job has not", |f| f.header.bitmap_0 = 1 << 31, "wrong_worker"),
    ("another world", |f| f.header.fan_in_0 = 1, "wrong_worker"),
    ("a second level", |f| f.header.bitmap_1 = 1, "wrong_worker"),
    ("from a rack", |f| f.header.flags = flag::LEVEL, "wrong_worker"),
    ("another chunk's slot", |f| f.header.slot = 1, "stale"),
    ("a slot beyond the job's", |f| f.header.slot = 1 << 20, "wrong_slot"),
    ("no slot at all", |f| f.header.slot = u32::MAX, "wrong_slot"),
    ("the slot's other version", |f| f.header.flags = flag::POOL_VERSION, "out_of_turn"),
    ("no elements", no_elements, "wrong_elements"),
    ("a round for an exponent, with elements", |f| f.header.flags = flag::EXPONENT, "wrong_elements"),
    ("a refusal", |f| f.header.flags = flag::MISMATCH, "bad_type"),
    ("fewer elements than the slot's first", |f| more_elements(f, -1), "wrong_elements"),
    ("a chunk far ahead", |f| f.header.seq = 1 << 20, "out_of_turn"),
];

/// Wrong at a worker's host, which takes results and answers to probes.
const AT_HOST: &[Case] = &[
    ("a stranger's address", |f| f.from(STRANGER), "wrong_source"),
    ("a contribution with the token of results", |f| f.header.kind = Kind::Contribution as u8, "bad_token"),
    ("from worker 1", |f| f.from(Ipv4Addr::new(10, 77, 1, 2)), "wrong_source"),
];

/// A fixed scale: no chunk is preceded by a round for its exponent.
fn options() -> SumacOptions {
    SumacOptions { scale: Some(1_048_576.0), ..SumacOptions::default() }
}

#[test]
fn the_aggregator_lets_no_forged_contribution_in() {
    with_sumac(LabSpec::new(2), &options(), |sumac| {
        let crew = siege::join(sumac);
        let injector = Injector::new(sumac.lab().worker(FORGER), sumac.lab().worker_interface());
        let job = job_at(sumac, sumac.lab().worker(0));
        let good = good(Kind::Contribution, to_aggregator(sumac, FORGER), job);
        let frames = [forge(&good, &[ANYWHERE, AT_AGGREGATOR]), cut(&good)].concat();
        let siege = Siege { crew: &crew, injector, frames, alive: ALIVE };
        siege.assert_harmless(|| stats::at_aggregator(sumac));
        crew.leave();
    });
}

#[test]
fn a_host_lets_no_forged_result_in() {
    with_sumac(LabSpec::new(2), &options(), |sumac| {
        let crew = siege::join(sumac);
        let injector = Injector::new(sumac.lab().aggregator(), &sumac.lab().spec().aggregator_ports()[0]);
        let good = good(Kind::Result, to_worker(sumac, 0), job_at(sumac, sumac.lab().worker(0)));
        let frames = [forge(&good, &[ANYWHERE, AT_HOST]), cut(&good)].concat();
        let siege = Siege { crew: &crew, injector, frames, alive: ALIVE };
        siege.assert_harmless(|| stats::at_host(&crew.trainers[0].client));
        crew.leave();
    });
}
