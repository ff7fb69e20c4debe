//! Forged frames of a dynamic job: each is counted by its reason, and no sum is any different.
//!
//! ```text
//! w0 net0 ------ port0 +-----+
//!         ^            | agg | host0 ------ net0 ph0
//! w1 net0 ------ port1 +-----+       ^
//!         ^                          |
//!         forged frames are sent here, in turn
//! ```
//!
//! As in `hostile.rs`: contributions to the chunk that waits for worker 1's come to the aggregator from its
//! host, and to the parameter host as if they had been sent there; results of that chunk come to the
//! aggregator as if they were the parameter host's, and to worker 0.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use sumac_client::Client;
use sumac_lab::deployment::DynamicOptions;
use sumac_tests::forge::Forgery;
use sumac_tests::inject::{Injector, STRANGER, job_at, to_aggregator, to_parameter_host, to_worker};
use sumac_tests::siege::{self, ANYWHERE, Case, FORGER, Siege, as_answer, cut, forge, good, no_elements};
use sumac_tests::site::with_sumac;
use sumac_tests::stats;
use sumac_wire::dynamic;
use sumac_wire::frame::Endpoints;
use sumac_wire::header::{Kind, NO_SLOT, flag};

use super::{lab, sumac};

/// Counters of the job's own frames. Chunks that wait for worker 1 are flushed, bypass the slots and are
/// reclaimed.
const ALIVE: &[&str] = &[
    "foreign",
    "probed",
    "duplicate",
    "added",
    "passed",
    "flushed",
    "collided",
    "reclaimed",
    "forwarded",
    "concluded",
    "sent",
    "steered",
];

/// Wrong at the aggregator, of a worker's.
const AT_AGGREGATOR: &[Case] = &[
    ("a stranger's address", |f| f.from(STRANGER), "wrong_source"),
    ("the parameter host's address", |f| f.from(parameter_host()), "wrong_source"),
    ("another worker's bit", |f| f.header.bitmap_0 = 1, "wrong_source"),
    ("another worker's address", |f| f.from(Ipv4Addr::new(10, 77, 0, 2)), "wrong_source"),
    ("a result", |f| as_answer(f, Kind::Result), "wrong_source"),
    ("an answer to a probe", |f| as_answer(f, Kind::Report), "wrong_source"),
    ("two workers' bits", |f| f.header.bitmap_0 = 3, "wrong_worker"),
    ("no worker's bit", |f| f.header.bitmap_0 = 0, "wrong_worker"),
    ("the bit of a worker that the job has not", |f| f.header.bitmap_0 = 1 << 31, "wrong_worker"),
    ("another world", |f| f.header.fan_in_0 = 1, "wrong_worker"),
    ("a rack's bit", |f| f.header.bitmap_1 = 1, "wrong_worker"),
    ("racks", |f| f.header.fan_in_1 = 1, "wrong_worker"),
    ("from a rack", |f| f.header.flags = flag::LEVEL, "wrong_worker"),
    ("a slot beyond the pool", |f| f.header.slot = SLOTS, "wrong_slot"),
    ("a lane that no job has", |f| f.header.lane = u16::MAX, "wrong_slot"),
    ("no slot for the first time", |f| f.header.slot = NO_SLOT, "bad_type"),
    ("floats for the first time", |f| f.header.flags = flag::RAW_FLOAT, "bad_type"),
    ("a question", |f| f.header.flags = flag::QUERY, "bad_type"),
    ("an exponent round", |f| f.header.flags = flag::EXPONENT, "bad_type"),
    ("a refusal", |f| f.header.flags = flag::MISMATCH, "bad_type"),
    ("a part", |f| f.header.flags = flag::PARTIAL, "bad_type"),
    ("no elements", no_elements, "wrong_elements"),
];

/// Wrong at the aggregator, of what states that it is the parameter host's.
const FROM_ABOVE: &[Case] = &[
    ("a result and no token", |f| f.header.token = 0, "bad_token"),
    ("a result of the next epoch", |f| f.header.epoch += 1, "wrong_epoch"),
    ("a result from worker 1", |f| f.from(Ipv4Addr::new(10, 77, 1, 2)), "wrong_source"),
    ("a result from a stranger", |f| f.from(STRANGER), "wrong_source"),
    ("a result of a slot beyond the pool", |f| f.header.slot = SLOTS, "wrong_slot"),
    ("a result of a lane that no job has", |f| f.header.lane = u16::MAX, "wrong_slot"),
    ("an answer to two workers' probe", |f| f.header.kind = Kind::Report as u8, "wrong_worker"),
];

/// Wrong at a worker's host, which takes results and answers to probes.
const AT_WORKER: &[Case] = &[
    ("a stranger's address", |f| f.from(STRANGER), "wrong_source"),
    ("from worker 1", |f| f.from(Ipv4Addr::new(10, 77, 1, 2)), "wrong_source"),
    ("a contribution with the token of results", |f| f.header.kind = Kind::Contribution as u8, "bad_token"),
    ("a probe with the token of results", |f| f.header.kind = Kind::Probe as u8, "bad_token"),
];

/// Wrong at the parameter host: by its host program's reasons, and what its engine refuses.
const AT_PARAMETER_HOST: &[Case] = &[
    ("a result", |f| as_answer(f, Kind::Result), "wrong_source"),
    ("an answer to a probe", |f| as_answer(f, Kind::Report), "wrong_source"),
    ("a stranger's address", |f| f.from(STRANGER), "refused"),
    ("another worker's bit", |f| f.header.bitmap_0 = 1, "refused"),
    ("another worker's address", |f| f.from(Ipv4Addr::new(10, 77, 0, 2)), "refused"),
    ("both workers' bits", |f| f.header.bitmap_0 = 3, "refused"),
    ("no worker's bit", |f| f.header.bitmap_0 = 0, "refused"),
    ("the bit of a worker that the job has not", |f| f.header.bitmap_0 = 1 << 31, "refused"),
    ("a rack's bit", |f| (f.header.fan_in_1, f.header.bitmap_1) = (2, 2), "refused"),
    ("a lane that the job has not", |f| f.header.lane = 7, "refused"),
    ("a lane that no job has", |f| f.header.lane = u16::MAX, "refused"),
    ("a question", |f| f.header.flags = flag::QUERY, "refused"),
    ("an exponent round", |f| f.header.flags = flag::EXPONENT, "refused"),
    ("a refusal", |f| f.header.flags = flag::MISMATCH, "refused"),
    ("a largest value as floats", |f| f.header.flags = flag::RAW_FLOAT | flag::MAXIMUM, "refused"),
    ("no elements", no_elements, "refused"),
];

/// Shared slots of the lab.
const SLOTS: u32 = 1024;

fn parameter_host() -> Ipv4Addr {
    lab(2).host_ip(0)
}

fn options() -> sumac_lab::deployment::SumacOptions {
    sumac(DynamicOptions { slots: SLOTS, ..DynamicOptions::default() })
}

/// Puts a frame of chunk 0 of lane 0 into the slot that the chunk has.
fn in_its_slot(forgery: Forgery) -> Forgery {
    let mut header = forgery.header;
    (header.lane, header.slot) = (0, dynamic::hash(header.job, 0, 0, SLOTS));
    Forgery { header, ..forgery }
}

/// The same as a result for both workers.
fn for_both(forgery: Forgery) -> Forgery {
    let mut header = in_its_slot(forgery.clone()).header;
    (header.bitmap_0, header.contributors) = (3, 2);
    Forgery { header, ..forgery }
}

#[test]
fn the_aggregator_lets_nothing_forged_in() {
    with_sumac(lab(2), &options(), |sumac| {
        let crew = siege::join(sumac);
        let injector = Injector::new(sumac.lab().worker(FORGER), sumac.lab().worker_interface());
        let (job, to) = (job_at(sumac, sumac.lab().worker(0)), to_aggregator(sumac, FORGER));
        let good_one = in_its_slot(good(Kind::Contribution, to, job));
        // As the parameter host addresses them: what is for another address is the kernel's.
        let from_above = Endpoints {
            src_ip: u32::from(parameter_host()),
            dst_ip: u32::from(sumac.lab().spec().host_gateway(0)),
            ..to
        };
        let result = for_both(good(Kind::Result, from_above, job));
        let of_workers = forge(&good_one, &[ANYWHERE, AT_AGGREGATOR]);
        let frames = [of_workers, forge(&result, &[FROM_ABOVE]), cut(&good_one)].concat();
        let siege = Siege { crew: &crew, injector, frames, alive: ALIVE };
        siege.assert_harmless(|| stats::at_aggregator(sumac));
        crew.leave();
    });
}

#[test]
fn a_worker_lets_no_forged_result_in() {
    with_sumac(lab(2), &options(), |sumac| {
        let crew = siege::join(sumac);
        let injector = Injector::new(sumac.lab().aggregator(), &sumac.lab().spec().aggregator_ports()[0]);
        let job = job_at(sumac, sumac.lab().worker(0));
        let good_one = for_both(good(Kind::Result, to_worker(sumac, 0), job));
        let frames = [forge(&good_one, &[ANYWHERE, AT_WORKER]), cut(&good_one)].concat();
        let siege = Siege { crew: &crew, injector, frames, alive: ALIVE };
        siege.assert_harmless(|| stats::at_host(&crew.trainers[0].client));
        crew.leave();
    });
}

#[test]
fn a_parameter_host_lets_no_forged_contribution_in() {
    with_sumac(lab(2), &options(), |sumac| {
        let crew = siege::join(sumac);
        let injector = Injector::new(sumac.lab().aggregator(), &sumac.lab().spec().host_port(0));
        let job = job_at(sumac, &sumac.lab().parameter_hosts()[0]);
        let good_one = in_its_slot(good(Kind::Contribution, to_parameter_host(sumac, FORGER, 0), job));
        let frames = [forge(&good_one, &[ANYWHERE, AT_PARAMETER_HOST]), cut(&good_one)].concat();
        let siege = Siege { crew: &crew, injector, frames, alive: ALIVE };
        let client = Client::connect(&sumac.parameter_host_sockets()[0]).unwrap();
        siege.assert_harmless(|| {
            let refused = ("refused".to_owned(), stats::at_parameter_host(sumac, 0, "refused"));
            stats::at_host(&client).into_iter().chain([refused]).collect::<BTreeMap<_, _>>()
        });
        crew.leave();
    });
}
