//! The state that a daemon hands over, and the messages around it.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use ciborium::de::from_reader;
use ciborium::ser::into_writer;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use sumac_datapath::LaneSnapshot;

use super::versions::{Settings, Versions};
use crate::backend::Fallback;
use crate::service::Service;

/// The successor's first message.
#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) versions: Versions,
    pub(super) settings: Settings,
}

/// The successor's further messages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Freeze,
    /// Close the sockets of AF_XDP.
    CloseInterface,
    /// The successor has all it needs.
    Ready,
}

/// The predecessor's messages.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Compatible,
    Refused(String),
    /// With the file of the state, and so many descriptors in the next messages.
    State {
        descriptors: usize,
    },
    Descriptors,
    InterfaceClosed,
    Go,
}

/// The place of a region's writable mapping.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Mapping {
    /// The number of its memory holder: 0 for the predecessor itself.
    pub(super) holder: usize,
    pub(super) address: u64,
}

/// All that a daemon hands over but the descriptors, which are in this order: the trainers' socket, that of
/// successors, that of metrics if there is one, the data path's UDP sockets, of each connection its socket
/// and its jobs' eventfds, the regions' files, and of each memory holder its memory and its link.
#[derive(Serialize, Deserialize)]
pub(super) struct HandoverState {
    pub(super) is_xdp: bool,
    /// The reason for UDP in place of AF_XDP.
    pub(super) fallback: Option<Fallback>,
    pub(super) has_metrics: bool,
    pub(super) service: Service,
    /// The number of UDP sockets of each shard.
    pub(super) sockets: Vec<usize>,
    /// The core's state ([`sumac_handover::write_host`]).
    #[serde(with = "serde_bytes")]
    pub(super) host: Vec<u8>,
    /// In the order of the regions.
    pub(super) mappings: Vec<Mapping>,
    /// The jobs' memberships ([`sumac_handover::write_members`]).
    #[serde(with = "serde_bytes")]
    pub(super) members: Vec<u8>,
    pub(super) lanes: Vec<LaneSnapshot>,
}

impl HandoverState {
    /// Writes the state to a file in memory.
    pub(super) fn to_file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("sumac-handover", MemfdFlags::CLOEXEC)?);
        let mut bytes = Vec::new();
        into_writer(self, &mut bytes).map_err(io::Error::other)?;
        file.write_all(&bytes)?;
        Ok(file.into())
    }

    pub(super) fn of_file(file: OwnedFd) -> io::Result<HandoverState> {
        let mut file = File::from(file);
        file.rewind()?;
        from_reader(io::BufReader::new(file)).map_err(io::Error::other)
    }
}
