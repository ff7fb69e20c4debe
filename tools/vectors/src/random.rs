//! Packets drawn from a seed. Most continue what their slot holds, so that chunks complete; the others are
//! late, repeated, of other operations, forged, corrupted or cut.

use rand::{Rng as _, SeedableRng as _, seq::IndexedRandom as _};
use rand_chacha::ChaCha8Rng;
use sumac_wire::{
    Header, Kind,
    frame::{ETH_LEN, OVERHEAD},
    header::{HEADER_LEN, NO_SLOT, exponent, flag},
    tos,
};

use crate::{
    packets::{self, SHARDS, TOS},
    record::{Host, Job, Level, Mode, Setup, Step},
    reference::Reference,
};

/// Elements of the longest chunk of jobs on hosts: three times what a switch's pass of 4 words takes, and one
/// more.
pub const ELEMENTS: u16 = 13;

/// The seed of the switch's packets in all tests: on every plane the same.
pub const SWITCH_SEED: u64 = 17;

/// The shortest Ethernet frame, without its check sequence: no shorter one arrives at a switch.
const SHORTEST_FRAME: usize = 60;

/// The aggregators that the packets are for (docs/protocol.md, "Profile of a switch").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// All that the protocol has.
    #[default]
    Host,
    /// All sums hold all workers, no checksums, chunks of at most 256 elements, dynamic jobs' of 64, and no
    /// sum of a dynamic job overflows.
    Switch,
    /// The same, but that sums of the static jobs of one level, of which most are, have loss bounds.
    BoundedSwitch,
}

/// Returns jobs of each mode and level. `checksum`: whether their packets carry one; those of a switch have
/// none.
pub fn jobs(profile: Profile, checksum: bool) -> Vec<Job> {
    if profile == Profile::BoundedSwitch {
        return bounded_jobs();
    }
    let two_lanes = |job: Job| Job { slots: 8, shards: SHARDS, ..job };
    let is_switch = profile == Profile::Switch;
    // Chunks that fill all four of a switch's blocks, a part of the last, one block, and not even that.
    let elements = |number: u16| match number {
        2 if is_switch => 256,
        4 if is_switch => 200,
        6 | 8 if is_switch => 64,
        _ => ELEMENTS,
    };
    let static_job = |number, world| packets::static_job(number, world, elements(number));
    let dynamic_job = |number, world| packets::dynamic_job(number, world, elements(number));
    let two_hosts = vec![packets::parent(0), packets::parent(1)];
    let jobs = [
        static_job(1, 3),
        Job { reassigns: true, ..two_lanes(static_job(2, 2)) },
        static_job(3, 1),
        packets::at_rack(static_job(4, 2)),
        packets::at_root(static_job(5, 2)),
        Job { parents: two_hosts.clone(), ..dynamic_job(6, 3) },
        packets::at_rack(dynamic_job(7, 2)),
        Job { parents: two_hosts, ..packets::at_root(dynamic_job(8, 2)) },
        dynamic_job(9, 1),
    ];
    jobs.map(|job| Job { checksum: checksum && !is_switch, whole: is_switch, ..job }).to_vec()
}

/// Returns the jobs of [`Profile::BoundedSwitch`]: one of them is without bounds.
fn bounded_jobs() -> Vec<Job> {
    let bounded = |number: u16, workers: u8, elements: u16, lane_slots_log2: u16| Job {
        bounded: true,
        slots: 1 << lane_slots_log2,
        lane_slots_log2,
        ..packets::static_job(number, workers, elements)
    };
    vec![
        bounded(1, 3, ELEMENTS, 1),
        Job { reassigns: true, slots: 4, shards: SHARDS, ..bounded(2, 4, 256, 1) },
        Job { reassigns: true, ..bounded(3, 2, ELEMENTS, 0) },
        bounded(4, 1, ELEMENTS, 1),
        Job { whole: true, bounded: false, ..bounded(5, 2, ELEMENTS, 1) },
    ]
}

/// Returns so many steps of an aggregator that begins empty.
pub fn steps(setup: &Setup, seed: u64, count: usize) -> Vec<Step> {
    let mut reference = Reference::new(setup.clone());
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed), sent: Vec::new() };
    let mut steps = Vec::with_capacity(count);
    for _ in 0..count {
        let (interface, frame) = draw.frame(&reference);
        steps.push(reference.receive(interface, frame));
    }
    steps
}

struct Draw {
    rng: ChaCha8Rng,
    /// Frames that were sent, with their interfaces: any of them may arrive again.
    sent: Vec<(u32, Vec<u8>)>,
}

impl Draw {
    /// Returns true in one of so many cases.
    fn once_in(&mut self, cases: u32) -> bool {
        self.rng.random_ratio(1, cases)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.random_range(0..all.len())]
    }

    fn frame(&mut self, reference: &Reference) -> (u32, Vec<u8>) {
        if self.once_in(12)
            && let Some(again) = self.sent.choose(&mut self.rng)
        {
            return again.clone();
        }
        let jobs = &reference.setup().jobs;
        let job = &jobs[self.rng.random_range(0..jobs.len())];
        let (mut header, mut from) = match job.mode {
            Mode::Static => self.static_packet(reference, job),
            Mode::Dynamic => self.dynamic_packet(job),
        };
        let lane = match job.mode {
            Mode::Static => header.slot >> job.lane_slots_log2,
            Mode::Dynamic => header.lane.into(),
        };
        let mut shard = (lane % u32::from(job.shards)) as u16;
        if self.once_in(10) {
            self.forge(job, &mut header, &mut from, &mut shard);
        }
        let shift = self.one_of(&[0, 8, 8, 24]);
        // A switch's sums are clamped without the flag.
        let shift = if job.is_of_switch() && job.mode == Mode::Dynamic { shift.max(8) } else { shift };
        let values: Vec<i32> = (0..header.elements).map(|_| self.rng.random::<i32>() >> shift).collect();
        let tos = self.one_of(&[TOS, TOS, TOS, TOS, TOS, TOS | tos::ECT_0, TOS | tos::CE]);
        let mut bytes = packets::frame(job, &from, &header, &values, shard, tos);
        if self.once_in(25) {
            self.damage(&mut bytes, if job.is_of_switch() { SHORTEST_FRAME } else { ETH_LEN });
        }
        if self.once_in(8) {
            bytes.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        }
        let sent = (from.interface, bytes);
        // A network forgets a packet some time; here after a few rounds of the slots.
        if self.sent.len() < 200 {
            self.sent.push(sent.clone());
        } else {
            let at = self.rng.random_range(0..200);
            self.sent[at] = sent.clone();
        }
        sent
    }

    /// Returns a valid packet of a dynamic job's worker, parameter host or root.
    fn dynamic_packet(&mut self, job: &Job) -> (Header, Host) {
        let rank = self.rng.random_range(0..job.workers.len());
        let seq = self.rng.random_range(0..3);
        let mut header = packets::header(job, rank, seq);
        // Mostly slots of the job's own, and chunks of one kind, so that they meet.
        header.slot = if self.once_in(6) { 0 } else { (u32::from(job.job) * 3 + seq) % (job.slots / 2) };
        header.lane = self.one_of(&[0, 0, 0, 1, 1, 2]);
        header.elements = if self.once_in(25) { self.one_of(&[1, 4, job.elements]) } else { 9 };
        header.tensor = if self.once_in(25) { 8 } else { 7 };
        header.exponent = if self.once_in(25) { 3 } else { 0 };
        header.next_exponent = self.one_of(&[-5, 2, 7]);
        header.received = self.one_of(&[0, 1, 2, u32::MAX]);
        header.flags |= if (seq == 2) ^ self.once_in(25) { flag::MAXIMUM } else { 0 };
        let merged = [flag::OVERFLOW, flag::NOT_FINITE, flag::ECN_ECHO, flag::COLLISION];
        header.flags |= if self.once_in(4) { self.one_of(&merged) } else { 0 };
        // Results free slots for the chunks that follow.
        let parents = if job.is_of_switch() { 5 } else { 2 };
        match self.rng.random_range(0..21 + parents) {
            0..12 => {}
            12..15 => header.flags |= flag::RESEND,
            15 => header.flags |= flag::RESEND | flag::RAW_FLOAT,
            16 => (header.flags, header.slot) = (header.flags | flag::RESEND, NO_SLOT),
            17 => header.kind = Kind::Probe as u8,
            18..20 => {
                header.flags |= flag::RESEND | flag::PARTIAL;
                (header.contributors, header.next_seq) = (self.one_of(&[0, 1, 9]), self.one_of(&[0, seq, 9]));
            }
            20 => header.flags |= flag::PARTIAL,
            _ => return self.parents_packet(job, &header),
        }
        (header, job.workers[rank].clone())
    }

    /// Returns a packet of the host that a dynamic job's sums go to.
    fn parents_packet(&mut self, job: &Job, request: &Header) -> (Header, Host) {
        let kind = if self.once_in(8) { Kind::Report } else { Kind::Result } as u8;
        let flags = self.one_of(&[0, 0, flag::ECN_ECHO, flag::RAW_FLOAT, flag::COLLISION, flag::LEVEL]);
        let elements = if self.once_in(5) { 0 } else { request.elements };
        let header = Header { kind, token: job.result_token, flags, elements, ..*request };
        let shard = usize::from(request.lane % job.shards);
        (header, job.parents[shard % job.parents.len()].clone())
    }

    /// Returns a valid packet of a static job's worker or parent.
    fn static_packet(&mut self, reference: &Reference, job: &Job) -> (Header, Host) {
        let rank = self.rng.random_range(0..job.workers.len());
        let (slot, seq, version) = self.chunk(reference, job);
        let is_parents = job.level == Level::Rack && self.once_in(4);
        let header =
            if is_parents { packets::from_parent(job, rank, seq) } else { packets::header(job, rank, seq) };
        let flags = header.flags & !flag::POOL_VERSION | if version == 1 { flag::POOL_VERSION } else { 0 };
        let mut header = Header { slot, flags, ..header };
        header.received = self.one_of(&[seq, seq, seq, seq, seq.wrapping_add(1), 0]);
        header.tensor = self.one_of(&[7, 7, 7, 7, 7, 7, 7, 8]);
        let most = job.elements;
        header.elements = self.one_of(&[most, most, most, most, most, most, most, 4]);
        header.exponent = self.one_of(&[exponent::NONE, -5, 7]);
        header.next_exponent = self.one_of(&[exponent::NONE, exponent::UNKNOWN, -5, 2, 7]);
        let merged = [flag::OVERFLOW, flag::NOT_FINITE, flag::ECN_ECHO, flag::RESEND];
        header.flags |= if self.once_in(6) { self.one_of(&merged) } else { 0 };
        // Maxima by chunk, so that most of a chunk's packets agree.
        header.flags |= if (seq % 5 == 4) ^ self.once_in(20) { flag::MAXIMUM } else { 0 };
        if job.bounded {
            self.bound(&mut header, reference.is_round(job, slot, version));
            return (header, job.workers[rank].clone());
        }
        match self.rng.random_range(0..24) {
            0..3 => (header.elements, header.flags) = (0, header.flags | flag::EXPONENT),
            3..5 => (header.elements, header.flags) = (0, header.flags | flag::QUERY),
            5..7 if !is_parents => {
                header.flags = header.flags & !flag::MAXIMUM | flag::PARTIAL;
                (header.contributors, header.next_seq) = (self.one_of(&[0, 1, 4]), seq & !7);
            }
            7 => header.kind = self.one_of(&[3, 3, 4]),
            16..22 if seq & 7 == 0 && !is_parents => {
                (header.contributors, header.next_seq) =
                    (self.one_of(&[1, 4]), seq.wrapping_add(self.one_of(&[0, 8, 9])));
            }
            8 if is_parents => header.flags |= flag::MISMATCH,
            9..12 if is_parents && !job.is_of_switch() => {
                (header.bitmap_0, header.flags) =
                    (self.one_of(&[1, 0b11, 0b110]), header.flags | flag::PARTIAL);
            }
            9..13 if !job.is_of_switch() && !is_parents => {
                (header.elements, header.flags) = (0, header.flags & !flag::MAXIMUM | flag::EMPTY);
            }
            9..16 if job.is_of_switch() && reference.is_round(job, slot, version) => {
                (header.elements, header.flags) = (0, header.flags | flag::EXPONENT);
            }
            _ => {}
        }
        let from = if is_parents { &job.parents[0] } else { &job.workers[rank] };
        (header, from.clone())
    }

    /// Makes a contribution one of a bounded job: operations of 4 chunks, mostly with terms, and flushes.
    fn bound(&mut self, header: &mut Header, is_round: bool) {
        let seq = header.seq;
        let operation = seq & !3;
        match self.rng.random_range(0..24) {
            0..2 => (header.elements, header.flags) = (0, header.flags | flag::EXPONENT),
            2..4 => (header.elements, header.flags) = (0, header.flags | flag::QUERY),
            4 => header.kind = self.one_of(&[3, 3, 4]),
            5..15 if is_round => (header.elements, header.flags) = (0, header.flags | flag::EXPONENT),
            5..22 if seq == operation => {
                header.contributors = self.one_of(&[1, 2, 2, 3, 3, 40_000]);
                header.next_seq = seq.wrapping_add(self.one_of(&[4, 4, 4, 4, 4, 4, 5, 3, 0, 1 << 20]));
            }
            5..16 => {
                header.flags = header.flags & !flag::MAXIMUM | flag::PARTIAL;
                header.contributors = self.one_of(&[0, 1, 1, 1, 4, u16::MAX]);
                let others = [operation.wrapping_sub(4), seq, seq.wrapping_add(1)];
                header.next_seq = if self.once_in(6) { self.one_of(&others) } else { operation };
            }
            // Terms of an operation that nobody else has.
            16 if self.once_in(8) => (header.contributors, header.next_seq) = (1, seq.wrapping_add(4)),
            _ => {}
        }
    }

    /// Returns slot, chunk and version: mostly what the slot waits for.
    fn chunk(&mut self, reference: &Reference, job: &Job) -> (u32, u32, u8) {
        let lane_slots = 1 << job.lane_slots_log2;
        let slot = self.rng.random_range(0..job.slots);
        let first = slot % lane_slots;
        let meta = reference.slot(job.slot_base + slot);
        let [one, two] = meta.versions;
        if meta.owner == 0 {
            return self.one_of(&[(slot, first, 0), (slot, first, 0), (slot, first + lane_slots, 1)]);
        }
        // The chunk of a version, and the one that takes it next; a version that was never used takes the
        // slot's second chunk.
        let next = |used: bool, next: u32, or: u32| if used { next } else { or };
        let is_used = |version: &sumac_wire::slot::Version| version.seen != 0 || version.state != 0;
        let likely = [
            (slot, one.seq, 0),
            (slot, one.seq, 0),
            (slot, next(is_used(&one), one.next, first), 0),
            (slot, two.seq, 1),
            (slot, two.seq, 1),
            (slot, next(is_used(&two), two.next, first + lane_slots), 1),
            (slot, first + lane_slots, 1),
            (slot, one.seq.wrapping_sub(2 * lane_slots), 0),
            (slot, two.seq.wrapping_add(4 * lane_slots), 1),
        ];
        self.one_of(&likely)
    }

    /// Changes what shows that a packet is its sender's.
    fn forge(&mut self, job: &Job, header: &mut Header, from: &mut Host, shard: &mut u16) {
        // Half of all numbers away is neither before nor after (RFC 1982), and a switch need not take it for
        // the same.
        let far = if job.is_of_switch() { 9 << 28 } else { 1 << 31 };
        match self.rng.random_range(0..16) {
            0 => header.token ^= 1 << self.rng.random_range(0..64),
            1 => header.epoch ^= 1 << self.rng.random_range(0..16),
            2 => header.bitmap_0 ^= 1 << self.rng.random_range(0..32),
            3 => header.bitmap_1 ^= 1 << self.rng.random_range(0..32),
            4 => header.fan_in_0 ^= 1 << self.rng.random_range(0..8),
            5 => header.fan_in_1 ^= 1 << self.rng.random_range(0..8),
            6 => header.slot = self.one_of(&[job.slots - 1, job.slots, job.slots + 4, NO_SLOT - 1, NO_SLOT]),
            7 => header.flags ^= 1 << self.rng.random_range(0..16),
            8 => header.elements = self.one_of(&[0, 1, job.elements + 1]),
            9 => header.kind = self.rng.random_range(0..16),
            10 => header.job = self.one_of(&[0, 10, 63, 64, u16::MAX]),
            11 => header.format = self.rng.random_range(0..5),
            12 => *shard = self.one_of(&[0, 1]),
            13 => from.aggregator_ip = [10, 77, 99, 1].into(),
            14 => {
                (header.seq, header.lane) = self.one_of(&[(9, 33), (u32::MAX, 0), (far, 3)]);
                // Terms from far ahead would end a lane's bounds for good.
                header.contributors = if job.bounded { 0 } else { header.contributors };
            }
            _ => from.ip = self.one_of(&[[10, 77, 10, 2], [10, 77, 11, 2], [10, 77, 99, 9]]).into(),
        }
    }

    /// Cuts or corrupts a frame, or makes it somebody else's.
    fn damage(&mut self, bytes: &mut Vec<u8>, shortest: usize) {
        match self.rng.random_range(0..10) {
            0 => bytes.truncate(self.rng.random_range(shortest..bytes.len())),
            1 => bytes[20] |= 0x20, // more fragments
            2 => bytes[21] = 1,     // a later fragment
            3 => bytes[23] = 6,     // TCP
            4 => bytes[14] = 0x46,  // options
            5 => bytes[17] ^= 4,    // IPv4's length
            6 => bytes[39] ^= 4,    // UDP's length
            7 => bytes[OVERHEAD] = self.one_of(&[0x21, 0x41, 0x30, 0x36]),
            // An element, not the header's reserved bytes: aggregators may pass those on, or clear them.
            8 if bytes.len() > OVERHEAD + HEADER_LEN => {
                let at = self.rng.random_range(OVERHEAD + HEADER_LEN..bytes.len());
                bytes[at] ^= 1 << self.rng.random_range(0..8);
            }
            _ => bytes[40..42].fill(0), // no UDP checksum
        }
    }
}
