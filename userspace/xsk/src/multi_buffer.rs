//! Packets longer than a chunk, which take several descriptors.
//!
//! xsk-rs has no descriptor that starts at the beginning of a chunk: `FrameDesc` cannot be made for an
//! address, and those of `Umem::new` start behind the headroom. So the chunks of a packet are not contiguous.
//! A packet of several chunks is written into a buffer and copied into them when it is submitted, and copied
//! together when it is received.

use crate::{frames::TxFrame, layout::UmemLayout};

/// The buffers of frames for packets that may take several chunks.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Bytes of a packet; zero where every packet takes one chunk.
    len: usize,
    unused: Vec<Vec<u8>>,
}

impl Buffers {
    pub(crate) fn new(layout: UmemLayout) -> Buffers {
        let len = if layout.is_multi_buffer() { layout.packet() } else { 0 };
        Buffers { len, unused: Vec::new() }
    }

    /// Gives a frame the buffer that it needs.
    pub(crate) fn attach(&mut self, frame: &mut TxFrame) {
        if self.len > 0 {
            frame.buffer = self.unused.pop().unwrap_or_else(|| vec![0; self.len]);
        }
    }

    /// Takes the buffer of a frame back, unless it is another queue's.
    pub(crate) fn detach(&mut self, frame: TxFrame) {
        if self.len > 0 && frame.buffer.len() == self.len {
            self.unused.push(frame.buffer);
        }
    }
}

/// The received descriptors of a packet that has more to come.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    bytes: Vec<u8>,
    /// Whether the last descriptor of the packet is still to come.
    is_open: bool,
    /// Whether a descriptor of the packet was refused, so that the others are of no use.
    is_broken: bool,
}

impl Reassembly {
    pub(crate) fn add(&mut self, bytes: Option<&[u8]>, continues: bool, mut each: impl FnMut(&[u8])) {
        match bytes {
            Some(bytes) if !self.is_open && !continues => return each(bytes),
            Some(bytes) if !self.is_broken => self.bytes.extend_from_slice(bytes),
            Some(_) => {}
            None => self.is_broken = true,
        }
        self.is_open = continues;
        if continues {
            return;
        }
        if !self.is_broken {
            each(&self.bytes);
        }
        self.bytes.clear();
        self.is_broken = false;
    }
}
