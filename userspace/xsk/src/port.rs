//! Frames and rings together: receive, write, submit, reap. No system call is made here, so the same code
//! runs on plain memory with the kernel's side played by a test.

use crate::{
    abi::CONTINUES,
    ring::{Completion, Fill, Rx, Tx},
    umem::{Conservation, TxFrame, Umem},
};

/// One queue's frames and rings.
#[derive(Debug)]
pub struct Port {
    umem: Umem,
    fill: Fill,
    rx: Rx,
    tx: Tx,
    completion: Completion,
    gathered: Gathered,
}

/// A packet that arrives in several pieces.
#[derive(Debug, Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// Whether there were pieces, and the last is still to come.
    is_open: bool,
    /// Whether one of them was refused: the others are worth nothing.
    is_broken: bool,
}

impl Port {
    /// Puts all frames for receiving into the fill ring.
    pub(crate) fn new(umem: Umem, fill: Fill, rx: Rx, tx: Tx, completion: Completion) -> Port {
        let mut port = Port { umem, fill, rx, tx, completion, gathered: Gathered::default() };
        while let Some(address) = port.umem.fill() {
            if !port.fill.push(address) {
                port.umem.unfill(address);
                break;
            }
        }
        port.fill.publish();
        port
    }

    /// Shows up to `budget` received packets, each from its Ethernet header on, and gives their frames to the
    /// kernel again. Returns how many there were. A packet in several frames is copied together first.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let (mut count, mut taken) = (0, false);
        while count < budget {
            let Some(piece) = self.rx.pop() else { break };
            taken = true;
            let is_last = piece.options & CONTINUES == 0;
            count += usize::from(is_last);
            match self.umem.received(piece) {
                Some(index) => {
                    let bytes = self.umem.packet(piece);
                    if is_last && !self.gathered.is_open {
                        each(bytes);
                    } else {
                        self.gathered.add(bytes);
                    }
                    let address = self.umem.refill(index);
                    self.refill(address);
                }
                None => self.gathered.is_broken = true,
            }
            self.gathered.is_open = !is_last;
            if is_last {
                self.gathered.show(&mut each);
            }
        }
        if taken {
            self.rx.release();
            self.fill.publish();
        }
        count
    }

    fn refill(&mut self, address: u64) {
        if !self.fill.push(address) {
            self.umem.unfill(address);
        }
    }

    /// Takes a frame to write a packet into, or `None` when all are on their way.
    pub fn frame(&mut self) -> Option<TxFrame> {
        if self.umem.free() == 0 {
            self.reap();
        }
        self.umem.take()
    }

    /// The whole of a frame's bytes, in one piece, with whatever they were before.
    pub fn bytes_mut(&mut self, frame: &mut TxFrame) -> &mut [u8] {
        self.umem.bytes_mut(frame)
    }

    /// Stages the first `len` bytes of a frame for sending.
    ///
    /// The frame comes back when `len` is zero or more than a frame holds, when the ring is full, or when the frame
    /// is another port's.
    pub fn submit(&mut self, frame: TxFrame, len: usize) -> Result<(), TxFrame> {
        let Ok(len) = u32::try_from(len) else { return Err(frame) };
        if len == 0 || len > self.umem.packet_size() || !self.umem.owns(&frame) {
            return Err(frame);
        }
        if !self.tx.has_room() {
            return Err(frame);
        }
        for descriptor in self.umem.send(frame, len) {
            // The ring has as many entries as there are chunks, and this is its only producer.
            let staged = self.tx.push(descriptor);
            debug_assert!(staged);
        }
        Ok(())
    }

    /// Gives a frame back unsent.
    pub fn cancel(&mut self, frame: TxFrame) {
        self.umem.cancel(frame);
    }

    /// Makes staged packets visible to the kernel, which may still have to be woken.
    pub fn publish(&mut self) {
        self.tx.publish();
    }

    /// Takes back the frames of packets that have been sent. Returns how many.
    pub fn reap(&mut self) -> usize {
        let mut count = 0;
        while let Some(address) = self.completion.pop() {
            self.umem.completed(address);
            count += 1;
        }
        if count > 0 {
            self.completion.release();
        }
        count
    }

    /// Published chunks of packets that the kernel has not taken.
    pub fn pending(&self) -> u32 {
        self.tx.pending()
    }

    /// Where all frames are.
    pub fn conservation(&self) -> Conservation {
        self.umem.conservation()
    }

    pub(crate) fn tx_needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    pub(crate) fn fill_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }
}

impl Gathered {
    fn add(&mut self, bytes: &[u8]) {
        if !self.is_broken {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Shows what was gathered when it is whole, and begins anew.
    fn show(&mut self, each: &mut impl FnMut(&[u8])) {
        if !self.is_broken && !self.bytes.is_empty() {
            each(&self.bytes);
        }
        self.bytes.clear();
        self.is_broken = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        abi::{Address, Descriptor},
        layout::Layout,
        ring::{End, pair},
    };
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The kernel's side of a port on plain memory.
    struct Kernel {
        fill: End<Address>,
        rx: End<Descriptor>,
        tx: End<Descriptor>,
        completion: End<Address>,
        sending: VecDeque<Descriptor>,
    }

    /// A port of `frames` frames, `receive` of them to receive into, and the others for packets of `span` chunks.
    fn port(frames: u32, receive: u32, span: u32) -> (Port, Kernel) {
        let layout = Layout { chunk: 2048, span, sending: frames - receive, receiving: receive };
        let entries = layout.chunks().next_power_of_two();
        let (fill, kernel_fill) = pair(entries, 7);
        let (kernel_rx, rx) = pair(entries, u32::MAX);
        let (tx, kernel_tx) = pair(entries, 0);
        let (kernel_completion, completion) = pair(entries, 1);
        let umem = Umem::new(layout).unwrap();
        let port = Port::new(umem, Fill(fill), Rx(rx), Tx(tx), Completion(completion));
        let kernel = Kernel {
            fill: kernel_fill,
            rx: kernel_rx,
            tx: kernel_tx,
            completion: kernel_completion,
            sending: VecDeque::new(),
        };
        (port, kernel)
    }

    impl Kernel {
        /// Takes what is to be sent, and completes up to `complete` chunks of it.
        fn run(&mut self, complete: usize) -> Vec<Descriptor> {
            while let Some(packet) = self.tx.pop() {
                self.sending.push_back(packet);
            }
            self.tx.publish();
            let done: Vec<_> = self.sending.drain(..complete.min(self.sending.len())).collect();
            for packet in &done {
                assert!(self.completion.push(packet.address));
            }
            self.completion.publish();
            done
        }

        /// Delivers packets in `pieces` pieces of `len` bytes each, as long as there are frames.
        fn deliver(&mut self, count: usize, pieces: usize, len: u32) -> usize {
            let mut delivered = 0;
            while delivered < count {
                let addresses: Vec<_> = (0..pieces).map_while(|_| self.fill.pop()).collect();
                if addresses.len() < pieces {
                    break;
                }
                for (piece, address) in addresses.iter().enumerate() {
                    let options = if piece + 1 < pieces { CONTINUES } else { 0 };
                    assert!(self.rx.push(Descriptor { address: address + 256, len, options }));
                }
                delivered += 1;
            }
            self.fill.publish();
            self.rx.publish();
            delivered
        }
    }

    #[test]
    fn what_is_written_is_what_the_kernel_sends() {
        let (mut port, mut kernel) = port(8, 4, 1);
        let mut frame = port.frame().unwrap();
        port.bytes_mut(&mut frame)[..3].copy_from_slice(b"abc");
        port.submit(frame, 3).unwrap();
        assert!(kernel.run(8).is_empty(), "not published yet");
        port.publish();
        assert_eq!(port.pending(), 1);
        let sent = kernel.run(8);
        assert_eq!((sent.len(), sent[0].len, port.pending()), (1, 3, 0));
        assert_eq!(port.conservation().sent, 1);
        assert_eq!(port.reap(), 1);
        assert!(port.conservation().holds());
    }

    #[test]
    fn frames_run_out_and_come_back() {
        let (mut port, mut kernel) = port(8, 4, 1);
        for _ in 0..4 {
            let frame = port.frame().unwrap();
            port.submit(frame, 60).unwrap();
        }
        port.publish();
        assert_eq!(port.frame(), None, "four are for receiving");
        kernel.run(1);
        let frame = port.frame().unwrap();
        port.cancel(frame);
        assert_eq!(port.umem.free(), 1);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let (mut port, mut kernel) = port(3, 0, 1);
        for len in [0, 2049, usize::MAX] {
            let frame = port.frame().unwrap();
            let frame = port.submit(frame, len).unwrap_err();
            port.cancel(frame);
        }
        port.publish();
        assert!(kernel.run(8).is_empty());
        assert!(port.conservation().holds());
    }

    #[test]
    fn a_driver_that_hands_back_wrong_frames_is_counted() {
        let (mut port, mut kernel) = port(8, 4, 1);
        assert!(kernel.completion.push(0));
        assert!(kernel.completion.push(u64::MAX));
        kernel.completion.publish();
        assert!(kernel.rx.push(Descriptor { address: 3 * 2048, len: 60, options: 0 }));
        kernel.rx.publish();
        port.reap();
        let mut shown = 0;
        port.receive(8, |_| shown += 1);
        assert_eq!((shown, port.conservation().misplaced), (0, 3));
    }

    #[test]
    fn pieces_become_one_packet_and_a_broken_one_none() {
        let (mut port, mut kernel) = port(8, 6, 3);
        let receive = |port: &mut Port| {
            let mut lengths = Vec::new();
            let count = port.receive(8, |packet| lengths.push(packet.len()));
            (count, lengths)
        };
        assert_eq!(kernel.deliver(1, 3, 100), 1);
        assert_eq!(receive(&mut port), (1, vec![300]));
        // The first piece of a packet, of which the rest comes later.
        let pieces: Vec<_> = (0..2).filter_map(|_| kernel.fill.pop()).collect();
        let piece = |at: usize, options| Descriptor { address: pieces[at] + 256, len: 10, options };
        assert!(kernel.rx.push(piece(0, CONTINUES)));
        kernel.rx.publish();
        assert_eq!(receive(&mut port), (0, vec![]));
        assert!(kernel.rx.push(piece(1, 0)));
        kernel.rx.publish();
        assert_eq!(receive(&mut port), (1, vec![20]));
        // A piece in a frame for sending spoils its packet, and nothing else.
        assert!(kernel.rx.push(Descriptor { address: 0, len: 60, options: CONTINUES }));
        assert_eq!(kernel.deliver(2, 1, 50), 2);
        assert_eq!(receive(&mut port), (2, vec![50]));
        assert_eq!(port.conservation().misplaced, 1);
    }

    proptest! {
        /// Whatever the two sides do, every frame is in one place.
        #[test]
        fn frames_are_conserved(
            frames in 1..40u32,
            share in 0..=4u32,
            span in 1..4u32,
            steps in proptest::collection::vec((0..6u8, 0..12usize), 0..200),
        ) {
            let (mut port, mut kernel) = port(frames, frames * share / 4, span);
            let (pieces, len) = (span as usize, 2048 * (span - 1) + 60);
            let mut held = Vec::new();
            for (step, n) in steps {
                match step {
                    0 => held.extend((0..n).map_while(|_| port.frame())),
                    1 => for frame in held.drain(..n.min(held.len())) {
                        prop_assert!(port.submit(frame, len as usize).is_ok());
                    },
                    2 => for frame in held.drain(..n.min(held.len())) {
                        port.cancel(frame);
                    },
                    3 => {
                        port.publish();
                        kernel.run(n);
                    }
                    4 => {
                        let delivered = kernel.deliver(n, pieces, 60);
                        let mut seen = 0;
                        prop_assert_eq!(port.receive(usize::MAX, |packet| {
                            assert_eq!(packet.len(), 60 * pieces);
                            seen += 1;
                        }), delivered);
                        prop_assert_eq!(seen, delivered);
                    }
                    _ => { port.reap(); }
                }
                let conservation = port.conservation();
                prop_assert!(conservation.holds(), "{:?}", conservation);
                prop_assert_eq!(conservation.held as usize, held.len());
            }
        }
    }
}
