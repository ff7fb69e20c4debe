//! Receiving and sending on one queue of an interface.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use serde::Serialize;
use xsk_rs::socket::XdpStatistics;

use crate::{
    config::Bound,
    frames::{Conservation, FrameTable, TxFrame},
    layout::UmemLayout,
    multi_buffer::{Buffers, Reassembly},
    rings::{FrameRings, XskRings},
    sockopt,
};

/// An AF_XDP socket on one queue, with its frames.
///
/// It receives nothing until a program redirects to it: put its descriptor into the program's XSKMAP.
#[derive(Debug)]
pub struct XskQueue<R = XskRings> {
    rings: R,
    frames: FrameTable,
    buffers: Buffers,
    reassembly: Reassembly,
    /// Chunks on their way to the fill ring.
    filling: Vec<u32>,
    bound: Bound,
}

impl<R: FrameRings> XskQueue<R> {
    pub(crate) fn new(layout: UmemLayout, rings: R, bound: Bound) -> XskQueue<R> {
        let mut queue = XskQueue {
            rings,
            frames: FrameTable::new(layout),
            buffers: Buffers::new(layout),
            reassembly: Reassembly::default(),
            filling: Vec::with_capacity(layout.receiving as usize),
            bound,
        };
        while let Some(chunk) = queue.frames.fill() {
            queue.filling.push(chunk);
        }
        queue.fill();
        queue
    }

    /// Calls `each` with up to `budget` received packets, from their Ethernet header on, and refills their
    /// chunks. Returns the number of packets, of which `each` does not see those with a refused descriptor.
    fn receive_packets(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < budget {
            let batch = self.rings.receive(budget - count);
            if batch == 0 {
                break;
            }
            for index in 0..batch {
                let piece = self.rings.piece(index);
                let chunk = self.frames.received(piece);
                // SAFETY: `received` has checked that the bytes lie inside one chunk that the kernel had and
                // has returned. It is not refilled before the batch has been read.
                let bytes = chunk.map(|_| unsafe { self.rings.piece_bytes(index) });
                self.reassembly.add(bytes, piece.continues, &mut each);
                self.filling.extend(chunk);
                count += usize::from(!piece.continues);
            }
            self.filling.iter().for_each(|chunk| self.frames.refill(*chunk));
            self.fill();
        }
        count
    }

    fn fill(&mut self) {
        // SAFETY: the state of the chunks is `Filled`, in which user space reads none of them.
        if !unsafe { self.rings.fill(&self.filling) } {
            self.filling.iter().for_each(|chunk| self.frames.unfill(*chunk));
        }
        self.filling.clear();
    }

    /// Takes a frame for writing a packet, or `None` when all are in use.
    pub fn frame(&mut self) -> Option<TxFrame> {
        if self.frames.free() == 0 {
            self.complete();
        }
        let mut frame = self.frames.take()?;
        self.buffers.attach(&mut frame);
        Some(frame)
    }

    /// Returns all bytes of a frame, with their previous contents. A frame of another queue has none.
    pub fn bytes_mut<'a>(&'a mut self, frame: &'a mut TxFrame) -> &'a mut [u8] {
        if !frame.buffer.is_empty() || !self.frames.owns(frame) {
            return &mut frame.buffer;
        }
        let chunk = self.frames.chunks(frame, 1).start;
        // SAFETY: the frame is held, so the kernel does not have its chunk. The borrows of `self` and of the
        // only token exclude every other access.
        unsafe { self.rings.bytes_mut(chunk) }
    }

    /// Stages the first `len` bytes of a frame for sending; [`XskQueue::flush`] sends them.
    ///
    /// Returns the frame when `len` is zero or exceeds the frame, or when the frame is another queue's.
    pub fn submit(&mut self, frame: TxFrame, len: usize) -> Result<(), TxFrame> {
        let layout = self.frames.layout();
        if len == 0 || len > layout.packet() || !self.frames.owns(&frame) {
            return Err(frame);
        }
        let count = len.div_ceil(layout.payload()) as u32;
        let mut start = 0;
        for chunk in self.frames.chunks(&frame, count) {
            let end = len.min(start + layout.payload());
            if let Some(bytes) = frame.buffer.get(start..end) {
                // SAFETY: the frame is held, and its chunk is staged only below.
                let target = unsafe { self.rings.bytes_mut(chunk) };
                target[..bytes.len()].copy_from_slice(bytes);
            }
            // SAFETY: the token is consumed, and the frame's state becomes `Sent` until the kernel completes
            // the chunk.
            unsafe { self.rings.stage(chunk, end - start, end < len) };
            start = end;
        }
        self.frames.send(&frame, count);
        self.buffers.detach(frame);
        Ok(())
    }

    pub fn cancel(&mut self, frame: TxFrame) {
        self.frames.cancel(&frame);
        self.buffers.detach(frame);
    }

    /// Frees the frames of sent packets and returns the number of their chunks.
    fn complete(&mut self) -> usize {
        let frames = &mut self.frames;
        self.rings.completed(|address| frames.completed(address))
    }

    /// Number of descriptors in the transmit ring that the kernel has not taken.
    pub fn pending(&mut self) -> u32 {
        self.rings.pending()
    }

    pub fn conservation(&self) -> Conservation {
        self.frames.conservation()
    }

    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Keeps the reason for which the caller has chosen copy mode in place of zero-copy.
    pub fn set_fallback(&mut self, reason: &str) {
        self.bound.fallback = Some(reason.to_owned());
    }
}

impl XskQueue {
    /// Calls `each` with up to `budget` received packets, from their Ethernet header on, and returns their
    /// chunks to the kernel. Returns the number of packets.
    pub fn receive(&mut self, budget: usize, each: impl FnMut(&[u8])) -> usize {
        let count = self.receive_packets(budget, each);
        self.wake_fill();
        count
    }

    /// Wakes a driver that waits for chunks to fill.
    pub(crate) fn wake_fill(&mut self) {
        if self.rings.fill_needs_wakeup() {
            // The driver looks at the fill ring later by itself; a failure costs time only.
            let _ = self.rings.wake_rx();
        }
    }

    /// Frees the frames of sent packets, publishes the submitted ones and wakes the kernel if it waits for
    /// that.
    ///
    /// A lack of room or memory in the kernel (EAGAIN, EBUSY, ENOBUFS) is not an error: the packets stay in
    /// the ring,
    /// [`XskQueue::pending`] counts them, and the next flush retries.
    pub fn flush(&mut self) -> io::Result<()> {
        self.complete();
        self.rings.publish();
        let mut pending = self.rings.pending();
        while pending > 0 && self.rings.tx_needs_wakeup() {
            if let Err(error) = self.rings.wake_tx()
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            if self.bound.zero_copy {
                break;
            }
            // In copy mode one call sends up to 32 packets.
            self.complete();
            let left = self.rings.pending();
            if left >= pending {
                return sockopt::send_error(self.as_fd());
            }
            pending = left;
        }
        Ok(())
    }

    pub fn statistics(&self) -> io::Result<Statistics> {
        self.rings.statistics().map(Statistics::from)
    }
}

impl AsFd for XskQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings.fd()
    }
}

/// The kernel's counters of one socket (`XDP_STATISTICS`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Packets dropped for other reasons than the ones below.
    pub rx_dropped: u64,
    /// Refused entries of the fill ring.
    pub rx_invalid_descriptors: u64,
    /// Refused entries of the transmit ring.
    pub tx_invalid_descriptors: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel found no chunk to fill.
    pub rx_fill_ring_empty: u64,
    /// Times that the kernel found nothing to send.
    pub tx_ring_empty: u64,
}

impl From<XdpStatistics> for Statistics {
    fn from(counted: XdpStatistics) -> Statistics {
        Statistics {
            rx_dropped: counted.rx_dropped(),
            rx_invalid_descriptors: counted.rx_invalid_descs(),
            tx_invalid_descriptors: counted.tx_invalid_descs(),
            rx_ring_full: counted.rx_ring_full(),
            rx_fill_ring_empty: counted.rx_fill_ring_empty_descs(),
            tx_ring_empty: counted.tx_ring_empty_descs(),
        }
    }
}

#[cfg(test)]
mod tests;
