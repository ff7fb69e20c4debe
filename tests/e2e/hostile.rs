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
//! To the aggregator come contributions to the very chunk that waits for worker 1's, from its own host, wrong in one
//! thing each; to worker 0 come results of that chunk, from the aggregator's end of its wire. Whatever is let in ruins
//! the sum: every element is 0x55555555.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sumac_lab::LabSpec;
use sumac_lab::deployment::SumacOptions;
use sumac_tests::forge::{Finish, Forgery};
use sumac_tests::inject::{Injector, STRANGER, only_job, to_aggregator, to_worker};
use sumac_tests::site::with_sumac;
use sumac_tests::wait::eventually;
use sumac_tests::{Crew, exact, stats};
use sumac_wire::frame::{Endpoints, OVERHEAD};
use sumac_wire::header::{HEADER_LEN, Kind, flag};
use sumac_wire::tables::HostJobEntry;

const SEED: u64 = 11;
const COUNT: usize = 300_000;

/// Whose place the forger would take.
const FORGER: u16 = 1;

/// Where the UDP ports of an untagged frame end.
const PORTS_END: usize = 38;

/// What is wrong with a good frame, what makes it so, and the reason that it is counted by.
type Case = (&'static str, fn(&mut Forgery), &'static str);

/// Wrong for everybody who might receive it.
const ANYWHERE: &[Case] = &[
    ("version 0", |f| f.finish = Finish::Version(0), "bad_version"),
    ("version 2", |f| f.finish = Finish::Version(2), "bad_version"),
    ("version 15", |f| f.finish = Finish::Version(15), "bad_version"),
    ("type 0", |f| f.header.kind = 0, "bad_type"),
    ("type 15", |f| f.header.kind = 15, "bad_type"),
    ("a type of another mode", |f| f.header.kind = Kind::Stop as u8, "bad_type"),
    ("a format that nobody knows", |f| f.header.format = 9, "bad_format"),
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
    ("a contribution", |f| f.header.kind = Kind::Contribution as u8, "bad_type"),
    ("from worker 1", |f| f.from(Ipv4Addr::new(10, 77, 1, 2)), "wrong_source"),
];

fn no_elements(forgery: &mut Forgery) {
    (forgery.header.elements, forgery.elements_len) = (0, 0);
}

fn more_elements(forgery: &mut Forgery, more: i16) {
    forgery.header.elements = forgery.header.elements.wrapping_add_signed(more);
    forgery.elements_len = usize::from(forgery.header.elements) * 4;
}

/// A frame that would be let in, for chunk 0 of this job.
fn good(kind: Kind, to: Endpoints, (number, job): (u16, HostJobEntry)) -> Forgery {
    let mut forgery = Forgery::new(kind, to, FORGER, job.world, job.elements);
    forgery.header.job = number;
    forgery.header.epoch = job.epoch;
    forgery.header.token = job.token;
    forgery.header.tensor = signature(&format!("#0 allreduce sum float32[{COUNT}]"));
    forgery
}

/// The signature of an operation in the words of docs/api.md: FNV-1a of 32 bits.
fn signature(words: &str) -> u32 {
    words.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A fixed scale: no chunk is preceded by a round for its exponent.
fn options() -> SumacOptions {
    SumacOptions { scale: Some(1_048_576.0), ..SumacOptions::default() }
}

/// A frame, what is wrong with it, and the reason that counts it.
struct Forged {
    what: String,
    bytes: Vec<u8>,
    reason: &'static str,
}

/// All frames of these cases.
fn forge(good: &Forgery, cases: &[&[Case]]) -> Vec<Forged> {
    let case = |(what, change, reason): &Case| {
        let mut forgery = good.clone();
        change(&mut forgery);
        Forged { what: (*what).to_owned(), bytes: forgery.bytes(), reason }
    };
    let mut frames: Vec<_> = cases.iter().copied().flatten().map(case).collect();
    // Cut at every byte of the headers and of a few elements. Before its ports are there it is nobody's.
    frames.extend((14..OVERHEAD + HEADER_LEN + 16).map(|len| Forged {
        what: format!("cut to {len} bytes"),
        bytes: Forgery { finish: Finish::Cut(len), ..good.clone() }.bytes(),
        reason: if len < PORTS_END { "foreign" } else { "truncated" },
    }));
    frames
}

/// Sends each frame alone, and asserts that it is counted by its reason and by no other.
fn assert_each_counted(injector: &Injector, frames: &[Forged], counters: impl Fn() -> BTreeMap<String, u64>) {
    let mut before = counters();
    for Forged { what, bytes, reason } in frames {
        injector.send(bytes);
        let of = |counters: &BTreeMap<String, u64>, name: &str| counters.get(name).copied().unwrap_or(0);
        let mut after = BTreeMap::new();
        eventually(&format!("{what}: {reason} counts it"), || {
            after = counters();
            (of(&after, reason) > of(&before, reason)).then_some(())
        });
        for name in after.keys().filter(|name| !["foreign", "probed"].contains(&name.as_str())) {
            let grown = of(&after, name) - of(&before, name);
            let expected = u64::from(name == reason);
            // Contributions that wait for the other worker are sent again now and then.
            let alive = ["duplicate", "added"].contains(&name.as_str());
            assert!(alive || grown == expected, "{what}: {name} grew by {grown}");
        }
        before = after;
    }
}

/// Ends the fire when it goes, also in a panic.
struct CeaseFire<'flag>(&'flag AtomicBool);

impl Drop for CeaseFire<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a sum while all frames are sent again and again.
fn assert_sum_undisturbed(crew: &Crew, injector: &Injector, frames: &[Forged]) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let fire = scope.spawn(|| {
            let mut sent = 0u64;
            while !done.load(Ordering::Relaxed) {
                // A chunk far ahead is out of turn only while its slot waits. Between chunks it is a lie of the
                // worker's own host, which holds the token, and could as well lie about its values.
                for Forged { bytes, .. } in frames.iter().filter(|frame| frame.reason != "out_of_turn") {
                    injector.send(bytes);
                    sent += 1;
                }
                // The workers share these CPUs.
                thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let cease = CeaseFire(&done);
        let sums = crew.allreduce(SEED + 1, COUNT);
        drop(cease);
        println!("{} forged frames during the sum", fire.join().unwrap());
        exact::assert_sums("under fire", SEED + 1, &sums);
    });
}

/// Worker 0 waits for worker 1 while each frame comes once; then the sum is made, and another one under fire.
fn assert_harmless(
    crew: &Crew,
    injector: &Injector,
    frames: &[Forged],
    counters: impl Fn() -> BTreeMap<String, u64>,
) {
    let waiting = crew.trainers[0].submit(SEED, COUNT);
    stats::wait_until_stuck(&crew.trainers[0]);
    assert_each_counted(injector, frames, counters);
    assert_eq!(stats::counter(&crew.trainers[0], "results"), 0, "a forged frame completed a chunk");
    let last = crew.trainers[1].submit(SEED, COUNT);
    exact::assert_sums("after the forgeries", SEED, &crew.results(vec![waiting, last]));
    assert_sum_undisturbed(crew, injector, frames);
}

#[test]
fn the_aggregator_lets_no_forged_contribution_in() {
    with_sumac(LabSpec::new(2), &options(), |sumac| {
        let crew = Crew::join(sumac, "besieged");
        let injector = Injector::new(sumac.lab().worker(FORGER), sumac.lab().worker_interface());
        let good = good(Kind::Contribution, to_aggregator(sumac, FORGER), only_job(sumac, 0));
        let frames = forge(&good, &[ANYWHERE, AT_AGGREGATOR]);
        assert_harmless(&crew, &injector, &frames, || stats::at_aggregator(sumac));
        crew.leave();
    });
}

#[test]
fn a_host_lets_no_forged_result_in() {
    with_sumac(LabSpec::new(2), &options(), |sumac| {
        let crew = Crew::join(sumac, "besieged");
        let injector = Injector::new(sumac.lab().aggregator(), &sumac.lab().spec().aggregator_ports()[0]);
        let good = good(Kind::Result, to_worker(sumac, 0), only_job(sumac, 0));
        let frames = forge(&good, &[ANYWHERE, AT_HOST]);
        let victim = &crew.trainers[0].client;
        assert_harmless(&crew, &injector, &frames, || stats::at_host(victim));
        crew.leave();
    });
}
