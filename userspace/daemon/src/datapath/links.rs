//! Commands to the data path's threads, and packets that one thread passes to another.
//!
//! A lane belongs to one thread, and its packets should arrive on that thread's queue: by the NIC's flow steering, or
//! by the CPU that a veth's frames were redirected to. A packet of another thread's lane is copied into that thread's
//! handoff queue and counted as `crossed`.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::{EfdFlags, EventFd};
use sumac_wire::Header;

use super::frame_io::Received;
use super::thread::DatapathThread;

/// The capacity of a handoff queue. Packets beyond it are dropped, as in a NIC's queue, and retransmitted.
pub(super) const HANDOFF_CAPACITY: usize = 4096;

/// Runs on a data path thread between two rounds of its loop.
pub(super) type Command = Box<dyn FnOnce(&mut DatapathThread) + Send>;

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

/// The sending end of a thread's queues.
#[derive(Clone)]
pub(super) struct Link {
    commands: Sender<Command>,
    pub(super) wake: Arc<EventFd>,
    pub(super) handoffs: Arc<ArrayQueue<Handoff>>,
}

impl Link {
    pub(super) fn new() -> io::Result<(Link, Receiver<Command>)> {
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (commands, received) = channel();
        Ok((Link { commands, wake, handoffs: Arc::new(ArrayQueue::new(HANDOFF_CAPACITY)) }, received))
    }

    /// Queues a command. Returns `false` when the thread has ended.
    pub(super) fn send(&self, command: impl FnOnce(&mut DatapathThread) + Send + 'static) -> bool {
        let is_sent = self.commands.send(Box::new(command)).is_ok();
        self.wake();
        is_sent
    }

    /// Copies a packet into the thread's handoff queue. Returns `false` when the queue is full.
    pub(super) fn hand_off(&self, received: Received<'_>) -> bool {
        let Received { from, port, header, elements, is_marked } = received;
        let handoff = Handoff { from, port, header, elements: elements.into(), is_marked };
        let has_room = self.handoffs.push(handoff).is_ok();
        self.wake();
        has_room
    }

    fn wake(&self) {
        // The counter can only be full of wake-ups that are still unread.
        let _ = self.wake.write(1);
    }
}

/// The links of all threads, by the thread's number.
pub(super) type Links = Arc<[Link]>;

/// Returns the number of the thread that has `lane`.
pub(super) fn thread_of(lane: u16, shards: u16, threads: usize) -> usize {
    usize::from(lane % shards.max(1)) % threads.max(1)
}
