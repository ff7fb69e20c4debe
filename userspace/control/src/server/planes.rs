//! All data planes as one: this aggregator's own, those of the racks below it (SwitchML section 7), and the parameter
//! hosts of dynamic jobs (ATP).

use std::{net::SocketAddrV4, sync::Arc};

use sumac_job::Placement;

use super::links::{Links, Pending};
use crate::{
    DataPlane,
    coordinator::{Child, InstalledJob, JobOrder, RackId, Replaced},
    message::{Completion, PlaneCommand},
    plane::{Installed, JobInstall, Level, PlaneError, PlaneInfo, PlaneKind, WorkerInstall},
};

/// Executes commands on all planes that a job needs. Calls block.
pub struct Planes<P> {
    pub local: Arc<P>,
    pub links: Links,
}

type Placements = Vec<Option<Placement>>;

impl<P: DataPlane> Planes<P> {
    pub fn install(&self, order: &JobOrder) -> Result<InstalledJob, PlaneError> {
        let (info, here, parents) = self.install_here(order)?;
        let mut placements = placements_here(order, &info, &here);
        let order = JobOrder { parents, ..order.clone() };
        let sent = order.layout.racks().map(|at| Ok((at.2, self.send_rack(&order, at)?)));
        for (child, pending) in sent.collect::<Result<Vec<_>, PlaneError>>()? {
            let (installed, plane) = installed(pending, "installing the job at")?;
            place(&order, &mut placements, child, &plane, &installed);
        }
        self.install_at_hosts(&order, &info, &here)?;
        let placements = placements.into_iter().collect::<Option<Vec<_>>>().ok_or_else(incomplete)?;
        Ok(InstalledJob { placements, parents: order.parents })
    }

    /// Installs a job on this aggregator's own plane; returns where each child of the root finds it.
    fn install_here(
        &self,
        order: &JobOrder,
    ) -> Result<(PlaneInfo, Installed, Vec<SocketAddrV4>), PlaneError> {
        let info = self.local.info()?;
        if !order.layout.has_racks() {
            let installed = self.local.install(&whole(order, Level::Only, order.workers.clone()))?;
            return Ok((info, installed, Vec::new()));
        }
        let children = order.layout.children().iter();
        let workers = children.map(|child| self.child(order, child)).collect::<Result<_, _>>()?;
        let level = Level::Root { contributors: order.terms.world };
        let installed = self.local.install(&whole(order, level, workers))?;
        let parents = installed.aggregator_ips.iter().map(|ip| SocketAddrV4::new(*ip, info.base_port));
        let parents = parents.collect();
        Ok((info, installed, parents))
    }

    fn child(&self, order: &JobOrder, child: &Child) -> Result<WorkerInstall, PlaneError> {
        let first = child.ranks.first().copied().ok_or_else(incomplete)?;
        let Some(rack) = child.rack else {
            return order.workers.get(first).cloned().ok_or_else(incomplete);
        };
        let gone = || PlaneError::Unavailable { what: format!("the rack of rank {first} is gone") };
        let (ip, plane) = self.links.rack(rack).ok_or_else(gone)?;
        // The plane finds the MAC address of the rack by itself.
        Ok(WorkerInstall { ip, port: plane.base_port, mac: [0; 6], local_ip: ip })
    }

    fn send_rack(
        &self,
        order: &JobOrder,
        (number, rack, child): (usize, RackId, &Child),
    ) -> Result<Pending, PlaneError> {
        let workers = child.ranks.iter().map(|rank| order.workers.get(*rank).cloned());
        let level = Level::Rack {
            rack: number as u16,
            racks: order.layout.children().len() as u16,
            contributors: order.terms.world,
            parent: *order.parents.get(number).ok_or_else(incomplete)?,
        };
        let job = whole(order, level, workers.collect::<Option<_>>().ok_or_else(incomplete)?);
        Ok(self.links.command(rack, PlaneCommand::Install(Box::new(job))))
    }

    fn install_at_hosts(
        &self,
        order: &JobOrder,
        info: &PlaneInfo,
        here: &Installed,
    ) -> Result<(), PlaneError> {
        let send = |(number, host): (usize, &RackId)| {
            let upstream = match info.kind {
                PlaneKind::None => Vec::new(),
                _ => {
                    let ip = here.host_sides.get(number).ok_or_else(incomplete)?;
                    vec![SocketAddrV4::new(*ip, info.base_port)]
                }
            };
            let part = Box::new(host_part(order, upstream));
            Ok(self.links.command(*host, PlaneCommand::Install(part)))
        };
        let sent = order.hosts.iter().enumerate().map(send).collect::<Result<Vec<_>, PlaneError>>()?;
        sent.into_iter().try_for_each(|pending| installed(pending, "installing the job at").map(drop))
    }

    pub fn resize(&self, order: &JobOrder) -> Result<(), PlaneError> {
        let terms = &order.terms;
        let (job, slots, reason) = (terms.job, terms.slots, terms.slots_reason.clone());
        let racks = order.layout.racks().map(|(_, rack, _)| rack);
        let command = PlaneCommand::Resize { job, slots, reason: reason.clone() };
        let sent: Vec<_> = racks.map(|rack| self.links.command(rack, command.clone())).collect();
        self.local.resize(job, slots, &reason)?;
        sent.into_iter().try_for_each(|pending| pending.wait("resizing the job at").map(drop))
    }

    /// Removes a job. A rack or parameter host that is gone removes its jobs by itself.
    pub fn remove(&self, job: u16, from: &[RackId]) -> Result<(), PlaneError> {
        let command = |rack: &RackId| (*rack, self.links.command(*rack, PlaneCommand::Remove { job }));
        let sent: Vec<_> = from.iter().map(command).collect();
        self.local.remove(job)?;
        for (rack, pending) in sent {
            match pending.wait("removing the job from") {
                Err(error) if self.links.rack(rack).is_some() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Installs a running job again where it was lost: at a rack, or here. A rest of it there is removed first: an
    /// earlier command may have been executed whose outcome was lost.
    pub fn restore(&self, order: &JobOrder, at: Option<RackId>) -> Result<(), PlaneError> {
        let Some(rack) = at else { return self.renew_here(order).map(|_| ()) };
        let child = order.layout.racks().find(|(_, other, _)| *other == rack).ok_or_else(incomplete)?;
        self.renew_rack(order, child).map(|_| ())
    }

    /// Changes a job to the epoch of its terms. Parameter hosts must go on; the job does without an aggregator that does
    /// not answer.
    pub fn renew(&self, order: &JobOrder) -> Result<Replaced, PlaneError> {
        let resume = self.renew_hosts(order)?;
        let none = vec![None; order.workers.len()];
        let mut replaced = Replaced { placements: none, resume, lost: Vec::new() };
        let job = order.terms.job;
        match self.renew_here(order) {
            Ok((info, installed)) => replaced.placements = placements_here(order, &info, &installed),
            Err(error) => {
                tracing::warn!(job, %error, "the job goes on without this aggregator");
                replaced.lost.push(None);
            }
        }
        for (number, rack, child) in order.layout.racks() {
            match self.renew_rack(order, (number, rack, child)) {
                Ok((installed, plane)) => place(order, &mut replaced.placements, child, &plane, &installed),
                Err(error) => {
                    tracing::warn!(job, %error, "the job goes on without a rack's aggregator");
                    replaced.lost.push(Some(rack));
                }
            }
        }
        Ok(replaced)
    }

    /// Renews at all parameter hosts; returns of each lane the first chunk that its own has not summed.
    fn renew_hosts(&self, order: &JobOrder) -> Result<Vec<u32>, PlaneError> {
        let part = Box::new(host_part(order, Vec::new()));
        let send = |host: &RackId| self.links.command(*host, PlaneCommand::Renew(part.clone()));
        let sent: Vec<_> = order.hosts.iter().map(send).collect();
        let mut firsts = Vec::with_capacity(sent.len());
        for pending in sent {
            match pending.wait("going on with the job at")? {
                (Completion::Renewed { resume }, _) => firsts.push(resume),
                _ => return Err(incomplete()),
            }
        }
        let first_of = |lane: u16| {
            let shard = usize::from(lane.checked_rem(order.terms.shards)?);
            firsts.get(shard.checked_rem(firsts.len())?)?.get(usize::from(lane)).copied()
        };
        (0..order.terms.lanes()).map(first_of).collect::<Option<_>>().ok_or_else(incomplete)
    }

    fn renew_here(&self, order: &JobOrder) -> Result<(PlaneInfo, Installed), PlaneError> {
        self.local.remove(order.terms.job)?;
        let (info, installed, _) = self.install_here(order)?;
        Ok((info, installed))
    }

    fn renew_rack(
        &self,
        order: &JobOrder,
        at: (usize, RackId, &Child),
    ) -> Result<(Installed, PlaneInfo), PlaneError> {
        // A rack executes commands one after the other.
        let removed = self.links.command(at.1, PlaneCommand::Remove { job: order.terms.job });
        let pending = self.send_rack(order, at)?;
        removed.wait("removing the job from")?;
        installed(pending, "installing the job again at")
    }
}

fn installed(pending: Pending, doing: &'static str) -> Result<(Installed, PlaneInfo), PlaneError> {
    match pending.wait(doing)? {
        (Completion::Installed(installed), plane) => Ok((installed, plane)),
        _ => Err(incomplete()),
    }
}

fn whole(order: &JobOrder, level: Level, workers: Vec<WorkerInstall>) -> JobInstall {
    JobInstall {
        terms: order.terms.clone(),
        first_slot: order.first_slot,
        stealing: order.stealing,
        level,
        workers,
        contributors: Vec::new(),
        upstream: Vec::new(),
    }
}

fn host_part(order: &JobOrder, upstream: Vec<SocketAddrV4>) -> JobInstall {
    let contributors = order.layout.contributors();
    JobInstall { contributors, upstream, ..whole(order, Level::Only, order.workers.clone()) }
}

/// The placements of the workers that send to this aggregator itself; none for those below racks.
fn placements_here(order: &JobOrder, info: &PlaneInfo, installed: &Installed) -> Placements {
    let of = |rank: usize| {
        let position = order.layout.position(rank)?;
        if order.layout.children().get(position.child)?.rack.is_some() {
            return None;
        }
        // The root's answer is about its children.
        let at = if order.layout.has_racks() { position.child } else { rank };
        placement(order, rank, info, installed, at)
    };
    (0..order.workers.len()).map(of).collect()
}

/// Fills in the placements of the workers below a rack, whose plane's answer this is.
fn place(
    order: &JobOrder,
    placements: &mut Placements,
    child: &Child,
    plane: &PlaneInfo,
    installed: &Installed,
) {
    for (at, rank) in child.ranks.iter().enumerate() {
        if let Some(found) = placements.get_mut(*rank) {
            *found = placement(order, *rank, plane, installed, at);
        }
    }
}

/// The placement of the worker that a plane's answer has at index `at`.
fn placement(
    order: &JobOrder,
    rank: usize,
    plane: &PlaneInfo,
    installed: &Installed,
    at: usize,
) -> Option<Placement> {
    let position = order.layout.position(rank)?;
    Some(Placement {
        rank: u16::try_from(rank).ok()?,
        aggregator_ip: installed.aggregator_ips.get(at).copied()?,
        base_port: plane.base_port,
        aggregator: plane.kind,
        result_group: installed.result_group,
        rack_rank: u16::try_from(position.bit).ok()?,
        rack_world: u16::try_from(position.fan_in).ok()?,
        bitmap_1: order.layout.bitmap_1(position),
        beside_root: order.layout.is_beside_racks(position),
    })
}

fn incomplete() -> PlaneError {
    PlaneError::Failed {
        doing: "installing a job",
        what: "the plane's answer is not about all workers and parameter hosts".into(),
    }
}
