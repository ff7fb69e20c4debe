//! The conformance vectors on the P4 program, run by the behavioural model: frames through its ports, and
//! after each the counter, all that left, and the registers of the slot. And what the vectors do not have:
//! time, ARP, ICMP and queues.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod model;
mod run;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use model::{Model, Program, with_program};
use run::{PORTS, Run};
use sumac_agg_p4::target::{Change, Entry, Update};
use sumac_vectors::{
    cases, packets,
    random::{self, Profile, SWITCH_SEED},
    record::{Job, Setup, Slot, SlotVersion, Step, Transition},
    reference::Reference,
};
use sumac_wire::{
    Header, Reason, checksum,
    frame::OVERHEAD,
    header::flag,
    slot::{owner, state},
    tos,
};

/// Returns a number from the environment.
fn number(variable: &str, or: u64) -> u64 {
    env::var(variable).map_or(or, |text| text.parse().expect(variable))
}

fn run_random(program: &Program, profile: Profile, seed: u64, steps: usize) {
    let setup = packets::setup("random", Some(seed), random::jobs(profile, false));
    let mut model = Model::start(PORTS);
    let begin = Instant::now();
    let mut run = Run::new(&mut model, program, &setup);
    run.steps(&random::steps(&setup, seed, steps));
    run.finish();
    println!("seed {seed}: {steps} steps in {:?}", begin.elapsed());
}

/// `SUMAC_VECTORS_SEED` and `SUMAC_VECTORS_STEPS` choose others, to show a difference again.
#[test]
fn random_packets() {
    with_program("random_packets", |program| {
        let steps = number("SUMAC_VECTORS_STEPS", 2000) as usize;
        run_random(program, Profile::Switch, number("SUMAC_VECTORS_SEED", SWITCH_SEED), steps);
    });
}

#[test]
fn the_table_of_bounded_cases() {
    with_program("the_table_of_bounded_cases", |program| run_cases(program, &cases::bounded()));
}

/// Jobs with a budget for each lane. `SUMAC_VECTORS_SEED` and `SUMAC_VECTORS_STEPS` choose others.
#[test]
fn random_packets_of_bounded_jobs() {
    with_program("random_packets_of_bounded_jobs", |program| {
        let steps = number("SUMAC_VECTORS_STEPS", 2000) as usize;
        run_random(program, Profile::BoundedSwitch, number("SUMAC_VECTORS_SEED", SWITCH_SEED), steps);
    });
}

/// Seed 99 has a reply to an exponent round whose chunk has overflowed since.
#[test]
fn random_packets_with_a_round_after_an_overflow() {
    with_program("random_packets_with_a_round_after_an_overflow", |program| {
        run_random(program, Profile::Switch, 99, 3400);
    });
}

/// Seed 16 has chunks that take slots whose sums have left, one of them a maximum's, which takes a turn more.
#[test]
fn random_packets_with_slots_taken_after_their_sums() {
    with_program("random_packets_with_slots_taken_after_their_sums", |program| {
        run_random(program, Profile::Switch, 16, 1900);
    });
}

#[test]
fn the_table_of_cases() {
    with_program("the_table_of_cases", |program| {
        let mut parts = cases::all(false);
        parts.retain(|(_, steps)| !cases::is_beyond_switch(steps));
        run_cases(program, &parts);
    });
}

/// Runs cases, which all have the same jobs.
fn run_cases(program: &Program, parts: &[(Setup, Vec<Step>)]) {
    let mut model = Model::start(PORTS);
    let mut run = Run::new(&mut model, program, &parts[0].0);
    for (setup, steps) in parts {
        assert_eq!(setup.jobs, parts[0].0.jobs);
        run.empty();
        run.steps(steps);
    }
    run.finish();
}

/// A switch may drop a contribution between two turns for its blocks. The register is set here as that leaves
/// it.
#[test]
fn a_chunk_without_all_blocks_of_a_contribution_does_not_leave() {
    with_program("a_chunk_without_all_blocks_of_a_contribution_does_not_leave", |program| {
        let job = Job { whole: true, ..packets::static_job(1, 2, 200) };
        let setup = packets::setup("blocks", None, vec![job.clone()]);
        let mut model = Model::start(PORTS);
        let mut run = Run::new(&mut model, program, &setup);
        let contributes =
            |rank: usize, reason: Reason| contribution(&job, rank, packets::header(&job, rank, 0), reason);
        run.steps(&[contributes(0, Reason::Added)]);
        run.leave_unwritten(0);
        run.steps(&[contributes(1, Reason::Completed)]);
        run.finish();
    });
}

/// Returns a step of which nothing leaves, and whose slot is not compared.
fn contribution(job: &Job, rank: usize, header: Header, reason: Reason) -> Step {
    let from = &job.workers[rank];
    let values = vec![1; header.elements.into()];
    let frame = packets::frame(job, from, &header, &values, 0, packets::TOS);
    let (interface, reason) = (from.interface, reason.name().into());
    Step { case: None, interface, frame, reason, answer: None, slot: None, shared: None }
}

/// Vectors have no time: the ticks at which somebody last added are set here.
#[test]
fn a_slot_to_which_nobody_adds_is_taken_back() {
    with_program("a_slot_to_which_nobody_adds_is_taken_back", |program| {
        let jobs = [6, 7].map(|number| Job { whole: true, ..packets::dynamic_job(number, 2, 13) });
        let setup = packets::setup("ageing", None, jobs.to_vec());
        let mut model = Model::start(PORTS);
        let mut run = Run::new(&mut model, program, &setup);
        let [silent, other] = jobs;
        let contributes = |job: &Job, rank: usize, reason: Reason| {
            contribution(job, rank, Header { slot: 3, ..packets::header(job, rank, 3) }, reason)
        };
        run.steps(&[contributes(&silent, 0, Reason::Added)]);
        run.age();
        run.steps(&[contributes(&other, 0, Reason::Reclaimed)]);
        run.finish();
    });
}

/// A lane comes to the end of the numbers after 2^32 chunks; so the slot is set here as it is then.
#[test]
fn bounds_go_on_where_chunk_numbers_wrap() {
    with_program("bounds_go_on_where_chunk_numbers_wrap", |program| {
        type Edit = dyn Fn(&mut Header);
        const ALL: u32 = 0b111;
        let job = Job { bounded: true, ..packets::static_job(1, 3, 13) };
        let setup = packets::setup("wrap", None, vec![job.clone()]);
        let mut model = Model::start(PORTS);
        let mut run = Run::new(&mut model, program, &setup);
        // Chunks of slot 0, one after another.
        let [first, second, third, fourth] = [u32::MAX - 7, u32::MAX - 3, 0, 4];
        let done = |seq: u32| SlotVersion {
            seq,
            seen: ALL,
            received: ALL,
            next: seq.wrapping_add(8),
            state: state::FINAL,
            ..SlotVersion::default()
        };
        let versions = [done(first - 8), done(second - 8)];
        let before = Slot { owner: owner(job.job, job.epoch), versions, ..Slot::default() };
        run.begin(job.slot_base, &before);
        let mut reference = Reference::new(setup);
        reference.begin(&Step {
            slot: Some(Transition { index: job.slot_base, before: before.clone(), after: before }),
            ..contribution(&job, 0, packets::header(&job, 0, first), Reason::Added)
        });
        let terms =
            |header: &mut Header| (header.contributors, header.next_seq) = (1, header.seq.wrapping_add(8));
        let whole = |_: &mut Header| ();
        let flush_of = |operation: u32| {
            move |header: &mut Header| {
                header.flags |= flag::PARTIAL;
                (header.contributors, header.next_seq) = (1, operation);
            }
        };
        let table: [(usize, u32, &Edit, Reason); 13] = [
            (0, first, &terms, Reason::Added),
            (1, first, &terms, Reason::Added),
            (2, first, &terms, Reason::Completed),
            (0, second, &whole, Reason::Added),
            (1, second, &flush_of(first), Reason::Completed),
            (0, third, &terms, Reason::OutOfTurn),
            (2, second, &whole, Reason::Replied),
            (0, third, &terms, Reason::Added),
            (1, third, &terms, Reason::Added),
            (2, third, &terms, Reason::Completed),
            (0, fourth, &whole, Reason::Added),
            (2, fourth, &flush_of(first), Reason::Added),
            (2, fourth, &flush_of(third), Reason::Completed),
        ];
        let steps = table.map(|(rank, seq, change, reason)| {
            let mut header = packets::header(&job, rank, seq);
            change(&mut header);
            let step = contribution(&job, rank, header, reason);
            let received = reference.receive(step.interface, step.frame);
            assert_eq!(received.reason, reason.name(), "worker {rank}, chunk {seq}");
            received
        });
        run.steps(&steps);
        run.finish();
    });
}

/// A contribution that arrives between the two turns of a flush, and is not the last, writes its blocks after
/// the flush has claimed the version: its turns come in between. Another flush of the chunk spends nothing.
/// Turns are slow here, so that they come in this order.
#[test]
fn a_flush_waits_until_contributions_before_it_are_written() {
    with_program("a_flush_waits_until_contributions_before_it_are_written", |program| {
        // bmv2/sumac.p4 has it, and the turns of a second.
        const RECIRCULATION_PORT: u32 = 510;
        const SLOW: u64 = 3;
        // The first lane of job 1.
        const LANE: u32 = 64;
        let job = Job { bounded: true, ..packets::static_job(1, 4, 200) };
        let mut model = Model::start(PORTS);
        drop(Run::new(&mut model, program, &packets::setup("turns", None, vec![job.clone()])));
        let send = |model: &Model, rank: usize, seq: u32, change: &dyn Fn(&mut Header)| {
            let mut header = packets::header(&job, rank, seq);
            change(&mut header);
            model
                .ports
                .send(job.workers[rank].interface, &contribution(&job, rank, header, Reason::Added).frame);
        };
        let flush = |header: &mut Header| {
            header.flags |= flag::PARTIAL;
            (header.contributors, header.next_seq) = (1, 0);
        };
        let until = |model: &mut Model, name: &str, cell: u32, is: &dyn Fn(u64) -> bool| {
            let begin = Instant::now();
            while !is(model.thrift.register(program.name(name), cell)) {
                assert!(begin.elapsed() < Duration::from_secs(20), "{name} {cell}");
                thread::sleep(Duration::from_millis(1));
            }
        };
        // The number of contributors that each copy of a chunk's result names.
        let results = |model: &Model, of: u32| {
            let mut copies = Vec::new();
            let begin = Instant::now();
            while copies.len() < job.workers.len() && begin.elapsed() < Duration::from_secs(20) {
                for (_, frame) in model.ports.receive(Duration::from_millis(500)) {
                    let header = Header::read(&frame[..], OVERHEAD, frame.len() - OVERHEAD).unwrap();
                    // A late packet may have had an answer of its own.
                    if header.seq == of && copies.len() < job.workers.len() {
                        copies.push(header.contributors);
                    }
                }
            }
            copies
        };
        for rank in 0..4 {
            send(&model, rank, 0, &|header| (header.contributors, header.next_seq) = (3, 100));
        }
        assert_eq!(results(&model, 0), [4; 4]);
        // The time of arrival is not certain: chunks of the lane's other slots, until one was in between.
        for seq in 1..4 {
            send(&model, 0, seq, &|_| ());
            until(&mut model, "missing_senders", seq, &|missing| missing == 0b1110);
            until(&mut model, "unwritten_senders", seq, &|unwritten| unwritten == 0b1110);
            model.thrift.set_queue_rate(RECIRCULATION_PORT, SLOW);
            send(&model, 1, seq, &flush);
            until(&mut model, "spent_chunks", LANE, &|spent| spent == u64::from(seq));
            send(&model, 2, seq, &|_| ());
            let is_taken = u64::from(state::FINAL | state::PARTIAL);
            until(&mut model, "states", seq, &|state| state & is_taken != 0);
            send(&model, 0, seq, &flush);
            let copies = results(&model, seq);
            model.thrift.set_queue_rate(RECIRCULATION_PORT, 1_000_000);
            assert!(copies == [3; 4] || copies == [2; 4], "contributors of chunk {seq}: {copies:?}");
            assert_eq!(model.thrift.register(program.name("spent_chunks"), LANE), u64::from(seq));
            if copies == [3; 4] {
                return;
            }
        }
        panic!("no contribution was decided between a flush's turns");
    });
}

#[test]
fn own_addresses_answer_arp_and_ping() {
    with_program("own_addresses_answer_arp_and_ping", |program| {
        const OWN: [u8; 4] = [10, 77, 10, 1];
        const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xff];
        const ASKING: [u8; 4] = [10, 77, 10, 2];
        const ASKING_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
        let mac = OWN_MAC.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
        let own = Entry::new("own", "set_own").exact("ip", u32::from_be_bytes(OWN)).parameter("own_mac", mac);
        let model = Model::start(PORTS);
        Model::install(program, &[Update::Entry(Change::Insert, own)]);
        let left = |frame: &[u8]| {
            model.ports.send(0, frame);
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                let left = model.ports.receive(Duration::from_millis(500));
                if !left.is_empty() || Instant::now() > deadline {
                    return left;
                }
            }
        };
        let arp =
            |to: &[u8; 6], from: &[u8; 6], operation: u8, sender: [u8; 4], of: &[u8; 6], target: [u8; 4]| {
                let fixed = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation];
                [&to[..], from, &fixed, from, &sender, of, &target].concat()
            };
        let asked = arp(&[0xff; 6], &ASKING_MAC, 1, ASKING, &[0; 6], OWN);
        let answer = arp(&ASKING_MAC, &OWN_MAC, 2, OWN, &ASKING_MAC, ASKING);
        assert_eq!(left(&asked), [(0, answer)]);
        // Some whose checksum carries over, and some whose does not.
        for data in [0_u16, 0x07f0, 0xf000, 0xf7ff] {
            let echo = |kind: u8, to: &[u8; 6], from: &[u8; 6], src: [u8; 4], dst: [u8; 4]| {
                let mut icmp = [&[kind, 0, 0, 0, 0, 7, 0, 1][..], &data.to_be_bytes()].concat();
                let sum = !checksum::fold(checksum::add(0, &icmp));
                icmp[2..4].copy_from_slice(&sum.to_ne_bytes());
                let mut ip = [&[0x45, 0, 0, 30, 0, 0, 0x40, 0, 64, 1, 0, 0][..], &src, &dst].concat();
                let sum = !checksum::fold(checksum::add(0, &ip));
                ip[10..12].copy_from_slice(&sum.to_ne_bytes());
                [&to[..], from, &[0x08, 0x00], &ip, &icmp].concat()
            };
            let asked = echo(8, &OWN_MAC, &ASKING_MAC, ASKING, OWN);
            let answer = echo(0, &ASKING_MAC, &OWN_MAC, OWN, ASKING);
            assert_eq!(left(&asked), [(0, answer)], "{data:#x}");
        }
    });
}

/// Each queue of a port in turn takes nothing: what is lost are the packets whose tag is of that queue.
#[test]
fn packets_have_the_queue_of_their_tag() {
    with_program("packets_have_the_queue_of_their_tag", |program| {
        const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
        const DEPTH: u32 = 64;
        let mac = TO.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
        let way = Entry::new("hosts", "forward").exact("mac", mac).parameter("port", PORTS[1]);
        let mut model = Model::start(PORTS);
        Model::install(program, &[Update::Entry(Change::Insert, way)]);
        for closed in 0..tos::QUEUES {
            model.thrift.set_queue_depth(PORTS[1], closed, 0);
            for dscp in 0..64 {
                let ip = [0x45, dscp << 2, 0, 20, 0, 0, 0x40, 0, 64, 255, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
                model.ports.send(PORTS[0], &[&TO[..], &[2, 0, 0, 0, 0, 1, 0x08, 0], &ip].concat());
                // The model reads a burst with losses.
                thread::sleep(Duration::from_millis(2));
            }
            let stays = |dscp: &u8| tos::queue_of(dscp << 2) != closed;
            let expected: Vec<_> = (0..64).filter(stays).map(|dscp| (PORTS[1], dscp)).collect();
            let mut left = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                let frames = model.ports.receive(Duration::from_millis(300));
                left.extend(frames.iter().map(|(port, frame)| (*port, frame[15] >> 2)));
                let is_all = left.len() >= expected.len() || Instant::now() > deadline;
                if frames.is_empty() && is_all {
                    break;
                }
            }
            left.sort_unstable();
            assert_eq!(left, expected, "queue {closed}");
            model.thrift.set_queue_depth(PORTS[1], closed, DEPTH);
        }
    });
}
