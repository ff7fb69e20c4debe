//! A rack's aggregator or a parameter host, as the coordinator knows it.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{ids::RackId, time::Time};
use crate::plane::{PlaneInfo, PlaneKind, TakenOver};

/// Longest name of a rack, in bytes.
pub const RACK_NAME_LEN: usize = 64;
/// The most racks from a worker up to the root.
pub const MAX_RACKS_UP: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackEntry {
    pub name: String,
    /// Its address, as seen from here: also the source of its sums.
    pub ip: Ipv4Addr,
    /// The rack that it entered through; none: it is below the root itself.
    pub above: Option<RackId>,
    pub plane: PlaneInfo,
    pub instance: u64,
    pub jobs: TakenOver,
}

/// A rack's aggregator or a parameter host. What is serialized is journaled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rack {
    pub(super) name: String,
    pub(super) ip: Ipv4Addr,
    #[serde(default)]
    pub(super) above: Option<RackId>,
    pub(super) plane: PlaneInfo,
    /// 0: it has not entered since the coordinator's restart.
    #[serde(skip)]
    pub(super) instance: u64,
    #[serde(skip)]
    pub(super) is_connected: bool,
    /// Whether it has not ended its connection.
    #[serde(skip)]
    pub(super) is_open: bool,
    #[serde(skip)]
    pub(super) seen: Time,
    #[serde(skip)]
    pub(super) since: Time,
    /// The journal has its name and address.
    #[serde(skip)]
    pub(super) is_recorded: bool,
    /// Since when its data plane does not answer, and why.
    #[serde(skip)]
    pub(super) away: Option<(Time, String)>,
}

impl Rack {
    pub fn is_host(&self) -> bool {
        self.plane.kind == PlaneKind::Parameter
    }

    pub fn is_in_service(&self) -> bool {
        self.is_connected && self.away.is_none()
    }

    pub fn title(&self) -> String {
        let role = if self.is_host() { "parameter host" } else { "rack" };
        format!("{role} `{}`", self.name)
    }
}
