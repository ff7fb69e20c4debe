//! Packets that one thread passes to another.
//!
//! A lane belongs to one thread, and its packets should arrive on that thread's queue: by the NIC's flow
//! steering, or by the CPU that a veth's frames were redirected to. A packet of another thread's lane is
//! copied into that thread's handoff queue and counted as `crossed`.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use sumac_wire::Header;

use super::frame_io::Received;

/// The capacity of a handoff queue. Packets beyond it are dropped, as in a NIC's queue, and retransmitted.
pub(super) const HANDOFF_CAPACITY: usize = 4096;

pub(super) struct Handoff {
    from: SocketAddrV4,
    port: u16,
    header: Header,
    elements: Box<[u8]>,
    is_marked: bool,
}

impl Handoff {
    pub(super) fn received(&self) -> Received<'_> {
        let Handoff { from, port, header, ref elements, is_marked } = *self;
        Received { from, port, header, elements, is_marked }
    }
}

/// The packets that other threads have received for a thread, and the descriptor that wakes it.
#[derive(Clone)]
pub(super) struct HandoffQueue {
    pub(super) wake: Arc<EventFd>,
    packets: Arc<ArrayQueue<Handoff>>,
    /// The jobs that have failed, on any thread.
    failures: Arc<AtomicU64>,
}

impl HandoffQueue {
    pub(super) fn new() -> io::Result<HandoffQueue> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let packets = Arc::new(ArrayQueue::new(HANDOFF_CAPACITY));
        Ok(HandoffQueue { wake, packets, failures: Arc::default() })
    }

    /// Copies a packet into the queue. Returns `false` when it is full.
    pub(super) fn push(&self, received: Received<'_>) -> bool {
        let Received { from, port, header, elements, is_marked } = received;
        let handoff = Handoff { from, port, header, elements: elements.into(), is_marked };
        let has_room = self.packets.push(handoff).is_ok();
        self.wake();
        has_room
    }

    pub(super) fn pop(&self) -> Option<Handoff> {
        self.packets.pop()
    }

    /// Has the thread fail its lanes of a job that has failed.
    pub(super) fn job_failed(&self) {
        self.failures.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Returns how many jobs have failed. A thread looks at its lanes when it is another number.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        // The counter can only be full of wake-ups that are still unread.
        let _ = self.wake.write(1);
    }
}

pub(super) fn thread_of(lane: u16, shards: u16, threads: usize) -> usize {
    usize::from(lane % shards.max(1)) % threads.max(1)
}
