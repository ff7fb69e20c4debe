//! One engine whose frames the test sees and answers one by one.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_job::result_token;
use sumac_transport::{
    Arithmetic, Buffer, DType, Engine, JobError, JobParams, Operation, Packet, PeerId, PeerTable, Scale, Time,
};
use sumac_wire::{
    Header, Kind, Reason,
    header::{HEADER_LEN, exponent, flag},
    workers::all_workers,
};

/// An aggregator and a parameter host.
pub fn peers() -> PeerTable {
    let address = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_600);
    PeerTable::of(Some(address(1)), [address(2)])
}

/// A small job with a fixed scale; rank 0.
pub fn job(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams { scaling: Scale::Fixed(65536.0), ..block(world, slots, elements) }
}

/// The same with exponents that the workers agree on.
pub fn block(world: u16, slots: u32, elements: u16) -> JobParams {
    JobParams { epoch: 7, token: 0x5eed_cafe_f00d_beef, ..JobParams::new(3, world, slots, elements) }
}

/// The signature of every operation here.
pub const SIGNATURE: u32 = 77;

/// A frame that the engine sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub payload: Vec<u8>,
    pub path: u16,
    /// Slots of the lane.
    pub slots: u32,
    /// Whether the job is a dynamic one: then results name the lane, not the slot's next chunk.
    pub is_dynamic: bool,
}

impl Sent {
    /// The result whose sum is this contribution (the others gave zeros, and as small ones in the next
    /// chunk), of an aggregator without stealing; or the answer to a probe or to an exponent round; or, to a
    /// question, that the chunk is wanted.
    pub fn answer(&self) -> Vec<u8> {
        self.answer_with(|_| ())
    }

    /// Whether it asks for a chunk that was sent before.
    pub fn is_question(&self) -> bool {
        self.header.has(flag::QUERY)
    }

    /// The same when another worker was the last, whose clock the result echoes.
    pub fn answer_to_another(&self) -> Vec<u8> {
        self.answer_with(|header| header.timestamp ^= 1 << 31)
    }

    /// The same with a header that was tampered with.
    pub fn answer_with(&self, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let world = u16::from(self.header.fan_in_0);
        let mut header = match self.header.kind {
            kind if kind == Kind::Probe as u8 => Header { kind: Kind::Report as u8, ..self.header },
            _ if self.is_dynamic => Header {
                kind: Kind::Result as u8,
                flags: self.header.flags & !flag::RESEND,
                bitmap_0: 0,
                bitmap_1: 0,
                contributors: world,
                ..self.header
            },
            _ => Header {
                kind: Kind::Result as u8,
                bitmap_0: all_workers(world),
                contributors: world,
                next_seq: self.header.seq.wrapping_add(2 * self.slots),
                ..self.header
            },
        };
        header.token = result_token(self.header.token);
        if self.header.has(flag::EXPONENT) {
            (header.exponent, header.next_exponent) = (self.header.next_exponent, exponent::NONE);
            header.next_seq = 0;
        }
        if self.is_question() {
            header.next_seq = 0;
        }
        change(&mut header);
        let mut payload = self.payload.clone();
        payload[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        payload
    }
}

/// A change of a valid header.
pub type Change = fn(&mut Header);

/// Changes of a result's header that no mode accepts.
pub const TAMPERED: [(&str, Change, Reason); 11] = [
    ("another job", |h| h.job += 1, Reason::UnknownJob),
    ("another epoch", |h| h.epoch += 1, Reason::WrongEpoch),
    ("another token", |h| h.token ^= 1 << 63, Reason::BadToken),
    ("a contribution", |h| h.kind = Kind::Contribution as u8, Reason::BadType),
    ("a probe", |h| h.kind = Kind::Probe as u8, Reason::BadType),
    ("a stop", |h| h.kind = Kind::Stop as u8, Reason::BadType),
    ("a format", |h| h.format = 3, Reason::BadFormat),
    ("raw bytes", |h| h.format = 2, Reason::BadFormat),
    ("a partial sum", |h| h.flags |= flag::PARTIAL, Reason::BadType),
    ("between aggregators", |h| h.flags |= flag::LEVEL, Reason::BadType),
    ("one contributor", |h| h.contributors = 1, Reason::WrongWorker),
];

/// An engine, and the time.
pub struct Lone {
    pub engine: Engine,
    pub now: Time,
}

impl Lone {
    /// An engine that has not sent its probe yet.
    pub fn new(params: JobParams) -> Lone {
        Lone { engine: Engine::new(params, &peers()).expect("good parameters"), now: Time(1_000_000) }
    }

    /// An engine after the handshake, which took `rtt` nanoseconds.
    pub fn ready(params: JobParams, rtt: u64) -> Lone {
        let mut lone = Lone::new(params);
        // A dynamic job's parameter host is asked as well.
        let probes: Vec<Sent> = std::iter::from_fn(|| lone.send()).collect();
        lone.wait(rtt);
        probes.iter().for_each(|probe| lone.take(&probe.answer()));
        lone
    }

    /// Answers everything until nothing more is sent.
    pub fn finish(&mut self) {
        loop {
            let sent = self.send_all();
            if sent.is_empty() {
                return;
            }
            sent.iter().for_each(|sent| self.take(&sent.answer()));
        }
    }

    /// Takes a frame's answer with each of these changes: it ends in its counter, and changes nothing.
    pub fn refuses(&mut self, sent: &Sent, table: &[(&str, Change, Reason)]) {
        for (what, change, reason) in table {
            let count = |lone: &Lone| {
                let stats = lone.engine.stats();
                let essence =
                    [stats.results, stats.elements_received, stats.in_flight, stats.reports, stats.cwnd];
                (essence, stats.raw_chunks, stats.frames.get(*reason))
            };
            let (essence, raw, before) = count(self);
            self.take(&sent.answer_with(change));
            assert_eq!(count(self), (essence, raw, before + 1), "{what}");
        }
    }

    /// Whatever arrives in place of the answers: no panic, one counter, and memory behind the tensor stays as
    /// it is.
    pub fn survives(&mut self, dtype: DType, count: usize, flips: &[(usize, usize, u8)], lengths: &[usize]) {
        let before = self.engine.stats().frames.total();
        self.submit(dtype, count, [vec![0u8; count * 4], vec![0x5a; 80]].concat());
        let sent = self.send_all();
        for ((which, at, value), len) in flips.iter().zip(lengths) {
            let mut frame = sent[which % sent.len()].answer();
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *value;
            }
            self.take(&frame);
            frame.truncate(*len);
            self.take(&frame);
            self.send_all();
        }
        let frames = self.engine.stats().frames.total() - before;
        assert_eq!(frames, 2 * flips.len().min(lengths.len()) as u64);
        self.engine.fail(JobError::Ended { reason: "test over".into() });
        let completion = self.engine.poll_completion().expect("one operation");
        assert_eq!(completion.buffer.input(count * 4, 80), &[0x5a; 80]);
    }

    pub fn submit(&mut self, dtype: DType, count: usize, buffer: impl Buffer + 'static) {
        self.operate(Operation::allreduce(SIGNATURE, dtype, Arithmetic::Sum, count, Box::new(buffer)));
    }

    /// Submits whatever it is.
    pub fn operate(&mut self, operation: Operation) {
        let operation = Operation { priority: 5, ..operation };
        self.engine.submit(self.now, operation).expect("a good operation");
    }

    /// Submits floats, to be summed in place.
    pub fn submit_floats(&mut self, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.submit(DType::Float32, values.len(), bytes);
    }

    /// The next frame, if there is one.
    pub fn send(&mut self) -> Option<Sent> {
        let mut payload = vec![0; 4096];
        let sent = self.engine.poll_transmit(self.now, &mut payload)?;
        payload.truncate(sent.len);
        let header = Header::read(&payload[..], 0, payload.len()).expect("a valid packet");
        let params = self.engine.params();
        let (slots, is_dynamic) = (params.slots, params.dynamic.is_some());
        Some(Sent { header, payload, path: sent.path, slots, is_dynamic })
    }

    /// All frames that can be sent now, a microsecond apart.
    pub fn send_all(&mut self) -> Vec<Sent> {
        std::iter::from_fn(|| {
            self.wait(1_000);
            self.send()
        })
        .collect()
    }

    pub fn take(&mut self, payload: &[u8]) {
        self.engine.on_payload(self.now, PeerId(0), payload);
    }

    /// Takes a payload that the network has marked.
    pub fn take_marked(&mut self, payload: &[u8]) {
        let packet = Packet::parse(payload, PeerId(0), true).expect("a valid packet");
        self.engine.on_packet(self.now, &packet);
    }

    pub fn wait(&mut self, nanos: u64) {
        self.now = self.now.plus(nanos);
    }

    /// Lets time pass until the engine's timer is due; returns the nanoseconds that passed.
    pub fn expire(&mut self) -> u64 {
        let due = self.engine.poll_timeout().expect("a timer").max(self.now);
        let passed = due.since(self.now);
        self.now = due;
        self.engine.on_timeout(due);
        passed
    }
}
