//! A worker's engine whose own contributions come straight back as results: header changed, elements as they
//! are.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_job::result_token;
use sumac_transport::{
    Buffer, DType, DynamicParams, Engine, JobParams, Operation, PeerId, PeerTable, Scale, Time,
    convert::Arithmetic,
};
use sumac_wire::{
    Kind,
    admit::payload_len,
    header::{VERSION, flag, offset},
};

fn address(last: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), 48_700)
}

/// A job with so many slots of its own, or with a window as large in a pool that it shares.
pub fn job(slots: u32, elements: u16, scaling: Scale, is_dynamic: bool) -> JobParams {
    JobParams {
        scaling,
        dynamic: is_dynamic.then(|| DynamicParams {
            initial_window: Some(slots),
            ..DynamicParams::new(4 * slots).with_window(slots)
        }),
        ..JobParams::new(1, 1, slots, elements)
    }
}

/// Makes the answer of a contribution, an exponent round or a probe.
pub fn turn_round(frame: &mut [u8], params: &JobParams, result_token: u64) {
    let kind = if frame[0] & 0x0f == Kind::Probe as u8 { Kind::Report } else { Kind::Result };
    frame[0] = VERSION << 4 | kind as u8;
    frame[offset::TOKEN..][..8].copy_from_slice(&result_token.to_be_bytes());
    frame[offset::CONTRIBUTORS + 1] = 1;
    if u16::from_be_bytes([frame[offset::FLAGS], frame[offset::FLAGS + 1]]) & flag::EXPONENT != 0 {
        frame[offset::EXPONENT] = frame[offset::NEXT_EXPONENT];
    }
    if params.dynamic.is_some() {
        frame[offset::FLAGS + 1] &= !(flag::RESEND as u8);
        return;
    }
    let seq = frame[offset::SEQ..].first_chunk().copied().map_or(0, u32::from_be_bytes);
    frame[offset::NEXT_SEQ..][..4].copy_from_slice(&seq.wrapping_add(2 * params.slots).to_be_bytes());
}

/// An engine, and a window of frames in flight: what was sent in one turn is answered in the next.
pub struct Loop {
    engine: Engine,
    /// Of the job's results; a hash, so not made for each packet.
    token: u64,
    frames: Vec<Vec<u8>>,
    lengths: Vec<usize>,
    now: Time,
    buffer: Option<Box<dyn Buffer>>,
}

impl Loop {
    /// A loop around an engine with these terms, with a tensor of `bytes`: as floats, all of them 0.046.
    pub fn new(params: JobParams, bytes: usize) -> Loop {
        let (slots, frame) = (params.slots as usize, payload_len(params.elements));
        let peers = PeerTable::of(Some(address(1)), [address(2)]);
        Loop {
            token: result_token(params.token),
            engine: Engine::new(params, &peers).expect("good parameters"),
            frames: vec![vec![0; frame]; slots],
            lengths: Vec::with_capacity(slots),
            now: Time(0),
            buffer: Some(Box::new(vec![0x3du8; bytes])),
        }
    }

    /// Sums a tensor of `count` elements. Returns the number of packets each way.
    pub fn allreduce(&mut self, dtype: DType, count: usize) -> usize {
        let buffer = self.buffer.take().expect("handed back");
        let operation = Operation::allreduce(0, dtype, Arithmetic::Sum, count, buffer);
        self.engine.submit(self.now, operation).expect("a good operation");
        let mut packets = 0;
        loop {
            self.counted_transmit();
            packets += self.lengths.len();
            if self.lengths.is_empty() {
                break;
            }
            for (frame, len) in self.frames.iter_mut().zip(&self.lengths) {
                turn_round(&mut frame[..*len], self.engine.params(), self.token);
            }
            self.counted_receive();
        }
        self.buffer = self.engine.poll_completion().map(|completion| completion.buffer);
        packets
    }

    #[inline(never)]
    fn counted_transmit(&mut self) {
        self.lengths.clear();
        for frame in &mut self.frames {
            self.now = self.now.plus(100);
            let Some(sent) = self.engine.poll_transmit(self.now, frame) else { break };
            self.lengths.push(sent.len);
        }
    }

    #[inline(never)]
    fn counted_receive(&mut self) {
        for (frame, len) in self.frames.iter().zip(&self.lengths) {
            self.now = self.now.plus(100);
            self.engine.on_payload(self.now, PeerId(0), &frame[..*len]);
        }
    }
}
