//! Puts a running dynamic job on planes once more: where it was lost, on all when a worker was replaced (ATP appendix A.3),
//! or at its parameter hosts when it was an earlier control plane's.

use super::{
    desk::Ordered,
    tree::{Held, Tree, door_here, host_part, missing, open_doors},
};
use crate::{
    DataPlane,
    coordinator::{Child, JobOrder, RackId, Renewed},
    plane::{Installed, PlaneError, PlaneInfo},
    rpc::{RackInstall, rack_order},
};

impl<P: DataPlane> Tree<P> {
    /// Installs a running job again where it was lost: at a rack, or here. What may be left of it there goes first: an
    /// earlier order may have been carried out whose answer was lost.
    pub fn restore(&self, order: &JobOrder, at: Option<RackId>) -> Result<(), PlaneError> {
        if let Some(held) = self.held().get_mut(&order.install.job) {
            held.racks = order.layout.racks().map(|(_, rack, _)| rack).collect();
        }
        let Some(rack) = at else { return self.renew_here(order).map(|_| ()) };
        let place = order.layout.racks().find(|(_, other, _)| *other == rack).ok_or_else(missing)?;
        self.renew_rack(order, place).map(|_| ())
    }

    /// Parameter hosts must go on; an aggregator that does not answer is done without.
    pub fn renew(&self, order: &JobOrder) -> Result<Renewed, PlaneError> {
        let resume = self.renew_hosts(order)?;
        let mut renewed =
            Renewed { doors: vec![None; order.install.workers.len()], resume, lost: Vec::new() };
        match self.renew_here(order) {
            Ok((info, installed)) => {
                for (rank, found) in renewed.doors.iter_mut().enumerate() {
                    *found = door_here(order, &info, &installed, rank);
                }
            }
            Err(error) => {
                tracing::warn!(job = order.install.job, %error, "the job goes on without this aggregator");
                renewed.lost.push(None);
            }
        }
        for (number, rack, child) in order.layout.racks() {
            match self.renew_rack(order, (number, rack, child)) {
                Ok((installed, plane)) => open_doors(&mut renewed.doors, child, &plane, &installed),
                Err(error) => {
                    tracing::warn!(job = order.install.job, %error, "the job goes on without a rack's aggregator");
                    renewed.lost.push(Some(rack));
                }
            }
        }
        Ok(renewed)
    }

    /// Has the parameter hosts of an earlier control plane's job go on for this one. Those that do have it from now on, also
    /// when one does not.
    pub fn resume(&self, order: &JobOrder) -> Result<(), PlaneError> {
        let ordered = self.order_hosts(order, rack_order::What::Resume)?;
        let (mut held, mut failed) = (Held::default(), Ok(()));
        for (host, ordered) in ordered {
            match self.answered("taking the job up again at", "parameter host", host, ordered) {
                Ok(_) => held.hosts.push(host),
                Err(error) => failed = Err(error),
            }
        }
        self.held().insert(order.install.job, held);
        failed
    }

    /// Orders something of all parameter hosts that have the job, and know where they hear from.
    fn order_hosts(
        &self,
        order: &JobOrder,
        what: fn(RackInstall) -> rack_order::What,
    ) -> Result<Vec<(RackId, Ordered)>, PlaneError> {
        let part = host_part(order, &[])?;
        Ok(order.hosts.iter().map(|host| (*host, self.desks.order(*host, what(part.clone())))).collect())
    }

    /// All parameter hosts; of each lane the first chunk that its own has not summed.
    fn renew_hosts(&self, order: &JobOrder) -> Result<Vec<u32>, PlaneError> {
        let ordered = self.order_hosts(order, rack_order::What::Renew)?;
        let mut firsts = Vec::with_capacity(ordered.len());
        for (host, ordered) in ordered {
            let (done, _) = self.answered("going on with the job at", "parameter host", host, ordered)?;
            firsts.push(done.resume);
        }
        let first_of = |lane: u16| {
            let shard = usize::from(lane.checked_rem(order.install.shards)?);
            firsts.get(shard.checked_rem(firsts.len())?)?.get(usize::from(lane)).copied()
        };
        (0..order.install.lanes).map(first_of).collect::<Option<_>>().ok_or_else(missing)
    }

    fn renew_here(&self, order: &JobOrder) -> Result<(PlaneInfo, Installed), PlaneError> {
        let info = self.local.info()?;
        self.local.remove(order.install.job)?;
        let installed = self.install_here(order, &info)?;
        Ok((info, installed))
    }

    fn renew_rack(
        &self,
        order: &JobOrder,
        (number, rack, _): (usize, RackId, &Child),
    ) -> Result<(Installed, PlaneInfo), PlaneError> {
        // A rack carries out orders one after the other.
        let removed = self.desks.order(rack, rack_order::What::Remove(order.install.job.into()));
        let installed = self.order_rack(order, number)?;
        self.answered("removing the job from", "rack", rack, removed)?;
        self.installed("installing the job again at", "rack", rack, installed)
    }
}
