//! The frames, and whose each is at the moment.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use std::{io, slice};

use serde::Serialize;

use crate::{
    abi::{Address, Descriptor},
    mapping::Mapping,
};

/// Who has a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On the list of frames to send with.
    Free,
    /// A [`TxFrame`] exists for it.
    Held,
    /// The kernel's: in the transmit ring, on its way, or in the completion ring.
    Sent,
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
    /// Free for sending.
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

/// Memory cut into frames of one size.
#[derive(Debug)]
pub(crate) struct Umem {
    id: u32,
    memory: Arc<Mapping>,
    frame_size: u32,
    states: Vec<State>,
    free: Vec<u32>,
    misplaced: u64,
}

impl Umem {
    /// Allocates `frames` frames of `frame_size` bytes, all free for sending. `frame_size` is a power of two.
    pub(crate) fn new(frames: u32, frame_size: u32) -> io::Result<Umem> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let memory = Arc::new(Mapping::anonymous(frames as usize * frame_size as usize)?);
        Ok(Umem {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            frame_size,
            states: vec![State::Free; frames as usize],
            // The lowest index on top: few frames in flight stay few in the cache.
            free: (0..frames).rev().collect(),
            misplaced: 0,
        })
    }

    /// The memory, which must be kept while the kernel may use it.
    pub(crate) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Bytes of a frame.
    pub(crate) fn frame_size(&self) -> u32 {
        self.frame_size
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
        let len = if self.owns(frame) { self.frame_size as usize } else { 0 };
        let Some(start) = self.memory.at(frame.index as usize * len, len) else { return &mut [] };
        // SAFETY: inside the mapping. The frame is held: the kernel does not have it, and the borrows of
        // `self` and of the only token shut out every other access of this process.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Gives a held frame to the kernel for sending: its descriptor.
    pub(crate) fn send(&mut self, frame: TxFrame, len: u32) -> Descriptor {
        self.states[frame.index as usize] = State::Sent;
        Descriptor { address: self.address(frame.index), len, options: 0 }
    }

    /// Takes back a frame that the kernel has sent.
    pub(crate) fn completed(&mut self, address: Address) {
        match self.transfer(address, State::Sent, State::Free) {
            Some(index) => self.free.push(index),
            None => self.misplaced += 1,
        }
    }

    /// Gives a free frame to the kernel for receiving: its address.
    pub(crate) fn fill(&mut self) -> Option<Address> {
        let index = self.free.pop()?;
        self.states[index as usize] = State::Filled;
        Some(self.address(index))
    }

    /// Takes a received packet's frame from the kernel: its index.
    pub(crate) fn received(&mut self, packet: Descriptor) -> Option<u32> {
        let end = (packet.address & u64::from(self.frame_size - 1)) + u64::from(packet.len);
        let index = match end <= u64::from(self.frame_size) {
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

    /// Undoes a fill that found no room in its ring: the frame serves for sending instead.
    pub(crate) fn unfill(&mut self, address: Address) {
        match self.transfer(address, State::Filled, State::Free) {
            Some(index) => self.free.push(index),
            None => self.misplaced += 1,
        }
    }

    fn address(&self, index: u32) -> Address {
        u64::from(index) * u64::from(self.frame_size)
    }

    /// Moves the frame that holds `address` from one state to another, if it is in the first.
    fn transfer(&mut self, address: Address, from: State, to: State) -> Option<u32> {
        let index = u32::try_from(address / u64::from(self.frame_size)).ok()?;
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
        Conservation {
            frames: self.states.len() as u32,
            // From the list, not from the states: the two must agree.
            free: self.free.len() as u32,
            held: count(State::Held),
            sent: count(State::Sent),
            filled: count(State::Filled),
            reading: count(State::Reading),
            misplaced: self.misplaced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_round_once() {
        let mut umem = Umem::new(4, 2048).unwrap();
        let mut frame = umem.take().unwrap();
        umem.bytes_mut(&mut frame).fill(9);
        assert_eq!(umem.conservation().held, 1);
        let descriptor = umem.send(frame, 60);
        assert_eq!((descriptor.address, descriptor.len), (0, 60));
        umem.completed(descriptor.address);
        assert!(umem.conservation().holds());
        assert_eq!(umem.free(), 4);
        umem.completed(descriptor.address);
        assert_eq!((umem.free(), umem.conservation().misplaced), (4, 1), "a second completion frees nothing");
        assert!(!umem.conservation().holds());
    }

    #[test]
    fn what_the_kernel_does_not_have_is_not_read() {
        let mut umem = Umem::new(4, 2048).unwrap();
        let address = umem.fill().unwrap();
        let packet = |address, len| Descriptor { address, len, options: 0 };
        let refused = [
            ("not filled", packet(address + 2048, 60)),
            ("outside", packet(4 * 2048, 60)),
            ("far outside", packet(u64::MAX - 2048, 60)),
            ("over the frame's end", packet(address + 256, 1793)),
        ];
        for (what, descriptor) in refused {
            assert_eq!(umem.received(descriptor), None, "{what}");
        }
        assert_eq!(umem.received(packet(address + 256, 1792)), Some(0));
        assert_eq!(umem.packet(packet(address + 256, 1792)).len(), 1792);
        assert_eq!(umem.received(packet(address + 256, 1792)), None, "twice");
        assert_eq!(umem.conservation().misplaced, 5);
    }

    #[test]
    fn a_token_of_another_umem_opens_nothing() {
        let (mut one, mut other) = (Umem::new(1, 2048).unwrap(), Umem::new(1, 2048).unwrap());
        let mut frame = one.take().unwrap();
        assert!(other.bytes_mut(&mut frame).is_empty());
        other.cancel(frame);
        assert_eq!((other.free(), one.conservation().held), (1, 1));
    }
}
