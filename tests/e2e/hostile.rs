//! Forged frames, injected on the live wire: each is counted by its reason, and no sum is any different.
//!
//! ```text
//! per port                             one arm
//!
//! w0 net0 ------ port0 +-----+         w0 net0 ------ +--------+
//! w1 net0 ------ port1 | agg |         w1 net0 ------ | switch | ------ port0 agg
//!      forges ---^     +-----+              forges -^ +--------+
//! ```
//!
//! Worker 1's host is the forger's. To the aggregator it sends contributions to the very chunk that waits for worker
//! 1's, wrong in one thing each; on the switch it sends worker 0 results of that chunk that pretend to be the
//! aggregator's. Whatever is let in ruins the sum: every element is 0x55555555.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::{LabSpec, Topology};
use sumac_tests::crew::sum;
use sumac_tests::forge::{Finish, Forgery};
use sumac_tests::inject::{Injector, STRANGER, only_job, to_aggregator, to_worker};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};
use sumac_wire::frame::OVERHEAD;
use sumac_wire::header::{HEADER_LEN, Kind};
use sumac_wire::tables::HostJobEntry;

const SEED: u64 = 11;
const COUNT: usize = 300_000;

/// How often each frame is sent while worker 0 waits.
const TIMES: u64 = 5;

/// What is wrong with a frame, what makes it so, and the reason that it is counted by.
type Case = (&'static str, fn(&mut Forgery), &'static str);

/// Wrong for everybody who might receive it.
const ANYWHERE: &[Case] = &[
    ("version 0", |f| f.finish = Finish::Version(0), "bad_version"),
    ("version 2", |f| f.finish = Finish::Version(2), "bad_version"),
    ("version 15", |f| f.finish = Finish::Version(15), "bad_version"),
    ("type 0", |f| f.header.kind = 0, "bad_type"),
    ("type 15", |f| f.header.kind = 15, "bad_type"),
    ("a type of another mode", |f| f.header.kind = Kind::Stop as u8, "bad_type"),
    ("a format that nobody knows", |f| f.header.format = 1, "bad_format"),
    ("a job that is not open", |f| f.header.job += 1, "unknown_job"),
    ("a job beyond the table", |f| f.header.job = u16::MAX, "unknown_job"),
    ("no token", |f| f.header.token = 0, "bad_token"),
    ("one bit of the token", |f| f.header.token ^= 1 << 63, "bad_token"),
    ("the last epoch", |f| f.header.epoch = f.header.epoch.wrapping_sub(1), "wrong_epoch"),
    ("the next epoch", |f| f.header.epoch = f.header.epoch.wrapping_add(1), "wrong_epoch"),
    ("a stranger's address", |f| f.from(STRANGER), "wrong_source"),
    ("one element more than a chunk has", |f| more_elements(f, 1), "wrong_elements"),
    ("fewer bytes than elements", |f| f.elements_len -= 4, "bad_length"),
    ("more bytes than elements", |f| f.elements_len += 1, "bad_length"),
    ("no byte of the elements", |f| f.elements_len = 0, "bad_length"),
    ("65,535 elements announced", |f| f.header.elements = u16::MAX, "bad_length"),
    ("UDP longer than IPv4", |f| f.finish = Finish::UdpLonger(4), "bad_length"),
    ("a fragment", |f| f.finish = Finish::Fragment, "fragment"),
    ("one bit of an element", |f| f.finish = Finish::FlipBit, "bad_checksum"),
    ("no checksum", |f| f.finish = Finish::NoChecksum, "bad_checksum"),
    ("a tag, and no token", |f| (f.finish, f.header.token) = (Finish::Tagged, 0), "bad_token"),
    ("two tags", |f| f.finish = Finish::TaggedTwice, "foreign"),
];

/// Wrong at the aggregator, which takes contributions and probes.
const AT_AGGREGATOR: &[Case] = &[
    ("a result", |f| f.header.kind = Kind::Result as u8, "bad_type"),
    ("another worker's bit", |f| f.header.bitmap_0 = 1, "wrong_source"),
    ("another worker's address", |f| f.from(Ipv4Addr::new(10, 77, 0, 2)), "wrong_source"),
    ("two workers' bits", |f| f.header.bitmap_0 = 3, "wrong_worker"),
    ("no worker's bit", |f| f.header.bitmap_0 = 0, "wrong_worker"),
    ("the bit of a worker that the job has not", |f| f.header.bitmap_0 = 1 << 31, "wrong_worker"),
    ("another world", |f| f.header.fan_in_0 = 1, "wrong_worker"),
    ("a second level", |f| f.header.bitmap_1 = 1, "wrong_worker"),
    ("another chunk's slot", |f| f.header.slot = 1, "wrong_slot"),
    ("a slot beyond the job's", |f| f.header.slot = 1 << 20, "wrong_slot"),
    ("no slot at all", |f| f.header.slot = u32::MAX, "wrong_slot"),
    ("the slot's other version", |f| f.header.flags = sumac_wire::header::flag::POOL_VERSION, "wrong_slot"),
    ("no elements", |f| more_elements(f, -256), "wrong_elements"),
    ("fewer elements than the slot's first", |f| more_elements(f, -1), "wrong_elements"),
    ("a chunk far ahead", |f| far_ahead(f), "out_of_turn"),
];

/// Wrong at a worker's host, which takes results and answers to probes.
const AT_HOST: &[Case] = &[
    ("a contribution", |f| f.header.kind = Kind::Contribution as u8, "bad_type"),
    ("from worker 1", |f| f.from(Ipv4Addr::new(10, 77, 0, 11)), "wrong_source"),
];

fn more_elements(forgery: &mut Forgery, more: i16) {
    forgery.header.elements = forgery.header.elements.wrapping_add_signed(more);
    forgery.elements_len = usize::from(forgery.header.elements) * 4;
}

/// The chunk that slot 0 takes after two others that it has not had yet.
fn far_ahead(forgery: &mut Forgery) {
    forgery.header.seq = 1 << 20;
}

/// A frame of worker 0's job that would be let in, for chunk 0.
fn good(kind: Kind, sumac: &Deployment<'_>, job: (u16, HostJobEntry)) -> Forgery {
    let (number, entry) = job;
    let to = if kind == Kind::Result { to_worker(sumac, 0) } else { to_aggregator(sumac, 1) };
    let mut forgery = Forgery::new(kind, to, 1, entry.world, entry.elements);
    forgery.header.job = number;
    forgery.header.epoch = entry.epoch;
    forgery.header.token = entry.token;
    forgery
}

/// All frames of these cases, and how many of them each reason counts.
fn forge(good: &Forgery, cases: &[&[Case]]) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let mut frames: Vec<_> = cases
        .iter()
        .copied()
        .flatten()
        .map(|(what, change, reason)| {
            let mut forgery = good.clone();
            change(&mut forgery);
            (*what, forgery.bytes(), *reason)
        })
        .collect();
    // Cut at every byte of the headers and a few of the elements. Before its ports are there it is nobody's.
    let whole = OVERHEAD + HEADER_LEN + 16;
    for len in 14..whole {
        let reason = if len < 38 { "foreign" } else { "truncated" };
        frames.push(("cut short", Forgery { finish: Finish::Cut(len), ..good.clone() }.bytes(), reason));
    }
    frames
}

/// Sends each frame a few times and waits until each reason has counted as many as it should.
fn assert_counted(
    injector: &Injector,
    frames: &[(&'static str, Vec<u8>, &'static str)],
    count: impl Fn(&str) -> u64,
) {
    let mut expected = BTreeMap::new();
    for (_, _, reason) in frames {
        *expected.entry(*reason).or_insert_with(|| count(reason)) += TIMES;
    }
    for _ in 0..TIMES {
        for (_, frame, _) in frames {
            injector.send(frame);
        }
    }
    for (reason, expected) in expected {
        let mut counted = 0;
        let of: Vec<_> = frames.iter().filter(|frame| frame.2 == reason).map(|frame| frame.0).collect();
        let arrived = || {
            counted = count(reason);
            (counted >= expected).then_some(())
        };
        eventually(&format!("{reason} to grow to {expected} by {of:?}"), arrived);
        // The control plane's own traffic is foreign too; nothing else is refused while nothing else is sent.
        assert!(reason == "foreign" || counted == expected, "{reason}: {counted}, not {expected}, by {of:?}");
    }
}

/// Runs a sum while all frames are sent again and again.
fn assert_sum_undisturbed(crew: &Crew, injector: &Injector, frames: &[(&'static str, Vec<u8>, &'static str)]) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (_, frame, _) in frames {
                    injector.send(frame);
                }
            }
        });
        let sums = crew.allreduce(SEED + 1, COUNT);
        done.store(true, Ordering::Relaxed);
        exact::assert_sums("under fire", SEED + 1, &sums);
    });
}

#[test]
fn the_aggregator_lets_no_forged_contribution_in() {
    with_sumac("forged_contributions", LabSpec::new(2), &SumacOptions::default(), |sumac| {
        let crew = Crew::join(sumac, "besieged");
        let injector = Injector::new(sumac.lab().worker(1), sumac.lab().worker_interface());
        let frames = forge(
            &good(Kind::Contribution, sumac, only_job(sumac, 0)),
            &[ANYWHERE, AT_AGGREGATOR],
        );
        // Worker 0's window waits in its slots for worker 1's contributions while these come.
        let waiting = crew.trainers[0].submit(SEED, COUNT);
        stats::wait_until_stuck(&crew.trainers[0]);
        assert_counted(&injector, &frames, |reason| stats::at_aggregator(sumac, reason));
        assert_eq!(stats::counter(&crew.trainers[0], "results"), 0, "nothing completed a chunk");
        let last = crew.trainers[1].submit(SEED, COUNT);
        let sums = [waiting, last].map(|pending| sum(pending).to_vec());
        exact::assert_sums("after the forgeries", SEED, &sums);
        assert_sum_undisturbed(&crew, &injector, &frames);
        crew.leave();
    });
}

#[test]
fn a_host_lets_no_forged_result_in() {
    let spec = LabSpec { topology: Topology::OneArm, ..LabSpec::new(2) };
    with_sumac("forged_results", spec, &SumacOptions::default(), |sumac| {
        let crew = Crew::join(sumac, "besieged");
        let injector = Injector::new(sumac.lab().worker(1), sumac.lab().worker_interface());
        let frames = forge(&good(Kind::Result, sumac, only_job(sumac, 0)), &[ANYWHERE, AT_HOST]);
        let waiting = crew.trainers[0].submit(SEED, COUNT);
        stats::wait_until_stuck(&crew.trainers[0]);
        assert_counted(&injector, &frames, |reason| stats::at_host(&crew.trainers[0].client, reason));
        assert_eq!(stats::counter(&crew.trainers[0], "results"), 0, "nothing was taken for a result");
        let last = crew.trainers[1].submit(SEED, COUNT);
        let sums = [waiting, last].map(|pending| sum(pending).to_vec());
        exact::assert_sums("after the forgeries", SEED, &sums);
        assert_sum_undisturbed(&crew, &injector, &frames);
        crew.leave();
    });
}
