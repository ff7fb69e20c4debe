//! Goes on with a dynamic job under another epoch on all planes, when a worker was replaced (ATP appendix A.3).

use super::tree::{Tree, door_here, host_part, missing, open_doors};
use crate::{
    DataPlane,
    coordinator::{Child, Door, JobOrder, RackId, Renewed},
    plane::{Installed, PlaneError, PlaneInfo},
    rpc::rack_order,
};

impl<P: DataPlane> Tree<P> {
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
            if let Err(error) = self.renew_rack(order, (number, rack, child), &mut renewed.doors) {
                tracing::warn!(job = order.install.job, %error, "the job goes on without a rack's aggregator");
                renewed.lost.push(Some(rack));
            }
        }
        Ok(renewed)
    }

    /// All parameter hosts; of each lane the first chunk that its own has not summed.
    fn renew_hosts(&self, order: &JobOrder) -> Result<Vec<u32>, PlaneError> {
        let job = order.install.job;
        let upstream = self.held().get(&job).map(|held| held.upstream.clone()).unwrap_or_default();
        let mut ordered = Vec::with_capacity(order.hosts.len());
        for (host, upstream) in order.hosts.iter().zip(&upstream) {
            let what = rack_order::What::Renew(host_part(order, upstream)?);
            ordered.push((*host, self.desks.order(*host, what)));
        }
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
        (number, rack, child): (usize, RackId, &Child),
        doors: &mut [Option<Door>],
    ) -> Result<(), PlaneError> {
        // A rack carries out orders one after the other.
        let removed = self.desks.order(rack, rack_order::What::Remove(order.install.job.into()));
        let installed = self.order_rack(order, number)?;
        self.answered("removing the job from", "rack", rack, removed)?;
        let (installed, plane) = self.installed("installing the job again at", "rack", rack, installed)?;
        open_doors(doors, child, &plane, &installed);
        Ok(())
    }
}
