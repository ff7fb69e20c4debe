//! How the threads reach each other: orders, and payloads that arrived on another thread's queue.
//!
//! A lane belongs to one thread, and its frames should arrive on that thread's queue: by the port that a NIC's flow
//! steering goes by, or by the CPU that a veth's frames were redirected on. Where they do not, they *cross*: the receiving thread
//! copies the payload into the other's queue. That is slow, counted, and loses nothing but what does not fit.

use std::sync::{Arc, mpsc::Sender};

use crossbeam_queue::ArrayQueue;
use nix::sys::eventfd::EventFd;

use super::{command::Command, port::Received};

/// Payloads that may wait for one thread. What is beyond is dropped, as a NIC's queue would, and is sent again.
pub(super) const CROSSING: usize = 4096;

/// A payload for another thread than the one whose port it arrived at.
pub(super) struct Crossed {
    pub(super) received: Received,
    pub(super) payload: Box<[u8]>,
}

/// The way to one thread.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) commands: Sender<Command>,
    pub(super) wake: Arc<EventFd>,
    pub(super) crossing: Arc<ArrayQueue<Crossed>>,
}

impl Link {
    /// Orders something; the order comes back when the thread has ended.
    pub(super) fn order(&self, command: Command) -> Result<(), Command> {
        self.commands.send(command).map_err(|unsent| unsent.0)?;
        self.wake();
        Ok(())
    }

    /// Hands a payload over; says whether there was room.
    pub(super) fn cross(&self, received: Received, payload: &[u8]) -> bool {
        let taken = self.crossing.push(Crossed { received, payload: payload.into() }).is_ok();
        self.wake();
        taken
    }

    fn wake(&self) {
        // It can only be full of wake-ups that the thread has not seen.
        let _ = self.wake.write(1);
    }
}

/// All threads of a data path, by number.
pub(super) type Links = Arc<[Link]>;

/// The thread that has a lane.
pub(super) fn thread_of(lane: u16, shards: u16, threads: usize) -> usize {
    usize::from(lane % shards.max(1)) % threads.max(1)
}
