//! The frames, and whose each is at the moment.
//!
//! A frame is what a packet that is to be sent lies in, one chunk of the kernel's or several neighbouring ones; or a chunk
//! that the kernel receives into.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use std::{io, slice};

use serde::Serialize;

use crate::{
    abi::{Address, CONTINUES, Descriptor},
    layout::Layout,
    mapping::Mapping,
};

/// Who has a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On the list of frames to send with.
    Free,
    /// A [`TxFrame`] exists for it.
    Held,
    /// The kernel's: in the transmit ring, on its way, or in the completion ring. The bits are the chunks that have not
    /// come back.
    Sent(u32),
    /// The kernel's: in the fill ring, being filled, or in the receive ring.
    Filled,
    /// A received packet is being read.
    Reading,
}

/// The right to write one frame, until it is submitted or given back.
///
/// There is one such token per held frame and it cannot be copied, so a frame cannot be sent twice.
/// Dropping it loses the frame for sending, which [`Conservation::held`] shows.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is neither submitted nor cancelled is lost for sending"]
pub struct TxFrame {
    umem: u32,
    index: u32,
}

/// Where all frames are. A frame that is in none of these places, or in two, is a bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conservation {
    /// All frames of the UMEM.
    pub frames: u32,
    /// Free for sending, or for receiving and not with the kernel.
    pub free: u32,
    /// Being written, by tokens that exist.
    pub held: u32,
    /// Given to the kernel for sending, and not completed.
    pub sent: u32,
    /// With the kernel for receiving.
    pub filled: u32,
    /// Received and being read.
    pub reading: u32,
    /// Descriptors from the kernel that named no frame that it had. Zero, or a driver is broken.
    pub misplaced: u64,
}

impl Conservation {
    /// Whether every frame is in exactly one place and the kernel never handed back a wrong one.
    pub fn holds(&self) -> bool {
        let placed = [self.free, self.held, self.sent, self.filled, self.reading];
        placed.iter().sum::<u32>() == self.frames && self.misplaced == 0
    }
}

/// Memory cut into frames for sending, and behind them frames for receiving.
#[derive(Debug)]
pub(crate) struct Umem {
    id: u32,
    memory: Arc<Mapping>,
    layout: Layout,
    /// Of the frames for sending, then of those for receiving.
    states: Vec<State>,
    free: Vec<u32>,
    /// Frames for receiving that the kernel does not have.
    spare: Vec<u32>,
    misplaced: u64,
}

impl Umem {
    /// Allocates the frames, which all are free.
    pub(crate) fn new(layout: Layout) -> io::Result<Umem> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let bytes = usize::try_from(layout.bytes()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let frames = layout.sending + layout.receiving;
        Ok(Umem {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory: Arc::new(Mapping::anonymous(bytes)?),
            layout,
            states: vec![State::Free; frames as usize],
            // The lowest index on top: few frames in flight stay few in the cache.
            free: (0..layout.sending).rev().collect(),
            spare: (layout.sending..frames).rev().collect(),
            misplaced: 0,
        })
    }

    /// The memory, which must be kept while the kernel may use it.
    pub(crate) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Bytes of a frame for sending.
    pub(crate) fn packet_size(&self) -> u32 {
        self.layout.packet()
    }

    /// Free frames for sending.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free frame to write it.
    pub(crate) fn take(&mut self) -> Option<TxFrame> {
        let index = self.free.pop()?;
        self.states[index as usize] = State::Held;
        Some(TxFrame { umem: self.id, index })
    }

    /// Gives a frame back unsent.
    pub(crate) fn cancel(&mut self, frame: TxFrame) {
        if self.owns(&frame) {
            self.states[frame.index as usize] = State::Free;
            self.free.push(frame.index);
        }
    }

    /// Whether the token is of this UMEM.
    pub(crate) fn owns(&self, frame: &TxFrame) -> bool {
        frame.umem == self.id
    }

    /// The bytes of a held frame; none when the token is another UMEM's.
    pub(crate) fn bytes_mut(&mut self, frame: &mut TxFrame) -> &mut [u8] {
        let len = if self.owns(frame) { self.layout.packet() as usize } else { 0 };
        let Some(start) = self.memory.at(frame.index as usize * len, len) else { return &mut [] };
        // SAFETY: inside the mapping. The frame is held: the kernel does not have it, and the borrows of
        // `self` and of the only token shut out every other access of this process.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Gives a held frame to the kernel for sending: its descriptors, of which there is at least one.
    pub(crate) fn send(&mut self, frame: TxFrame, len: u32) -> impl Iterator<Item = Descriptor> + use<> {
        let Layout { chunk, .. } = self.layout;
        let count = len.div_ceil(chunk).max(1);
        self.states[frame.index as usize] = State::Sent((1 << count) - 1);
        let start = self.address(frame.index);
        (0..count).map(move |piece| {
            let before = piece * chunk;
            let options = if piece + 1 < count { CONTINUES } else { 0 };
            Descriptor { address: start + u64::from(before), len: (len - before).min(chunk), options }
        })
    }

    /// Takes back a chunk that the kernel has sent, and its frame with the last one.
    pub(crate) fn completed(&mut self, address: Address) {
        if self.complete(address).is_none() {
            self.misplaced += 1;
        }
    }

    fn complete(&mut self, address: Address) -> Option<()> {
        let index = self.index_of(address)?;
        let piece = address % u64::from(self.layout.packet()) / u64::from(self.layout.chunk);
        let state = self.states.get_mut(index as usize)?;
        match *state {
            State::Sent(out) if index < self.layout.sending && out & 1 << piece != 0 => {
                match out & !(1 << piece) {
                    0 => {
                        *state = State::Free;
                        self.free.push(index);
                    }
                    out => *state = State::Sent(out),
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Gives a free frame to the kernel for receiving: its address.
    pub(crate) fn fill(&mut self) -> Option<Address> {
        let index = self.spare.pop()?;
        self.states[index as usize] = State::Filled;
        Some(self.address(index))
    }

    /// Takes the frame of a received packet, or of a piece of one, from the kernel: its index.
    pub(crate) fn received(&mut self, packet: Descriptor) -> Option<u32> {
        let chunk = self.layout.chunk;
        let end = (packet.address & u64::from(chunk - 1)) + u64::from(packet.len);
        let index = match end <= u64::from(chunk) {
            true => self.transfer(packet.address, State::Filled, State::Reading),
            false => None,
        };
        if index.is_none() {
            self.misplaced += 1;
        }
        index
    }

    /// A received packet's bytes, between [`Umem::received`] and [`Umem::refill`].
    pub(crate) fn packet(&self, packet: Descriptor) -> &[u8] {
        let len = packet.len as usize;
        let Some(start) = self.memory.at(packet.address as usize, len) else { return &[] };
        // SAFETY: inside the mapping, and inside the one frame that `received` took from the kernel.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Gives a frame that has been read to the kernel again: its address.
    pub(crate) fn refill(&mut self, index: u32) -> Address {
        self.states[index as usize] = State::Filled;
        self.address(index)
    }

    /// Undoes a fill that found no room in its ring.
    pub(crate) fn unfill(&mut self, address: Address) {
        match self.transfer(address, State::Filled, State::Free) {
            Some(index) => self.spare.push(index),
            None => self.misplaced += 1,
        }
    }

    fn address(&self, index: u32) -> Address {
        let Layout { chunk, sending, .. } = self.layout;
        match index.checked_sub(sending) {
            None => u64::from(index) * u64::from(self.layout.packet()),
            Some(behind) => self.layout.receiving_from() + u64::from(behind) * u64::from(chunk),
        }
    }

    /// The frame that holds an address.
    fn index_of(&self, address: Address) -> Option<u32> {
        let Layout { chunk, sending, .. } = self.layout;
        match address.checked_sub(self.layout.receiving_from()) {
            None => u32::try_from(address / u64::from(self.layout.packet())).ok(),
            Some(behind) => u32::try_from(behind / u64::from(chunk)).ok()?.checked_add(sending),
        }
    }

    /// Moves the frame that holds `address` from one state to another, if it is in the first.
    fn transfer(&mut self, address: Address, from: State, to: State) -> Option<u32> {
        let index = self.index_of(address)?;
        let state = self.states.get_mut(index as usize)?;
        if *state != from {
            return None;
        }
        *state = to;
        Some(index)
    }

    /// Counts where the frames are.
    pub(crate) fn conservation(&self) -> Conservation {
        let count = |state| self.states.iter().filter(|s| **s == state).count() as u32;
        let sent = self.states.iter().filter(|state| matches!(state, State::Sent(_)));
        Conservation {
            frames: self.states.len() as u32,
            // From the lists, not from the states: the two must agree.
            free: (self.free.len() + self.spare.len()) as u32,
            held: count(State::Held),
            sent: sent.count() as u32,
            filled: count(State::Filled),
            reading: count(State::Reading),
            misplaced: self.misplaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn umem(sending: u32, receiving: u32) -> Umem {
        Umem::new(Layout { chunk: 2048, span: 1, sending, receiving }).unwrap()
    }

    #[test]
    fn a_frame_goes_round_once() {
        let mut umem = umem(4, 0);
        let mut frame = umem.take().unwrap();
        umem.bytes_mut(&mut frame).fill(9);
        assert_eq!(umem.conservation().held, 1);
        let descriptors: Vec<_> = umem.send(frame, 60).collect();
        assert_eq!(descriptors, [Descriptor { address: 0, len: 60, options: 0 }]);
        umem.completed(0);
        assert!(umem.conservation().holds());
        assert_eq!(umem.free(), 4);
        umem.completed(0);
        assert_eq!((umem.free(), umem.conservation().misplaced), (4, 1), "a second completion frees nothing");
        assert!(!umem.conservation().holds());
    }

    #[test]
    fn a_packet_of_several_chunks_comes_back_with_the_last_of_them() {
        let mut umem = Umem::new(Layout { chunk: 2048, span: 3, sending: 2, receiving: 1 }).unwrap();
        let (_, mut frame) = (umem.take().unwrap(), umem.take().unwrap());
        assert_eq!(umem.bytes_mut(&mut frame).len(), 6144);
        let descriptors: Vec<_> = umem.send(frame, 5000).collect();
        let piece = |address, len, options| Descriptor { address, len, options };
        assert_eq!(
            descriptors,
            [piece(6144, 2048, CONTINUES), piece(8192, 2048, CONTINUES), piece(10240, 904, 0)]
        );
        umem.completed(10240);
        umem.completed(6144);
        umem.completed(6144);
        assert_eq!((umem.free(), umem.conservation().misplaced), (0, 1), "one chunk twice is not two");
        umem.completed(8192);
        assert_eq!(umem.free(), 1);
        assert_eq!(umem.fill(), Some(12288), "frames for receiving lie behind those for sending");
    }

    #[test]
    fn what_the_kernel_does_not_have_is_not_read() {
        let mut umem = umem(1, 4);
        let address = umem.fill().unwrap();
        assert_eq!(address, 2048);
        let packet = |address, len| Descriptor { address, len, options: 0 };
        let refused = [
            ("for sending", packet(0, 60)),
            ("not filled", packet(address + 2048, 60)),
            ("outside", packet(5 * 2048, 60)),
            ("far outside", packet(u64::MAX - 2048, 60)),
            ("over the frame's end", packet(address + 256, 1793)),
        ];
        for (what, descriptor) in refused {
            assert_eq!(umem.received(descriptor), None, "{what}");
        }
        assert_eq!(umem.received(packet(address + 256, 1792)), Some(1));
        assert_eq!(umem.packet(packet(address + 256, 1792)).len(), 1792);
        assert_eq!(umem.received(packet(address + 256, 1792)), None, "twice");
        assert_eq!(umem.conservation().misplaced, 6);
    }

    #[test]
    fn a_token_of_another_umem_opens_nothing() {
        let (mut one, mut other) = (umem(1, 0), umem(1, 0));
        let mut frame = one.take().unwrap();
        assert!(other.bytes_mut(&mut frame).is_empty());
        other.cancel(frame);
        assert_eq!((other.free(), one.conservation().held), (1, 1));
    }
}
