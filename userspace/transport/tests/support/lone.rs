//! One engine whose frames the test sees and answers one by one.

use sumac_transport::{Arithmetic, Buffer, DType, Engine, JobParams, Operation, Packet, PeerId, Time};
use sumac_wire::{
    Header, Kind,
    admit::all_workers,
    header::{HEADER_LEN, exponent, flag},
};

/// The signature of every operation here.
pub const SIGNATURE: u32 = 77;

/// A frame that the engine sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub payload: Vec<u8>,
    /// Slots of the lane.
    pub slots: u32,
    /// Whether the job is a dynamic one: then results name the lane, not the slot's next chunk.
    pub is_dynamic: bool,
}

impl Sent {
    /// The result whose sum is this contribution (the others gave zeros, and as small ones in the next chunk), of an
    /// aggregator without stealing; or the answer to a probe or to an exponent round; or, to a question, that the chunk is
    /// wanted.
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

/// An engine, and the time.
pub struct Lone {
    pub engine: Engine,
    pub now: Time,
}

impl Lone {
    /// An engine that has not sent its probe yet.
    pub fn new(params: JobParams) -> Lone {
        Lone { engine: Engine::new(params, &super::peers()).expect("good parameters"), now: Time(1_000_000) }
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

    /// Answers whatever the engine sends now.
    pub fn answer_all(&mut self) {
        while let Some(sent) = self.send() {
            self.take(&sent.answer());
        }
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
        Some(Sent { header, payload, slots: params.slots, is_dynamic: params.dynamic.is_some() })
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

    /// Lets time pass until the engine's timer is due; gives the nanoseconds that passed.
    pub fn expire(&mut self) -> u64 {
        let due = self.engine.poll_timeout().expect("a timer").max(self.now);
        let passed = due.since(self.now);
        self.now = due;
        self.engine.on_timeout(due);
        passed
    }
}
