//! Regions of the daemon's to which it writes the results of a host's ranks once, and that all of them read.
//!
//! The n-th request of each rank is for the same region. It is mapped for writing in the daemon alone, and
//! only operations that all ranks of the host have submitted write to it.

use sumac_api::{Code, CollectiveKind, Failure};

use crate::host::Host;
use crate::operation::Work;
use crate::region::{PendingRegion, Region, SharedRegion, SharedResult};
use crate::tensor::Tensor;
use crate::{ConnectionId, JobId, Output, RegionId, Resources};

impl Host {
    /// Returns the region of a rank's next request, which the first rank creates. It counts in the shares of
    /// that rank's user. The rank has the region with [`Host::registered`].
    ///
    /// # Errors
    /// The user's share is exceeded; or another rank has asked for a region of another size, which ends the
    /// job.
    pub(crate) fn share(
        &mut self,
        (connection, handle): (ConnectionId, u64),
        size: u64,
        resources: &mut dyn Resources,
        out: &mut Vec<Output>,
    ) -> Result<RegionId, Failure> {
        let (job, _, rank) = self.open_job(connection, handle)?;
        let uid = self.room_for_region(connection, size)?;
        let shared_name = self.state.jobs.get(&job).filter(|job| job.is_shared()).map(|job| job.name.clone());
        let name = shared_name.unwrap_or_default();
        let Some(local) = self.state.local_jobs.get_mut(&name) else {
            // The only rank of the job on this host.
            return self.create_shared(uid, size, SharedRegion { job, number: 1 }, resources);
        };
        let ranks = local.ranks().len();
        let at = local.shares.iter().position(|share| !share.ranks.contains(&rank));
        let Some(share) = at.and_then(|at| local.shares.get_mut(at)) else {
            let shared = SharedRegion { job: local.id, number: local.last_share + 1 };
            let number = shared.number;
            let region = self.create_shared(uid, size, shared, resources)?;
            if let Some(local) = self.state.local_jobs.get_mut(&name) {
                local.last_share = number;
                local.shares.push_back(PendingRegion { region, number, size, ranks: vec![rank] });
            }
            self.hold(region);
            self.end_complete_shares(&name, ranks, resources);
            return Ok(region);
        };
        if share.size != size {
            let text = |size| format!("shared region {} of {size} bytes", share.number);
            let first = share.ranks.first().copied().unwrap_or(rank);
            let both = [(first, text(share.size)), (rank, text(size))];
            return Err(self.differ(&name, both, out));
        }
        share.ranks.push(rank);
        let region = share.region;
        self.hold(region);
        self.end_complete_shares(&name, ranks, resources);
        Ok(region)
    }

    /// Releases what the job held for ranks that have asked now. All of them ask in the same order.
    fn end_complete_shares(&mut self, name: &str, ranks: usize, resources: &mut dyn Resources) {
        let Some(local) = self.state.local_jobs.get_mut(name) else { return };
        let is_complete = local.shares.front().is_some_and(|share| share.ranks.len() >= ranks);
        let complete = if is_complete { local.shares.pop_front() } else { None };
        complete.into_iter().for_each(|share| self.unregister_region(share.region, resources));
    }

    fn create_shared(
        &mut self,
        uid: u32,
        size: u64,
        shared: SharedRegion,
        resources: &mut dyn Resources,
    ) -> Result<RegionId, Failure> {
        let region = self.add_region(Region { uid, size, users: 0, holders: 1, shared: Some(shared) })?;
        let created = resources.create_region(region, size);
        created.inspect_err(|_| self.unregister_region(region, resources))?;
        Ok(region)
    }

    fn hold(&mut self, region: RegionId) {
        if let Some(region) = self.state.regions.get_mut(&region) {
            region.holders += 1;
        }
    }

    /// Returns the place of an operation's result in a region that the ranks of a host share; `None`: in
    /// memory of the rank's own, or nowhere.
    ///
    /// # Errors
    /// This operation may not write there.
    pub(crate) fn shared_result(
        &self,
        (connection, job): (ConnectionId, JobId),
        tensor: &Tensor,
        work: &Work,
        has_word: bool,
    ) -> Result<Option<SharedResult>, Failure> {
        let handle = tensor.regions()[1];
        let regions = self.state.connections.get(&connection).map(|found| &found.regions);
        let region = regions.and_then(|regions| self.state.regions.get(regions.get(&handle)?));
        let Some(shared) = region.and_then(|region| region.shared.as_ref()) else { return Ok(None) };
        let problem = match work {
            Work::Transfer(transfer) if transfer.sends() => return Ok(None),
            Work::Transfer(_) => Some("what a rank receives goes to memory of its own"),
            Work::Collective { .. } if has_word => Some("it has no completion words"),
            Work::Collective { .. } if tensor.is_in_place() => {
                Some("it takes results alone: give the operation an input in memory of the rank's own")
            }
            Work::Collective { .. } if tensor.written().is_none() => return Ok(None),
            Work::Collective { descriptor, .. } => match descriptor.kind {
                CollectiveKind::Allreduce | CollectiveKind::Broadcast | CollectiveKind::Allgather => None,
                CollectiveKind::Reduce | CollectiveKind::ReduceScatter => {
                    Some("results of which each rank has another go to memory of its own")
                }
            },
        };
        let name = self.state.jobs.get(&job).filter(|job| job.is_shared()).map(|job| &job.name);
        let local = name.and_then(|name| self.state.local_jobs.get(name));
        let is_foreign = shared.job != local.map_or(job, |local| local.id);
        let problem = problem.or(is_foreign.then_some("it is another job's"));
        if let Some(problem) = problem {
            let message = format!("region {handle} is shared by the ranks of this host: {problem}");
            return Err(Failure::new(Code::Unsupported, message));
        }
        Ok(tensor.written().map(|offset| SharedResult { number: shared.number, offset }))
    }

    /// Whether another rank of this host has submitted the operation before, and has its result leased.
    pub(crate) fn is_begun(&self, id: JobId, work: &Work) -> bool {
        let (Some(job), Work::Collective { descriptor, .. }) = (self.state.jobs.get(&id), work) else {
            return false;
        };
        let local = self.state.local_jobs.get(&job.name).filter(|_| job.is_shared());
        local.is_some_and(|local| local.rounds.is_begun(job.queue(descriptor), job.rank))
    }
}
