//! The queue over rings without a kernel, whose side the tests take.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::rings::Piece;

const CHUNK: usize = 2048;
const HEADROOM: usize = 256;

/// The kernel's side: its queues hold what it has not processed yet.
#[derive(Debug, Default)]
struct FakeRings {
    memory: Vec<u8>,
    fill: VecDeque<u32>,
    rx: VecDeque<Piece>,
    batch: Vec<Piece>,
    staged: Vec<Piece>,
    tx: VecDeque<Piece>,
    /// Taken from the transmit ring, and not completed.
    sending: VecDeque<Piece>,
    completion: VecDeque<usize>,
}

impl FrameRings for FakeRings {
    unsafe fn fill(&mut self, chunks: &[u32]) -> bool {
        self.fill.extend(chunks);
        true
    }

    fn receive(&mut self, limit: usize) -> usize {
        self.batch = self.rx.drain(..limit.min(3).min(self.rx.len())).collect();
        self.batch.len()
    }

    fn piece(&self, index: usize) -> Piece {
        self.batch[index]
    }

    unsafe fn piece_bytes(&self, index: usize) -> &[u8] {
        let piece = self.batch[index];
        &self.memory[piece.address..][..piece.len]
    }

    unsafe fn bytes_mut(&mut self, chunk: u32) -> &mut [u8] {
        &mut self.memory[chunk as usize * CHUNK + HEADROOM..][..CHUNK - HEADROOM]
    }

    unsafe fn stage(&mut self, chunk: u32, len: usize, continues: bool) {
        self.staged.push(Piece { address: chunk as usize * CHUNK + HEADROOM, len, continues });
    }

    fn publish(&mut self) {
        self.tx.extend(self.staged.drain(..));
    }

    fn completed(&mut self, mut each: impl FnMut(usize)) -> usize {
        let count = self.completion.len();
        self.completion.drain(..).for_each(&mut each);
        count
    }

    fn pending(&mut self) -> u32 {
        self.tx.len() as u32
    }

    fn fill_needs_wakeup(&self) -> bool {
        false
    }
}

impl FakeRings {
    /// Takes all published descriptors, and completes up to `complete` of those taken.
    fn run(&mut self, complete: usize) -> Vec<Piece> {
        self.sending.extend(self.tx.drain(..));
        let done: Vec<_> = self.sending.drain(..complete.min(self.sending.len())).collect();
        self.completion.extend(done.iter().map(|piece| piece.address));
        done
    }

    /// Delivers up to `count` packets of `pieces` descriptors of `len` bytes, as far as there are chunks.
    fn deliver(&mut self, count: usize, pieces: usize, len: usize) -> usize {
        let mut delivered = 0;
        while delivered < count && self.fill.len() >= pieces {
            for piece in 0..pieces {
                let chunk = self.fill.pop_front().unwrap() as usize;
                let address = chunk * CHUNK + HEADROOM;
                self.rx.push_back(Piece { address, len, continues: piece + 1 < pieces });
            }
            delivered += 1;
        }
        delivered
    }
}

/// A queue of `sending` packets of `span` chunks, and of `receiving` chunks.
fn queue(sending: u32, receiving: u32, span: u32) -> XskQueue<FakeRings> {
    let layout = UmemLayout { chunk: CHUNK as u32, span, sending, receiving };
    let rings = FakeRings { memory: vec![0; layout.bytes() as usize], ..FakeRings::default() };
    XskQueue::new(layout, rings, Bound { zero_copy: false, fallback: None })
}

fn lengths(queue: &mut XskQueue<FakeRings>, budget: usize) -> (usize, Vec<usize>) {
    let mut lengths = Vec::new();
    let count = queue.receive_packets(budget, |packet| lengths.push(packet.len()));
    (count, lengths)
}

#[test]
fn the_kernel_sends_what_was_written() {
    let mut queue = queue(4, 4, 1);
    let mut frame = queue.frame().unwrap();
    queue.bytes_mut(&mut frame)[..3].copy_from_slice(b"abc");
    queue.submit(frame, 3).unwrap();
    assert!(queue.rings.run(8).is_empty(), "not published yet");
    queue.rings.publish();
    assert_eq!(queue.pending(), 1);
    let sent = queue.rings.run(8);
    assert_eq!((sent.len(), sent[0].len, queue.pending()), (1, 3, 0));
    assert_eq!(&queue.rings.memory[sent[0].address..][..3], b"abc");
    assert_eq!(queue.conservation().sent, 1);
    assert_eq!(queue.complete(), 1);
    assert!(queue.conservation().holds());
}

#[test]
fn a_long_packet_is_sent_in_several_chunks() {
    let mut queue = queue(2, 0, 3);
    let packet: Vec<u8> = (0..4000).map(|byte| byte as u8).collect();
    let mut frame = queue.frame().unwrap();
    queue.bytes_mut(&mut frame)[..4000].copy_from_slice(&packet);
    queue.submit(frame, 4000).unwrap();
    queue.rings.publish();
    let sent = queue.rings.run(8);
    let memory = &queue.rings.memory;
    let sent_bytes: Vec<u8> =
        sent.iter().flat_map(|piece| &memory[piece.address..][..piece.len]).copied().collect();
    assert!(sent_bytes == packet);
    let shapes: Vec<_> = sent.iter().map(|piece| (piece.len, piece.continues)).collect();
    assert_eq!(shapes, [(1792, true), (1792, true), (416, false)]);
}

#[test]
fn frames_run_out_and_come_back() {
    let mut queue = queue(4, 4, 1);
    for _ in 0..4 {
        let frame = queue.frame().unwrap();
        queue.submit(frame, 60).unwrap();
    }
    queue.rings.publish();
    assert_eq!(queue.frame(), None, "four are for receiving");
    queue.rings.run(1);
    let frame = queue.frame().unwrap();
    queue.cancel(frame);
    assert_eq!(queue.frames.free(), 1);
}

#[test]
fn impossible_lengths_are_refused() {
    let mut queue = queue(3, 0, 1);
    for len in [0, 1793, usize::MAX] {
        let frame = queue.frame().unwrap();
        let frame = queue.submit(frame, len).unwrap_err();
        queue.cancel(frame);
    }
    queue.rings.publish();
    assert!(queue.rings.run(8).is_empty());
    assert!(queue.conservation().holds());
}

#[test]
fn a_token_of_another_queue_is_refused() {
    for span in [1, 3] {
        let (mut one, mut other) = (queue(1, 0, span), queue(1, 0, span));
        let frame = one.frame().unwrap();
        let mut frame = other.submit(frame, 60).unwrap_err();
        if span == 1 {
            assert!(other.bytes_mut(&mut frame).is_empty());
        }
        other.cancel(frame);
        assert!(other.rings.staged.is_empty());
        assert_eq!((other.frames.free(), one.conservation().held), (1, 1));
    }
}

#[test]
fn descriptors_that_the_kernel_does_not_have_are_counted() {
    let mut queue = queue(4, 4, 1);
    queue.rings.completion.extend([0, usize::MAX]);
    queue.rings.rx.push_back(Piece { address: 3 * CHUNK, len: 60, continues: false });
    queue.complete();
    assert_eq!(lengths(&mut queue, 8), (1, vec![]));
    assert_eq!(queue.conservation().misplaced, 3);
}

#[test]
fn pieces_are_reassembled_and_a_broken_packet_is_dropped() {
    let mut queue = queue(2, 6, 3);
    assert_eq!(queue.rings.deliver(1, 3, 100), 1);
    assert_eq!(lengths(&mut queue, 8), (1, vec![300]));
    // The first piece of a packet, whose last piece arrives later.
    let chunks: Vec<_> = (0..2).filter_map(|_| queue.rings.fill.pop_front()).collect();
    let piece = |at: usize, continues| {
        let address = chunks[at] as usize * CHUNK + HEADROOM;
        Piece { address, len: 10, continues }
    };
    queue.rings.rx.push_back(piece(0, true));
    assert_eq!(lengths(&mut queue, 8), (0, vec![]));
    queue.rings.rx.push_back(piece(1, false));
    assert_eq!(lengths(&mut queue, 8), (1, vec![20]));
    // A piece in a chunk for sending breaks its packet only.
    queue.rings.rx.push_back(Piece { address: 0, len: 60, continues: true });
    assert_eq!(queue.rings.deliver(2, 1, 50), 2);
    assert_eq!(lengths(&mut queue, 8), (2, vec![50]));
    assert_eq!(queue.conservation().misplaced, 1);
}

#[test]
fn the_budget_limits_the_packets() {
    let mut queue = queue(1, 8, 1);
    assert_eq!(queue.rings.deliver(8, 1, 60), 8);
    assert_eq!(lengths(&mut queue, 5), (5, vec![60; 5]));
    assert_eq!(queue.conservation().filled, 8, "three of them wait in the receive ring");
    assert_eq!(lengths(&mut queue, 5), (3, vec![60; 3]));
}

proptest! {
    /// After any sequence of steps of the two sides, every frame is in exactly one state.
    #[test]
    fn frames_are_conserved(
        frames in 1..40u32,
        share in 0..=4u32,
        span in 1..4u32,
        steps in proptest::collection::vec((0..6u8, 0..12usize), 0..200),
    ) {
        let receiving = frames * share / 4;
        let mut queue = queue(frames - receiving, receiving, span);
        let (pieces, len) = (span as usize, 1792 * (span as usize - 1) + 60);
        let mut held = Vec::new();
        for (step, n) in steps {
            match step {
                0 => held.extend((0..n).map_while(|_| queue.frame())),
                1 => for frame in held.drain(..n.min(held.len())) {
                    prop_assert!(queue.submit(frame, len).is_ok());
                },
                2 => for frame in held.drain(..n.min(held.len())) {
                    queue.cancel(frame);
                },
                3 => {
                    queue.rings.publish();
                    queue.rings.run(n);
                }
                4 => {
                    let delivered = queue.rings.deliver(n, pieces, 60);
                    prop_assert_eq!(lengths(&mut queue, usize::MAX), (delivered, vec![60 * pieces; delivered]));
                }
                _ => { queue.complete(); }
            }
            let conservation = queue.conservation();
            prop_assert!(conservation.holds(), "{:?}", conservation);
            prop_assert_eq!(conservation.held as usize, held.len());
        }
    }
}
