//! Sequences of packets at the aggregator, the parameter host and the engine.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_agg_host::HostAggregator;
use sumac_fuzz::{Fields, edited, sequence};
use sumac_parameter::{HostJob, ParameterHost, Worker};
use sumac_transport::{
    Arithmetic, DType, DirectParams, DynamicParams, Engine, Exchange, JobParams, Operation, Pattern, Peer,
    PeerId, PeerRole, PeerTable, Time, Tuning,
};
use sumac_wire::{
    Header, Kind,
    frame::OVERHEAD,
    header::{HEADER_LEN, NO_SLOT, flag},
};

use crate::{
    fuzz,
    support::{DYNAMIC_SLOTS, dynamic, frames, job_of},
};

const ELEMENTS: u16 = 5;

#[test]
fn packets_at_an_aggregator() {
    let (own, shared) = (job_of(3, ELEMENTS), dynamic::dynamic_job(3, ELEMENTS));
    let shared = sumac_agg_job::NewJob { job: 6, ..shared };
    let payload = |frame: Vec<u8>| frame[OVERHEAD..].to_vec();
    let mut examples = Vec::new();
    for rank in 0..3 {
        for seq in [0, 1, 8, 16] {
            examples.push((own.workers[rank].ip, payload(frames::contribution(&own, rank, seq, ELEMENTS))));
            let header = dynamic::header(&shared, rank, seq, seq % 3);
            examples.push((own.workers[rank].ip, payload(dynamic::contribution(&shared, rank, &header))));
        }
    }
    fuzz!(|input: &[u8]| {
        let aggregator =
            HostAggregator::of_shard(0, 1, 64, ELEMENTS).and_then(|one| one.with_dynamic(DYNAMIC_SLOTS));
        let mut aggregator = aggregator.unwrap();
        aggregator.install(&own).unwrap();
        aggregator.install(&shared).unwrap();
        for part in sequence(input) {
            let (ip, example) = &examples[usize::from(part[0]) % examples.len()];
            let mut packet = edited(std::slice::from_ref(example), &[&[part[0] & 0x80], &part[1..]].concat());
            let source = Ipv4Addr::from_bits(*ip);
            let answer = match part[0] & 0x40 {
                0 => aggregator.on_packet(source, &mut packet),
                _ => aggregator.on_marked_packet(source, &mut packet),
            };
            assert!(aggregator.counter(answer.reason()) > 0, "each packet is counted");
        }
    });
}

#[test]
fn packets_at_a_parameter_host() {
    let address = |last| SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, last), 48800);
    let aggregator = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 48700);
    let workers = (0..3).map(|bit| Worker { address: address(bit + 1), rack: 0, bit });
    let job = HostJob {
        job: 3,
        epoch: 7,
        token: 0xfeed,
        elements: ELEMENTS,
        window: 4,
        slots: 16,
        lanes: 2,
        shards: 1,
        checksum: true,
        congestion_control: true,
        workers: workers.collect(),
        upstream: vec![aggregator],
    };
    let mut examples = Vec::new();
    for (bit, seq) in (0..3).flat_map(|bit| [0, 1, 4, 9].map(|seq| (bit, seq))) {
        let header = Header {
            kind: Kind::Contribution as u8,
            job: 3,
            epoch: 7,
            token: 0xfeed,
            seq,
            received: seq,
            slot: seq % 16,
            fan_in_0: 3,
            bitmap_0: 1 << bit,
            elements: ELEMENTS,
            tensor: 77,
            exponent: i8::MIN,
            next_exponent: i8::MIN,
            ..Header::default()
        };
        let direct = Header { flags: flag::RESEND, slot: NO_SLOT, ..header };
        let partial = Header { flags: flag::LEVEL, ..header };
        for (from, header) in [(address(bit + 1), direct), (aggregator, partial)] {
            let mut packet = header.to_bytes().to_vec();
            packet.extend([1; 4 * ELEMENTS as usize]);
            examples.push((from, packet));
        }
    }
    fuzz!(|input: &[u8]| {
        let mut host = ParameterHost::new();
        host.install(job.clone()).unwrap();
        let mut out = [0; 4096];
        for (turn, part) in sequence(input).enumerate() {
            let (from, example) = &examples[usize::from(part[0]) % examples.len()];
            let packet = edited(std::slice::from_ref(example), &[&[part[0] & 0x80], &part[1..]].concat());
            let now = Time(turn as u64 * 1_000_000);
            host.on_packet(now, *from, 0, &packet, part[0] & 0x40 != 0);
            host.on_timeout(now);
            while let Some(sending) = host.poll_transmit(&mut out) {
                let sent = &out[..sending.len];
                assert!(Header::read(sent, 0, sent.len()).is_ok(), "it sends packets");
            }
        }
    });
}

/// Answers to what an engine sent, changed; and the parameters that a control plane assigns.
fn run_engine(params: JobParams, input: &[u8]) {
    let peer = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_600);
    let peers = PeerTable::of(Some(peer(1)), [peer(2)]);
    let Ok(mut engine) = Engine::new(params, &peers) else { return };
    let values: Vec<u8> = (0..90u32).flat_map(|value| (value as f32).to_ne_bytes()).collect();
    let guarded = [values, vec![0x5a; 64]].concat();
    let operation = Operation::allreduce(7, DType::Float32, Arithmetic::Sum, 90, Box::new(guarded));
    let _ = engine.submit(Time(1), operation);
    let (mut now, mut sent, mut room) = (Time(2), Vec::new(), vec![0; engine.frame_len().max(4096)]);
    for part in sequence(input) {
        now = now.plus(1 + u64::from(part[0]) * 10_000);
        engine.on_timeout(now);
        for _ in 0..8 {
            let Some(transmit) = engine.poll_transmit(now, &mut room) else { break };
            sent.push(room[..transmit.len].to_vec());
        }
        let Some(request) = sent.get(usize::from(part[0]) % sent.len().max(1)) else { continue };
        let answer = edited(&[answer_to(request)], &[&[part[0] & 0x80], &part[1..]].concat());
        engine.on_payload(now, PeerId((part[0] & 1).into()), &answer);
        if part[0] == 0x7f {
            let _ = engine.set_slots(u32::from(part.get(1).copied().unwrap_or(0)));
        }
    }
    engine.fail(sumac_transport::JobError::Ended { reason: "the input is over".to_owned() });
    if let Some(completion) = engine.poll_completion() {
        assert_eq!(completion.buffer.input(90 * 4, 64), &[0x5a; 64], "memory behind the tensor");
    }
}

fn answer_to(request: &[u8]) -> Vec<u8> {
    let mut answer = request.to_vec();
    if let Ok(header) = Header::read(request, 0, request.len()) {
        let kind = if header.kind == Kind::Probe as u8 { Kind::Report } else { Kind::Result };
        let header = Header {
            kind: kind as u8,
            token: sumac_job::result_token(header.token),
            bitmap_0: 0b11,
            contributors: 2,
            next_seq: header.seq + 8,
            ..header
        };
        answer[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    }
    answer
}

#[test]
fn answers_at_the_engine_of_a_static_job() {
    fuzz!(|input: &[u8]| run_engine(JobParams { token: 9, ..JobParams::new(3, 2, 4, 8) }, input));
}

#[test]
fn answers_at_the_engine_of_a_dynamic_job() {
    fuzz!(|input: &[u8]| {
        let dynamic = Some(DynamicParams::new(8));
        run_engine(JobParams { token: 9, slots: 0, dynamic, ..JobParams::new(3, 2, 4, 8) }, input);
    });
}

/// The engine of worker 0 of three, and those of the others, whose packets to it are changed on the way.
#[test]
fn packets_at_the_engine_of_a_direct_job() {
    const WORLD: u16 = 3;
    const COUNT: usize = 90;
    let address = |rank: u16| SocketAddrV4::new(Ipv4Addr::from(0x0a00_0001 + u32::from(rank)), 48_600);
    let peers =
        PeerTable::new((0..WORLD).map(|rank| Peer { role: PeerRole::Worker, address: address(rank) }));
    let engine = |rank: u16| {
        let direct = Some(DirectParams::new(16));
        let params = JobParams { rank, token: 9, slots: 0, direct, ..JobParams::new(1, WORLD, 1, 8) };
        Engine::starting_at(params, &peers, &Tuning::default(), 0).unwrap()
    };
    let operation = |number: u32, pattern: Pattern| {
        let values: Vec<u8> = (0..COUNT).flat_map(|value| (value as f32).to_ne_bytes()).collect();
        let guarded = [values, vec![0x5a; 64]].concat();
        let exchange = Some(Box::new(Exchange { number, pattern }));
        let sum = Operation::allreduce(7, DType::Float32, Arithmetic::Sum, COUNT, Box::new(guarded));
        Operation { exchange, loss_bound: 0.1, ..sum }
    };
    let owned: Vec<_> = (0..3).map(|rank| rank * COUNT / 3..(rank + 1) * COUNT / 3).collect();
    let sum = |ring, contributors| {
        let owned = owned.clone();
        Pattern::Collective { reduces: true, distributes: true, owned, contributors, ring }
    };
    fuzz!(|input: &[u8]| {
        let mut engines: Vec<Engine> = (0..WORLD).map(engine).collect();
        for engine in &mut engines {
            let _ = engine.submit(Time(1), operation(1, sum(false, 0..3)));
            let _ = engine.submit(Time(1), operation(2, sum(true, 0..3)));
            // Of a server: the engine that is attacked.
            let _ = engine.submit(Time(1), operation(4, sum(false, 1..3)));
        }
        let _ = engines[0].submit(Time(1), operation(3, Pattern::Receive { from: 1, keeps: true }));
        let _ = engines[1].submit(Time(1), operation(3, Pattern::Send { to: 0 }));
        let (mut now, mut room) = (Time(2), vec![0; 4096]);
        let mut under_way: Vec<(PeerId, Vec<u8>)> = Vec::new();
        for part in sequence(input) {
            now = now.plus(1 + u64::from(part[0]) * 10_000);
            for from in 0..WORLD {
                engines[usize::from(from)].on_timeout(now);
                for _ in 0..8 {
                    let Some(transmit) = engines[usize::from(from)].poll_transmit(now, &mut room) else {
                        break;
                    };
                    let sent = &room[..transmit.len];
                    assert!(Header::read(sent, 0, sent.len()).is_ok(), "it sends packets");
                    match transmit.to.0 {
                        0 => under_way.push((PeerId(from), sent.to_vec())),
                        to => engines[usize::from(to)].on_payload(now, PeerId(from), sent),
                    }
                }
            }
            let Some(at) = (part[0] as usize).checked_rem(under_way.len()) else { continue };
            let (from, packet) = under_way.swap_remove(at);
            let packet = match part[0] & 0x40 {
                0 => packet,
                _ => edited(&[packet], &[&[part[0] & 0x80], &part[1..]].concat()),
            };
            engines[0].on_payload(now, from, &packet);
        }
        engines[0].fail(sumac_transport::JobError::Ended { reason: "the input is over".to_owned() });
        for completion in std::iter::from_fn(|| engines[0].poll_completion()) {
            assert_eq!(completion.buffer.input(COUNT * 4, 64), &[0x5a; 64], "memory behind the tensor");
            let loss = completion.loss.unwrap_or_default();
            assert!(loss.by_worker.iter().all(|lost| *lost <= loss.budget), "{loss:?}");
        }
    });
}

#[test]
fn assigned_parameters() {
    fuzz!(|input: &[u8]| {
        let mut numbers = Fields(input);
        let world = numbers.below(40) as u16;
        let mut params =
            JobParams::new(numbers.below(64) as u16, world, numbers.below(600), numbers.below(2300) as u16);
        params.rank = numbers.below(40) as u16;
        (params.rack_rank, params.rack_world) = (numbers.below(33) as u16, numbers.below(33) as u16);
        (params.lane, params.shards) = (numbers.below(20) as u16, numbers.below(17) as u16);
        params.measure = numbers.word() % 2 == 0;
        if numbers.word() % 2 == 0 {
            params.dynamic = Some(DynamicParams::new(numbers.below(64)).with_window(numbers.below(512)));
        }
        let rest = numbers.0;
        run_engine(params, rest);
    });
}
