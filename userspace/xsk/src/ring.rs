//! The four rings between user space and the kernel.
//!
//! Each is a single-producer single-consumer queue in shared memory. One private [`End`] does the
//! arithmetic; four newtypes give each ring the verbs of its direction and no others.

mod end;

use crate::abi::{Address, Descriptor};

#[cfg(test)]
pub(crate) use end::pair;
pub(crate) use end::{End, Layout, Side};

/// Frames that the kernel may write received packets into. User space produces.
#[derive(Debug)]
pub struct Fill(pub(crate) End<Address>);

impl Fill {
    /// Stages one frame; `false` when the ring is full. [`Fill::publish`] makes it visible.
    pub fn push(&mut self, address: Address) -> bool {
        self.0.push(address)
    }

    /// Hands all staged frames to the kernel.
    pub fn publish(&mut self) {
        self.0.publish();
    }

    /// Whether the driver sleeps until it is told that there are frames again.
    pub fn needs_wakeup(&self) -> bool {
        self.0.flags() & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Packets that arrived. User space consumes.
#[derive(Debug)]
pub struct Rx(pub(crate) End<Descriptor>);

impl Rx {
    /// The next packet. [`Rx::release`] gives the ring's entries back.
    pub fn pop(&mut self) -> Option<Descriptor> {
        self.0.pop()
    }

    /// Gives the entries of all packets taken so far back to the kernel.
    pub fn release(&mut self) {
        self.0.publish();
    }
}

/// Packets to be sent. User space produces.
#[derive(Debug)]
pub struct Tx(pub(crate) End<Descriptor>);

impl Tx {
    /// Whether one more packet can be staged.
    pub fn has_room(&mut self) -> bool {
        self.0.has_next()
    }

    /// Stages one packet; `false` when the ring is full. [`Tx::publish`] makes it visible.
    pub fn push(&mut self, descriptor: Descriptor) -> bool {
        self.0.push(descriptor)
    }

    /// Hands all staged packets to the kernel, which may still have to be woken.
    pub fn publish(&mut self) {
        self.0.publish();
    }

    /// Published packets that the kernel has not taken yet.
    pub fn pending(&self) -> u32 {
        self.0.pending()
    }

    /// Whether the kernel sends only when it is told to.
    pub fn needs_wakeup(&self) -> bool {
        self.0.flags() & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Frames whose packets have been sent. User space consumes.
#[derive(Debug)]
pub struct Completion(pub(crate) End<Address>);

impl Completion {
    /// The next frame. [`Completion::release`] gives the ring's entries back.
    pub fn pop(&mut self) -> Option<Address> {
        self.0.pop()
    }

    /// Gives the entries of all frames taken so far back to the kernel.
    pub fn release(&mut self) {
        self.0.publish();
    }
}
