//! Forged frames, each wrong in one thing: what makes them so, and the proof that they are counted and
//! harmless.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sumac_job::result_token;
use sumac_lab::deployment::Deployment;
use sumac_wire::frame::{Endpoints, OVERHEAD};
use sumac_wire::header::{HEADER_LEN, Kind};
use sumac_wire::tables::HostJobEntry;

use crate::crew::Crew;
use crate::forge::{Finish, Forgery};
use crate::inject::Injector;
use crate::wait::eventually;
use crate::{exact, stats};

/// The rank that the forger impersonates.
pub const FORGER: u16 = 1;

/// The tensors' seed and length.
const SEED: u64 = 11;
const COUNT: usize = 300_000;

/// The offset after the UDP ports of an untagged frame.
const PORTS_END: usize = 38;

/// A forged frame: its fault, the change of a valid frame that makes it, and the reason under which it is
/// counted.
pub type Case = (&'static str, fn(&mut Forgery), &'static str);

/// Invalid at every receiver.
pub const ANYWHERE: &[Case] = &[
    ("version 0", |f| f.finish = Finish::Version(0), "bad_version"),
    ("version 1", |f| f.finish = Finish::Version(1), "bad_version"),
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

/// Elements of a chunk in these jobs: fewer than fit the MTU, so that a frame may have more.
pub const ELEMENTS: u16 = 320;

/// No elements, and none announced.
pub fn no_elements(forgery: &mut Forgery) {
    (forgery.header.elements, forgery.elements_len) = (0, 0);
}

/// So many elements more than there should be, or fewer.
pub fn more_elements(forgery: &mut Forgery, more: i16) {
    forgery.header.elements = forgery.header.elements.wrapping_add_signed(more);
    forgery.elements_len = usize::from(forgery.header.elements) * 4;
}

/// A worker's packet that states that it is an aggregator's or a parameter host's, with the token of these.
pub fn as_answer(forgery: &mut Forgery, kind: Kind) {
    (forgery.header.kind, forgery.header.token) = (kind as u8, result_token(forgery.header.token));
}

/// The signature of an operation in the words of docs/api.md: FNV-1a of 32 bits.
fn signature(words: &str) -> u32 {
    words.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A frame that would be let in, for chunk 0 of this job.
pub fn good(kind: Kind, to: Endpoints, (number, job): (u16, HostJobEntry)) -> Forgery {
    let mut forgery = Forgery::new(kind, to, FORGER, job.world, job.elements);
    forgery.header.job = number;
    forgery.header.epoch = job.epoch;
    forgery.header.token = if kind == Kind::Result { job.result_token } else { job.token };
    forgery.header.tensor = signature(&format!("#0 allreduce sum float32[{COUNT}]"));
    forgery
}

/// A frame, what is wrong with it, and the reason that counts it.
#[derive(Clone, Debug)]
pub struct Forged {
    what: String,
    bytes: Vec<u8>,
    reason: &'static str,
}

/// The frames of these cases.
pub fn forge(good: &Forgery, cases: &[&[Case]]) -> Vec<Forged> {
    let case = |(what, change, reason): &Case| {
        let mut forgery = good.clone();
        change(&mut forgery);
        Forged { what: (*what).to_owned(), bytes: forgery.bytes(), reason }
    };
    cases.iter().copied().flatten().map(case).collect()
}

/// A good frame cut at every eighth byte of the headers and of a few elements. Before its ports are there it
/// is nobody's. The tests of the programs cut at every byte.
pub fn cut(good: &Forgery) -> Vec<Forged> {
    let cut = |len| Forged {
        what: format!("cut to {len} bytes"),
        bytes: Forgery { finish: Finish::Cut(len), ..good.clone() }.bytes(),
        reason: if len < PORTS_END { "foreign" } else { "truncated" },
    };
    (14..OVERHEAD + HEADER_LEN + 16).step_by(8).map(cut).collect()
}

/// All workers join a job whose frames may have more elements than its own.
pub fn join(sumac: &Deployment<'_>) -> Crew {
    Crew::join_with(sumac, "besieged", |options| sumac.in_its_mode(options).elements(ELEMENTS))
}

/// A job of two whose frames are forged.
#[derive(Debug)]
pub struct Siege<'a> {
    pub crew: &'a Crew,
    /// The interface at which frames are injected.
    pub injector: Injector,
    pub frames: Vec<Forged>,
    /// Counters of the job's own frames, which are retransmitted while they wait for the other worker.
    pub alive: &'static [&'static str],
}

impl Siege<'_> {
    /// Worker 0 waits for worker 1 while each frame comes once; then the sum is made, and another one under
    /// fire.
    pub fn assert_harmless(&self, counters: impl Fn() -> BTreeMap<String, u64>) {
        let waiting = self.crew.trainers[0].submit(SEED, COUNT);
        stats::wait_until_stuck(&self.crew.trainers[0]);
        self.assert_each_counted(counters);
        assert_eq!(stats::counter(&self.crew.trainers[0], "results"), 0, "a forged frame completed a chunk");
        let last = self.crew.trainers[1].submit(SEED, COUNT);
        exact::assert_sums("after the forgeries", SEED, &self.crew.results(vec![waiting, last]));
        self.assert_sum_undisturbed();
    }

    /// Sends each frame alone, and asserts that it is counted by its reason and by no other.
    fn assert_each_counted(&self, counters: impl Fn() -> BTreeMap<String, u64>) {
        let mut before = counters();
        for Forged { what, bytes, reason } in &self.frames {
            self.injector.send(bytes);
            let of = |counters: &BTreeMap<String, u64>, name: &str| counters.get(name).copied().unwrap_or(0);
            let mut after = BTreeMap::new();
            eventually(&format!("{what}: {reason} counts it"), || {
                after = counters();
                (of(&after, reason) > of(&before, reason)).then_some(())
            });
            for name in after.keys().filter(|name| !self.alive.contains(&name.as_str())) {
                let grown = of(&after, name) - of(&before, name);
                assert_eq!(grown, u64::from(name == reason), "{what}: {name} grew");
            }
            before = after;
        }
    }

    /// Runs a sum while all frames are sent again and again.
    fn assert_sum_undisturbed(&self) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let fire = scope.spawn(|| {
                let mut sent = 0u64;
                while !done.load(Ordering::Relaxed) {
                    // A chunk far ahead is out of turn only while its slot waits. Between chunks it is a lie
                    // of the worker's own host, which holds the token, and could as well lie about its
                    // values.
                    for Forged { bytes, .. } in self.frames.iter().filter(|f| f.reason != "out_of_turn") {
                        self.injector.send(bytes);
                        sent += 1;
                    }
                    // The workers share these CPUs.
                    thread::sleep(Duration::from_millis(1));
                }
                sent
            });
            let cease = CeaseFire(&done);
            let sums = self.crew.allreduce(SEED + 1, COUNT);
            drop(cease);
            println!("{} forged frames during the sum", fire.join().unwrap());
            exact::assert_sums("under fire", SEED + 1, &sums);
        });
    }
}

/// Ends the fire when it goes, also in a panic.
struct CeaseFire<'flag>(&'flag AtomicBool);

impl Drop for CeaseFire<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
