//! All data planes as one: this aggregator's own, and those of the racks below it (SwitchML section 7).

use std::{
    collections::HashMap,
    net::SocketAddrV4,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::desk::Desks;
use crate::{
    DataPlane,
    convert::rack as messages,
    coordinator::{Door, JobOrder, RackId},
    plane::{Installed, JobInstall, Level, PlaneError, PlaneInfo, WorkerInstall},
    rpc::rack_order,
};

/// Carries out orders on all planes that a job needs. Calls block.
pub struct Tree<P> {
    /// This aggregator's.
    pub local: P,
    /// The racks'.
    pub desks: Arc<Desks>,
    /// Which racks have which job.
    below: Mutex<HashMap<u16, Vec<RackId>>>,
}

/// One rack's part of a job.
struct Branch {
    rack: RackId,
    ranks: Vec<usize>,
    plane: PlaneInfo,
    worker: WorkerInstall,
}

impl<P: DataPlane> Tree<P> {
    /// No racks yet.
    pub fn new(local: P) -> Tree<P> {
        Tree { local, desks: Arc::new(Desks::new()), below: Mutex::new(HashMap::new()) }
    }

    fn below(&self) -> MutexGuard<'_, HashMap<u16, Vec<RackId>>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a job where it is needed. Where each worker sends to, by rank.
    pub fn install(&self, order: &JobOrder) -> Result<Vec<Door>, PlaneError> {
        let info = self.local.info()?;
        let branches = self.branches(order)?;
        if branches.is_empty() {
            let installed = self.local.install(&order.install)?;
            let world = order.install.workers.len() as u16;
            return (0..world).map(|rank| door(&info, &installed, rank, rank, world)).collect();
        }
        self.below().insert(order.install.job, branches.iter().map(|branch| branch.rack).collect());
        let contributors = order.install.workers.len() as u16;
        let root = JobInstall {
            level: Level::Root { contributors },
            workers: branches.iter().map(|branch| branch.worker.clone()).collect(),
            ..order.install.clone()
        };
        let at_root = self.local.install(&root)?;
        let mut ordered = Vec::with_capacity(branches.len());
        for (number, branch) in branches.iter().enumerate() {
            let ip = at_root.aggregator_ips.get(number).copied().ok_or_else(missing)?;
            let job = JobInstall {
                level: Level::Rack {
                    rack: number as u16,
                    racks: branches.len() as u16,
                    contributors,
                    parent: SocketAddrV4::new(ip, info.base_port),
                },
                workers: branch
                    .ranks
                    .iter()
                    .filter_map(|rank| order.install.workers.get(*rank).cloned())
                    .collect(),
                ..order.install.clone()
            };
            let what = messages::write_install(&job).ok_or_else(missing)?;
            ordered.push(self.desks.order(branch.rack, rack_order::What::Install(what)));
        }
        let mut doors = vec![None; usize::from(contributors)];
        for (branch, ordered) in branches.iter().zip(ordered) {
            let done = ordered.wait().map_err(|what| failed("installing the job at", branch, what))?;
            let installed = messages::read_installed(&done);
            for (place, rank) in (0..).zip(&branch.ranks) {
                let door = door(&branch.plane, &installed, place, place, branch.ranks.len() as u16)?;
                if let Some(found) = doors.get_mut(*rank) {
                    *found = Some(door);
                }
            }
        }
        doors.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)
    }

    /// The racks of a job, in the order of their first ranks. None: its workers are this aggregator's own.
    fn branches(&self, order: &JobOrder) -> Result<Vec<Branch>, PlaneError> {
        let mut branches: Vec<Branch> = Vec::new();
        for (rank, rack) in order.racks.iter().enumerate() {
            let Some(rack) = *rack else { continue };
            if let Some(branch) = branches.iter_mut().find(|branch| branch.rack == rack) {
                branch.ranks.push(rank);
                continue;
            }
            let what = || format!("the rack of rank {rank} is gone");
            let (ip, plane) =
                self.desks.rack(rack).ok_or_else(|| PlaneError::Unavailable { what: what() })?;
            // The plane finds the way to the rack by itself.
            let worker = WorkerInstall { ip, port: plane.base_port, mac: [0; 6], local_ip: ip };
            branches.push(Branch { rack, ranks: vec![rank], plane, worker });
        }
        Ok(branches)
    }

    /// Leaves a job so many slots in each lane, wherever it is.
    pub fn resize(&self, job: u16, lane_slots: u32, reason: &str) -> Result<(), PlaneError> {
        let ordered = self.order_below(job, &messages::resize(job, lane_slots, reason));
        self.local.resize(job, lane_slots, reason)?;
        for ordered in ordered {
            let done = ordered.wait();
            done.map_err(|what| PlaneError::Failed { doing: "resizing a job at a rack", what })?;
        }
        Ok(())
    }

    /// Removes a job wherever it is. A rack that is gone removes its jobs by itself.
    pub fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let ordered = self.order_below(job, &rack_order::What::Remove(job.into()));
        self.local.remove(job)?;
        let racks = self.below().get(&job).cloned().unwrap_or_default();
        for (rack, ordered) in racks.into_iter().zip(ordered) {
            match ordered.wait() {
                Err(what) if self.desks.rack(rack).is_some() => {
                    return Err(PlaneError::Failed { doing: "removing a job from a rack", what });
                }
                _ => {}
            }
        }
        self.below().remove(&job);
        Ok(())
    }

    fn order_below(&self, job: u16, what: &rack_order::What) -> Vec<super::desk::Ordered> {
        let racks = self.below().get(&job).cloned().unwrap_or_default();
        racks.into_iter().map(|rack| self.desks.order(rack, what.clone())).collect()
    }
}

/// The door of the worker at `place` in an answer of a plane.
fn door(
    plane: &PlaneInfo,
    installed: &Installed,
    place: u16,
    rack_rank: u16,
    rack_world: u16,
) -> Result<Door, PlaneError> {
    let ip = installed.aggregator_ips.get(usize::from(place)).copied().ok_or_else(missing)?;
    Ok(Door {
        aggregator_ip: ip,
        base_port: plane.base_port,
        plane: plane.kind,
        result_group: installed.result_group,
        rack_rank,
        rack_world,
    })
}

fn missing() -> PlaneError {
    PlaneError::Failed {
        doing: "installing a job",
        what: "the plane's answer is not about all workers".into(),
    }
}

fn failed(doing: &'static str, branch: &Branch, what: String) -> PlaneError {
    PlaneError::Failed { doing, what: format!("the rack at {}: {what}", branch.worker.ip) }
}
