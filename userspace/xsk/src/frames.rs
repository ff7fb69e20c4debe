//! The state of every frame, without the memory and the rings.
//!
//! A frame for sending is the chunks of one packet. A frame for receiving is one chunk.

use std::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

use serde::Serialize;

use crate::{layout::UmemLayout, rings::Piece};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// On a free list.
    Free,
    Held,
    /// With the kernel for sending. The bits are the chunks that it has not completed.
    Sent(u32),
    /// With the kernel for receiving.
    Filled,
    /// Received, and read by user space.
    Reading,
}

/// The right to write one frame, until it is submitted or cancelled.
///
/// A held frame has exactly one token, which cannot be copied, so a frame cannot be sent twice. A dropped
/// token leaves its frame unusable, which [`Conservation::held`] shows.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is neither submitted nor cancelled is lost for sending"]
pub struct TxFrame {
    queue: u32,
    index: u32,
    /// The packet, where it takes several chunks.
    pub(crate) buffer: Vec<u8>,
}

/// The number of frames in each state. A frame in none of them, or in two, is a bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conservation {
    pub frames: u32,
    /// Free for sending, or for receiving and not with the kernel.
    pub free: u32,
    pub held: u32,
    /// With the kernel for sending, and not completed.
    pub sent: u32,
    /// With the kernel for receiving.
    pub filled: u32,
    /// Received and being read.
    pub reading: u32,
    /// Descriptors from the kernel that named no frame that it had. Not zero only with a faulty driver.
    pub misplaced: u64,
}

impl Conservation {
    /// Whether every frame is in exactly one state and the kernel never returned a wrong one.
    pub fn holds(&self) -> bool {
        let states = [self.free, self.held, self.sent, self.filled, self.reading];
        states.iter().sum::<u32>() == self.frames && self.misplaced == 0
    }
}

#[derive(Debug)]
pub(crate) struct FrameTable {
    /// Tells the tokens of two queues apart.
    queue: u32,
    layout: UmemLayout,
    /// Of the frames for sending, then of those for receiving.
    states: Vec<State>,
    free: Vec<u32>,
    /// Chunks for receiving that the kernel does not have.
    unfilled: Vec<u32>,
    misplaced: u64,
}

impl FrameTable {
    pub(crate) fn new(layout: UmemLayout) -> FrameTable {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        FrameTable {
            queue: NEXT.fetch_add(1, Ordering::Relaxed),
            layout,
            states: vec![State::Free; (layout.sending + layout.receiving) as usize],
            // The lowest index is on top: few frames in flight use few cache lines.
            free: (0..layout.sending).rev().collect(),
            unfilled: (layout.sending_chunks()..layout.chunks()).rev().collect(),
            misplaced: 0,
        }
    }

    pub(crate) fn layout(&self) -> UmemLayout {
        self.layout
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Option<TxFrame> {
        let index = self.free.pop()?;
        self.states[index as usize] = State::Held;
        Some(TxFrame { queue: self.queue, index, buffer: Vec::new() })
    }

    pub(crate) fn owns(&self, frame: &TxFrame) -> bool {
        frame.queue == self.queue
    }

    pub(crate) fn chunks(&self, frame: &TxFrame, count: u32) -> Range<u32> {
        let first = frame.index * self.layout.span;
        first..first + count.min(self.layout.span)
    }

    pub(crate) fn cancel(&mut self, frame: &TxFrame) {
        if self.owns(frame) {
            self.states[frame.index as usize] = State::Free;
            self.free.push(frame.index);
        }
    }

    /// Gives the first `count` chunks of a held frame to the kernel for sending.
    pub(crate) fn send(&mut self, frame: &TxFrame, count: u32) {
        self.states[frame.index as usize] = State::Sent((1 << count) - 1);
    }

    /// Takes back the chunk at an address of the UMEM that the kernel has sent. The frame is free after its
    /// last chunk.
    pub(crate) fn completed(&mut self, address: usize) {
        if self.complete(address).is_none() {
            self.misplaced += 1;
        }
    }

    fn complete(&mut self, address: usize) -> Option<()> {
        let chunk = self.chunk_of(address)?;
        let (index, bit) = (chunk / self.layout.span, 1 << (chunk % self.layout.span));
        if index >= self.layout.sending {
            return None;
        }
        let state = self.states.get_mut(index as usize)?;
        match *state {
            State::Sent(pending) if pending == bit => {
                *state = State::Free;
                self.free.push(index);
            }
            State::Sent(pending) if pending & bit != 0 => *state = State::Sent(pending & !bit),
            _ => return None,
        }
        Some(())
    }

    /// Gives a chunk to the kernel for receiving.
    pub(crate) fn fill(&mut self) -> Option<u32> {
        let chunk = self.unfilled.pop()?;
        *self.receiving(chunk)? = State::Filled;
        Some(chunk)
    }

    /// Undoes a fill that the ring had no room for.
    pub(crate) fn unfill(&mut self, chunk: u32) {
        if let Some(state) = self.receiving(chunk) {
            *state = State::Free;
            self.unfilled.push(chunk);
        }
    }

    /// Takes the chunk of a received packet, or of a part of one, from the kernel.
    pub(crate) fn received(&mut self, piece: Piece) -> Option<u32> {
        let chunk_size = self.layout.chunk as usize;
        let is_inside = piece.len <= chunk_size - piece.address % chunk_size;
        let chunk = self.chunk_of(piece.address).filter(|_| is_inside);
        let state = chunk.and_then(|chunk| self.receiving(chunk));
        if let Some(state @ State::Filled) = state {
            *state = State::Reading;
            return chunk;
        }
        self.misplaced += 1;
        None
    }

    /// Gives a chunk that has been read to the kernel again.
    pub(crate) fn refill(&mut self, chunk: u32) {
        if let Some(state) = self.receiving(chunk) {
            *state = State::Filled;
        }
    }

    fn chunk_of(&self, address: usize) -> Option<u32> {
        u32::try_from(address / self.layout.chunk as usize).ok()
    }

    fn receiving(&mut self, chunk: u32) -> Option<&mut State> {
        let index = self.layout.sending + chunk.checked_sub(self.layout.sending_chunks())?;
        self.states.get_mut(index as usize)
    }

    pub(crate) fn conservation(&self) -> Conservation {
        let count = |state| self.states.iter().filter(|other| **other == state).count() as u32;
        let sent = self.states.iter().filter(|state| matches!(state, State::Sent(_)));
        Conservation {
            frames: self.states.len() as u32,
            // From the lists, not from the states: the two must agree.
            free: (self.free.len() + self.unfilled.len()) as u32,
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

    fn frames(span: u32, sending: u32, receiving: u32) -> FrameTable {
        FrameTable::new(UmemLayout { chunk: 2048, span, sending, receiving })
    }

    #[test]
    fn a_frame_is_freed_once() {
        let mut frames = frames(1, 4, 0);
        let frame = frames.take().unwrap();
        assert_eq!(frames.conservation().held, 1);
        assert_eq!(frames.chunks(&frame, 1), 0..1);
        frames.send(&frame, 1);
        frames.completed(256);
        assert!(frames.conservation().holds());
        assert_eq!(frames.free(), 4);
        frames.completed(256);
        assert_eq!(
            (frames.free(), frames.conservation().misplaced),
            (4, 1),
            "a second completion frees nothing"
        );
        assert!(!frames.conservation().holds());
    }

    #[test]
    fn a_frame_of_several_chunks_is_freed_with_the_last_of_them() {
        let mut frames = frames(3, 2, 1);
        let (_, frame) = (frames.take().unwrap(), frames.take().unwrap());
        assert_eq!(frames.chunks(&frame, 3), 3..6);
        frames.send(&frame, 3);
        frames.completed(5 * 2048);
        frames.completed(3 * 2048);
        frames.completed(3 * 2048);
        assert_eq!((frames.free(), frames.conservation().misplaced), (0, 1), "one chunk twice is not two");
        frames.completed(4 * 2048 + 256);
        assert_eq!(frames.free(), 1);
        assert_eq!(frames.fill(), Some(6), "chunks for receiving follow those for sending");
    }

    #[test]
    fn only_a_filled_chunk_can_be_received() {
        let mut frames = frames(1, 1, 4);
        assert_eq!(frames.fill(), Some(1));
        let piece = |address, len| Piece { address, len, continues: false };
        let refused = [
            ("for sending", piece(0, 60)),
            ("not filled", piece(2 * 2048, 60)),
            ("outside", piece(5 * 2048, 60)),
            ("far outside", piece(usize::MAX - 2048, 60)),
            ("over the chunk's end", piece(2048 + 256, 1793)),
        ];
        for (case, piece) in refused {
            assert_eq!(frames.received(piece), None, "{case}");
        }
        assert_eq!(frames.received(piece(2048 + 256, 1792)), Some(1));
        assert_eq!(frames.received(piece(2048 + 256, 1792)), None, "twice");
        assert_eq!(frames.conservation().misplaced, 6);
    }

    #[test]
    fn a_token_of_another_queue_is_refused() {
        let (mut one, mut other) = (frames(1, 1, 0), frames(1, 1, 0));
        let frame = one.take().unwrap();
        assert!(!other.owns(&frame));
        other.cancel(&frame);
        assert_eq!((other.free(), one.conservation().held), (1, 1));
    }
}
