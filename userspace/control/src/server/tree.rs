//! All data planes as one: this aggregator's own, those of the racks below it (SwitchML section 7), and the parameter
//! hosts of dynamic jobs (ATP).

use std::{
    collections::HashMap,
    net::SocketAddrV4,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::desk::{Desks, Ordered};
use crate::{
    DataPlane,
    convert::rack as messages,
    coordinator::{Child, Door, JobOrder, RackId},
    dynamic::DynamicInstall,
    plane::{Installed, JobInstall, Level, PlaneError, PlaneInfo, PlaneKind, WorkerInstall},
    rpc::{RackInstall, RackInstalled, rack_order},
};

/// Carries out orders on all planes that a job needs. Calls block.
pub struct Tree<P> {
    /// This aggregator's.
    pub local: P,
    /// The racks' and parameter hosts'.
    pub desks: Arc<Desks>,
    /// Which of them have which job.
    held: Mutex<HashMap<u16, Held>>,
}

/// Where a job is beside this aggregator.
#[derive(Clone, Default)]
pub(super) struct Held {
    pub(super) racks: Vec<RackId>,
    pub(super) hosts: Vec<RackId>,
    /// Where each child of the root finds it.
    parents: Vec<SocketAddrV4>,
}

impl<P: DataPlane> Tree<P> {
    /// No racks yet.
    pub fn new(local: P) -> Tree<P> {
        Tree { local, desks: Arc::new(Desks::new()), held: Mutex::new(HashMap::new()) }
    }

    pub(super) fn held(&self) -> MutexGuard<'_, HashMap<u16, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a job where it is needed. Where each worker sends to, by rank.
    pub fn install(&self, order: &JobOrder) -> Result<Vec<Door>, PlaneError> {
        let info = self.local.info()?;
        let racks = order.layout.racks().map(|(_, rack, _)| rack).collect();
        let held = Held { racks, hosts: order.hosts.clone(), ..Held::default() };
        self.held().insert(order.install.job, held);
        let here = self.install_here(order, &info)?;
        let mut doors = vec![None; order.install.workers.len()];
        for (rank, found) in doors.iter_mut().enumerate() {
            *found = door_here(order, &info, &here, rank);
        }
        let ordered: Vec<_> =
            order.layout.racks().map(|(number, ..)| self.order_rack(order, number)).collect();
        for ((_, rack, child), ordered) in order.layout.racks().zip(ordered) {
            let (installed, plane) = self.installed("installing the job at", "rack", rack, ordered?)?;
            open_doors(&mut doors, child, &plane, &installed);
        }
        self.install_at_hosts(order, &info, &here)?;
        doors.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)
    }

    /// Installs a job on this aggregator's own plane, and remembers where racks find it.
    pub(super) fn install_here(&self, order: &JobOrder, info: &PlaneInfo) -> Result<Installed, PlaneError> {
        let JobOrder { install, layout, .. } = order;
        if !layout.has_racks() {
            return self.local.install(install);
        }
        let workers = layout.children().iter().map(|child| self.worker(order, child));
        let contributors = install.workers.len() as u16;
        let root = JobInstall {
            level: Level::Root { contributors },
            workers: workers.collect::<Result<_, _>>()?,
            ..install.clone()
        };
        let installed = self.local.install(&root)?;
        let parents = installed.aggregator_ips.iter().map(|ip| SocketAddrV4::new(*ip, info.base_port));
        if let Some(held) = self.held().get_mut(&install.job) {
            held.parents = parents.collect();
        }
        Ok(installed)
    }

    /// A child of the root as a worker of it.
    fn worker(&self, order: &JobOrder, child: &Child) -> Result<WorkerInstall, PlaneError> {
        let first = child.ranks.first().copied().ok_or_else(missing)?;
        let Some(rack) = child.rack else {
            return order.install.workers.get(first).cloned().ok_or_else(missing);
        };
        let gone = || PlaneError::Unavailable { what: format!("the rack of rank {first} is gone") };
        let (ip, plane) = self.desks.rack(rack).ok_or_else(gone)?;
        // The plane finds the way to the rack by itself.
        Ok(WorkerInstall { ip, port: plane.base_port, mac: [0; 6], local_ip: ip })
    }

    /// Orders the rack that is the root's child of this number to take its part of a job.
    pub(super) fn order_rack(&self, order: &JobOrder, number: usize) -> Result<Ordered, PlaneError> {
        let JobOrder { install, layout, .. } = order;
        let child = layout.children().get(number).ok_or_else(missing)?;
        let parent = self.held().get(&install.job).and_then(|held| held.parents.get(number).copied());
        let workers = child.ranks.iter().map(|rank| install.workers.get(*rank).cloned());
        let job = JobInstall {
            level: Level::Rack {
                rack: number as u16,
                racks: layout.children().len() as u16,
                contributors: install.workers.len() as u16,
                parent: parent.ok_or_else(missing)?,
            },
            workers: workers.collect::<Option<_>>().ok_or_else(missing)?,
            ..install.clone()
        };
        let what = messages::write_install(&job).ok_or_else(missing)?;
        Ok(self.desks.order(child.rack.ok_or_else(missing)?, rack_order::What::Install(what)))
    }

    /// Installs a dynamic job at its parameter hosts, which hear from this aggregator as `here` says.
    fn install_at_hosts(
        &self,
        order: &JobOrder,
        info: &PlaneInfo,
        here: &Installed,
    ) -> Result<(), PlaneError> {
        let upstream = match info.kind {
            PlaneKind::None => vec![Vec::new(); order.hosts.len()],
            _ => {
                let sides = here.host_sides.iter().map(|ip| vec![SocketAddrV4::new(*ip, info.base_port)]);
                sides.collect()
            }
        };
        let mut ordered = Vec::with_capacity(order.hosts.len());
        for (number, host) in order.hosts.iter().enumerate() {
            let what = host_part(order, upstream.get(number).ok_or_else(missing)?)?;
            ordered.push((*host, self.desks.order(*host, rack_order::What::Install(what))));
        }
        for (host, ordered) in ordered {
            self.installed("installing the job at", "parameter host", host, ordered)?;
        }
        Ok(())
    }

    /// Waits for what comes of an order to install.
    pub(super) fn installed(
        &self,
        doing: &'static str,
        whose: &str,
        rack: RackId,
        ordered: Ordered,
    ) -> Result<(Installed, PlaneInfo), PlaneError> {
        let (done, plane) = self.answered(doing, whose, rack, ordered)?;
        Ok((messages::read_installed(&done), plane))
    }

    /// Waits for what comes of an order, as it was said.
    pub(super) fn answered(
        &self,
        doing: &'static str,
        whose: &str,
        rack: RackId,
        ordered: Ordered,
    ) -> Result<(RackInstalled, PlaneInfo), PlaneError> {
        let place = self.desks.rack(rack);
        let named = |what: String| match &place {
            Some((ip, _)) => format!("the {whose} at {ip}: {what}"),
            None => format!("a {whose}: {what}"),
        };
        let done = ordered.wait().map_err(|what| PlaneError::Failed { doing, what: named(what) })?;
        let (_, plane) = place.ok_or_else(missing)?;
        Ok((done, plane))
    }

    /// Leaves a job so many slots in each lane, wherever it is.
    pub fn resize(&self, job: u16, lane_slots: u32, reason: &str) -> Result<(), PlaneError> {
        let racks = self.held().get(&job).cloned().unwrap_or_default().racks;
        let ordered = self.order_all(&racks, &messages::resize(job, lane_slots, reason));
        self.local.resize(job, lane_slots, reason)?;
        for (_, ordered) in ordered {
            let done = ordered.wait();
            done.map_err(|what| PlaneError::Failed { doing: "resizing a job at a rack", what })?;
        }
        Ok(())
    }

    /// Removes a job wherever it is. A rack or parameter host that is gone removes its jobs by itself.
    pub fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let held = self.held().get(&job).cloned().unwrap_or_default();
        self.remove_from(job, &[held.racks, held.hosts].concat())?;
        self.held().remove(&job);
        Ok(())
    }

    /// Removes a job from all aggregators, and leaves it to its parameter hosts.
    pub fn withdraw(&self, job: u16) -> Result<(), PlaneError> {
        let held = self.held().get(&job).cloned().unwrap_or_default();
        self.remove_from(job, &held.racks)
    }

    fn remove_from(&self, job: u16, whence: &[RackId]) -> Result<(), PlaneError> {
        let ordered = self.order_all(whence, &rack_order::What::Remove(job.into()));
        self.local.remove(job)?;
        for (rack, ordered) in ordered {
            match ordered.wait() {
                Err(what) if self.desks.rack(rack).is_some() => {
                    return Err(PlaneError::Failed { doing: "removing a job below this aggregator", what });
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn order_all(&self, racks: &[RackId], what: &rack_order::What) -> Vec<(RackId, Ordered)> {
        racks.iter().map(|rack| (*rack, self.desks.order(*rack, what.clone()))).collect()
    }
}

/// A parameter host's part of a dynamic job.
pub(super) fn host_part(order: &JobOrder, upstream: &[SocketAddrV4]) -> Result<RackInstall, PlaneError> {
    let dynamic = order.install.dynamic.clone().ok_or_else(missing)?;
    let told = DynamicInstall { places: order.layout.places(), upstream: upstream.to_vec(), ..dynamic };
    let job = JobInstall { dynamic: Some(told), ..order.install.clone() };
    messages::write_install(&job).ok_or_else(missing)
}

/// The door of a worker that sends to this aggregator itself; none for one below a rack.
pub(super) fn door_here(
    order: &JobOrder,
    info: &PlaneInfo,
    installed: &Installed,
    rank: usize,
) -> Option<Door> {
    let spot = order.layout.spot(rank)?;
    if order.layout.children().get(spot.child)?.rack.is_some() {
        return None;
    }
    // The root's answer is about its children.
    let place = if order.layout.has_racks() { spot.child } else { rank };
    door(info, installed, place, (spot.bit, spot.fan_in))
}

/// The doors of the workers below a rack, whose plane's answer this is.
pub(super) fn open_doors(
    doors: &mut [Option<Door>],
    child: &Child,
    plane: &PlaneInfo,
    installed: &Installed,
) {
    for (place, rank) in child.ranks.iter().enumerate() {
        if let Some(found) = doors.get_mut(*rank) {
            *found = door(plane, installed, place, (place, child.ranks.len()));
        }
    }
}

/// The door of the worker that a plane's answer has at `place`: it is number `rack_rank` of `rack_world`.
pub(super) fn door(
    plane: &PlaneInfo,
    installed: &Installed,
    place: usize,
    (rack_rank, rack_world): (usize, usize),
) -> Option<Door> {
    Some(Door {
        aggregator_ip: installed.aggregator_ips.get(place).copied()?,
        base_port: plane.base_port,
        plane: plane.kind,
        result_group: installed.result_group,
        rack_rank: u16::try_from(rack_rank).ok()?,
        rack_world: u16::try_from(rack_world).ok()?,
    })
}

pub(super) fn missing() -> PlaneError {
    PlaneError::Failed {
        doing: "installing a job",
        what: "the plane's answer is not about all workers and parameter hosts".into(),
    }
}
