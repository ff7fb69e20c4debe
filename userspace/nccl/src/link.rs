//! A connection of NCCL's point-to-point network, over a direct job or over TCP.

use crate::error::PluginError;
use crate::memory::UserBytes;
use crate::pair::Pair;
use crate::tcp::TcpPair;

/// One side of a connection.
#[derive(Debug)]
pub(crate) enum PairLink {
    Direct(Box<Pair>),
    Tcp(TcpPair),
}

impl PairLink {
    /// Begins to send a message; `None` if too many are on their way.
    pub(crate) fn send(&self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        match self {
            PairLink::Direct(pair) => pair.send(user),
            PairLink::Tcp(pair) => pair.send(user),
        }
    }

    /// Begins to receive a message of at most the length of `user`; `None` if too many are on their way.
    pub(crate) fn receive(&self, user: UserBytes) -> Result<Option<u64>, PluginError> {
        match self {
            PairLink::Direct(pair) => pair.receive(user),
            PairLink::Tcp(pair) => pair.receive(user),
        }
    }

    /// Returns the message's length once it has been sent or received; its number is then no longer valid.
    pub(crate) fn test(&self, number: u64) -> Result<Option<usize>, PluginError> {
        match self {
            PairLink::Direct(pair) => pair.test(number),
            PairLink::Tcp(pair) => pair.test(number),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            PairLink::Direct(pair) => pair.close(),
            PairLink::Tcp(pair) => pair.close(),
        }
    }
}
