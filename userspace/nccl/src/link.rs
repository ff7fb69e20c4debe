//! A connection of NCCL's point-to-point network, over a direct job or over TCP.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::PluginError;
use crate::memory::UserBytes;

/// The messages of one side of a connection.
pub(crate) trait Messages: Debug + Send {
    /// Begins to send a message; `None` if too many are on their way.
    fn send(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError>;

    /// Begins to receive a message of at most the length of `user`; `None` if too many are on their way.
    fn receive(&mut self, user: UserBytes) -> Result<Option<u64>, PluginError>;

    /// Returns the message's length once it has been sent or received; its number is then no longer valid.
    fn test(&mut self, number: u64) -> Result<Option<usize>, PluginError>;

    fn close(&mut self);
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct PairLink {
    is_sender: bool,
    messages: Mutex<Box<dyn Messages>>,
}

impl PairLink {
    pub(crate) fn new(is_sender: bool, messages: impl Messages + 'static) -> PairLink {
        PairLink { is_sender, messages: Mutex::new(Box::new(messages)) }
    }

    pub(crate) fn send(&self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        if !self.is_sender {
            return Err(PluginError::usage("a communicator that receives cannot send"));
        }
        self.messages().send(user)
    }

    pub(crate) fn receive(&self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        if self.is_sender {
            return Err(PluginError::usage("a communicator that sends cannot receive"));
        }
        self.messages().receive(user)
    }

    pub(crate) fn messages(&self) -> MutexGuard<'_, Box<dyn Messages>> {
        // A panic leaves at most a message that never ends, in a communicator that the caller closes.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
