//! The messages to a connection, from all threads to that of its session.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use sumac_api::Outbound;

use crate::arena::{CompletionEvent, MappedRegion};
use crate::wake_queue::WakeQueue;

/// A descriptor that goes with a message.
#[derive(Debug)]
pub(crate) enum AttachedFile {
    Event(Arc<CompletionEvent>),
    Region(Arc<MappedRegion>),
}

impl AsFd for AttachedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            AttachedFile::Event(event) => event.eventfd.as_fd(),
            AttachedFile::Region(region) => region.file.as_fd(),
        }
    }
}

/// A message, with its descriptors.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) outbound: Outbound,
    pub(crate) attached: Option<AttachedFile>,
    /// The eventfd that is incremented after it was sent.
    pub(crate) signalled: Option<Arc<CompletionEvent>>,
    /// Whether a client that does not read does without it.
    pub(crate) is_optional: bool,
}

#[derive(Debug)]
pub(crate) enum Notification {
    Message(Box<Delivery>),
    /// The daemon stops.
    Stop,
    /// Another daemon is about to take the connection over: no command is read after the answer, which
    /// follows the messages before.
    Freeze(Sender<()>),
    /// It goes on here.
    Thaw,
    /// The connection goes on in another daemon.
    HandedOver,
}

pub(crate) type Outbox = WakeQueue<Notification>;
