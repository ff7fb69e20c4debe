//! The coordinator's commands for the data planes, and their outcomes.

use std::{collections::BTreeMap, net::SocketAddrV4};

use sumac_job::{JobTerms, Placement};

use super::{
    ids::{RackId, RunId},
    layout::Layout,
};
use crate::plane::WorkerInstall;

/// A job for one aggregator, or for those of several racks and the root above them.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOrder {
    pub terms: JobTerms,
    /// Static mode: its first slot in the pool.
    pub first_slot: u32,
    /// Whether a completed slot takes the next chunk of its lane, whichever that is.
    pub stealing: bool,
    /// All of its workers, by rank.
    pub workers: Vec<WorkerInstall>,
    pub layout: Layout,
    pub hosts: Vec<RackId>,
    pub racks: BTreeMap<RackId, SocketAddrV4>,
    /// The root's address for each of its children, once it is installed there.
    pub parents: Vec<SocketAddrV4>,
    /// The address of the parent of each rack below another, once the job is installed there.
    pub uplinks: BTreeMap<RackId, SocketAddrV4>,
    /// Aggregators in service that cannot have the job, since they are others than before.
    pub unfit: Vec<Option<RackId>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstalledJob {
    pub placements: Vec<Placement>,
    pub parents: Vec<SocketAddrV4>,
}

/// A command for the data planes, in the order of [`super::Coordinator::poll_action`].
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Install a job; answer with [`super::Coordinator::on_installed`].
    Install(RunId, JobOrder),
    /// Give a job the number of slots in its terms; answer with [`super::Coordinator::on_resized`].
    Resize(RunId, JobOrder),
    /// Install a running dynamic job once more where it was lost; answer with
    /// [`super::Coordinator::on_restored`].
    Restore {
        run: RunId,
        order: JobOrder,
        /// The level: a rack, or this aggregator itself.
        at: Option<RackId>,
    },
    /// Continue a running dynamic job under another epoch; answer with [`super::Coordinator::on_replaced`].
    Renew(RunId, JobOrder),
    /// Remove a job from this aggregator and these racks and parameter hosts; answer with
    /// [`super::Coordinator::on_removed`].
    Remove { run: RunId, job: u16, from: Vec<RackId> },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Replaced {
    /// Each worker's part, by rank; none where its aggregator did not answer, which changes nothing for it.
    pub placements: Vec<Option<Placement>>,
    /// Of each lane the first chunk that is not summed.
    pub resume: Vec<u32>,
    /// Aggregators that have the job no more.
    pub lost: Vec<Option<RackId>>,
}
