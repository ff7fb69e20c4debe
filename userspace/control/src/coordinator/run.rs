//! One incarnation of a job: its seats, and the phases from the first join to the last leave.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{JoinRequest, MemberId, Time};
use crate::{
    failure::JobFailure,
    plane::{Installed, JobInstall, WorkerInstall},
    pool::Range,
    refusal::Refusal,
};

/// Slots of a job whose workers leave the number open, if there are as many: enough for a gigabit
/// link at a round trip of a millisecond, and few enough for a veth's ring of 256 frames.
const DEFAULT_SLOTS: u32 = 128;
/// Fewer are not given unasked.
const FEWEST_SLOTS: u32 = 16;

/// What all ranks of a job must agree on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    pub world: u16,
    pub elements: u16,
    pub scale: f32,
    pub checksum: bool,
    pub slots: Option<u32>,
}

impl Shape {
    pub fn of(request: &JoinRequest) -> Shape {
        Shape {
            world: request.world,
            elements: request.elements,
            scale: request.scale,
            checksum: request.checksum,
            slots: request.slots,
        }
    }

    /// The first parameter in which two shapes differ, and both values.
    fn difference(&self, other: &Shape) -> Option<(&'static str, [String; 2])> {
        let slots = |slots: Option<u32>| slots.map_or("unspecified".into(), |slots| slots.to_string());
        let pairs = [
            ("world size", self.world.to_string(), other.world.to_string()),
            ("chunk elements", self.elements.to_string(), other.elements.to_string()),
            ("scale", self.scale.to_string(), other.scale.to_string()),
            ("checksum", self.checksum.to_string(), other.checksum.to_string()),
            ("slots", slots(self.slots), slots(other.slots)),
        ];
        pairs.into_iter().find(|(_, a, b)| a != b).map(|(what, a, b)| (what, [a, b]))
    }
}

/// A rank's place.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub member: MemberId,
    pub worker: WorkerInstall,
    /// When the rank gives up waiting for the others.
    pub gives_up: Time,
    /// How long that is from its join.
    pub patience: Time,
    /// Last sign of life.
    pub seen: Time,
    /// It has left because its work is done.
    pub departed: bool,
}

/// Why a run is over.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// It never started.
    Refused(Refusal),
    /// It was running.
    Failed(JobFailure),
    /// All have left.
    Finished,
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Ranks are missing.
    Gathering,
    /// All are there; the plane still has an earlier incarnation.
    Ready,
    /// The plane is taking the job.
    Installing,
    /// Workers may send.
    Running(Installed),
    /// Over; seats are kept until each rank has been told or is gone.
    Over(End),
}

/// What the plane holds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    /// From the order to install until it is known to be removed.
    Installed,
    /// The order to remove is on its way.
    Removing,
    /// Removing failed; it is tried again then.
    RetryAt(Time),
}

/// One incarnation of a job.
#[derive(Debug)]
pub(super) struct Run {
    pub name: String,
    pub job: u16,
    pub epoch: u16,
    pub token: u64,
    pub shape: Shape,
    pub seats: BTreeMap<u16, Seat>,
    pub phase: Phase,
    pub hold: Hold,
    pub range: Option<Range>,
    pub revision: u64,
}

impl Run {
    /// Ranks without a worker.
    pub fn missing(&self) -> Vec<u16> {
        (0..self.shape.world).filter(|rank| !self.seats.contains_key(rank)).collect()
    }

    /// Ranks that have left because their work is done.
    pub fn departed(&self) -> Vec<u16> {
        self.seats.iter().filter(|(_, seat)| seat.departed).map(|(rank, _)| *rank).collect()
    }

    /// Ranks that are still in it.
    pub fn present(&self) -> Vec<u16> {
        self.seats.iter().filter(|(_, seat)| !seat.departed).map(|(rank, _)| *rank).collect()
    }

    /// Whether workers wait for it to start.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Gathering | Phase::Ready)
    }

    /// Whether the loss of a worker ends it.
    pub fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Installing | Phase::Running(_))
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Changes the phase, and lets everybody know.
    pub fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.revision += 1;
    }

    /// Why `rank` with `shape` cannot be in this run, naming both sides.
    pub fn mismatch(&self, rank: u16, shape: &Shape) -> Option<Refusal> {
        let (what, values) = self.shape.difference(shape)?;
        let first = self.seats.keys().next().copied()?;
        Some(Refusal::Mismatch { job: self.name.clone(), what, ranks: [first, rank], values })
    }

    /// The sizes to try, in this order.
    pub fn slots_to_try(&self) -> Vec<u32> {
        match self.shape.slots {
            Some(slots) => vec![slots],
            None => std::iter::successors(Some(DEFAULT_SLOTS), |slots| Some(slots / 2))
                .take_while(|slots| *slots >= FEWEST_SLOTS)
                .collect(),
        }
    }

    /// The order for the plane.
    pub fn order(&self, range: Range) -> JobInstall {
        JobInstall {
            job: self.job,
            epoch: self.epoch,
            token: self.token,
            first_slot: range.first,
            slots: range.slots,
            elements: self.shape.elements,
            checksum: self.shape.checksum,
            workers: self.seats.values().map(|seat| seat.worker.clone()).collect(),
        }
    }

    /// The address of a rank, for messages.
    pub fn ip_of(&self, rank: u16) -> Ipv4Addr {
        self.seats.get(&rank).map_or(Ipv4Addr::UNSPECIFIED, |seat| seat.worker.ip)
    }
}
