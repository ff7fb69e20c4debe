//! The host aggregator as a data plane of the control plane.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{TryRngCore, rngs::OsRng};
use sumac_agg_job::{
    JobError, NewJob,
    drops::DropRule,
    endpoint,
    plane::{AggregatorPlane, SlotsReasons, failed, info, installed, take_over, ways},
    seen::{JobSeen, WorkerSeen},
    status::{
        Status,
        job::{JobStatus, Observed, by_reason, ended, job_status, worker_status},
    },
};
use sumac_agg_layout::{Drops, State};
use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};
use sumac_udp::source_for;
use sumac_wire::{
    PAGE_ELEMENTS, Reason, dynamic,
    slot::SlotMeta,
    tables::{JobEntry, WorkerEntry, job_flag},
};

use crate::{
    aggregator::HostAggregator,
    lock::lock,
    udp::{Shard, StartError, bind},
};

/// A running host aggregator, which takes jobs from a control plane. Ends when dropped.
pub struct HostDataPlane {
    shards: Vec<Shard>,
    local: SocketAddrV4,
    stop: Arc<AtomicBool>,
    instance: u64,
    pub reasons: SlotsReasons,
}

impl HostDataPlane {
    /// Binds `ip:port` (port 0: any) for the first of `shards` shards, the next ports for the others, and
    /// starts their threads. Each has a pool of `slots` slots for chunks of at most `elements`.
    pub fn start(
        slots: u32,
        elements: u16,
        shards: u16,
        ip: Ipv4Addr,
        port: u16,
    ) -> Result<HostDataPlane, StartError> {
        let setup = |what| move |source| StartError::Setup { what, source };
        let instance = OsRng.try_next_u64().map_err(|error| io::Error::other(error.to_string()));
        let instance = instance.map_err(setup("get a random number"))?;
        if shards == 0 {
            return Err(StartError::Ports { shards, port });
        }
        let mut plane = HostDataPlane {
            shards: Vec::new(),
            local: SocketAddrV4::new(ip, port),
            stop: Arc::new(AtomicBool::new(false)),
            instance,
            reasons: SlotsReasons::default(),
        };
        for shard in 0..shards {
            let first = plane.local.port();
            let port = if shard == 0 { first } else { first.checked_add(shard).unwrap_or(0) };
            if port == 0 && shard > 0 {
                return Err(StartError::Ports { shards, port: first });
            }
            let socket = bind(SocketAddrV4::new(ip, port))?;
            if shard == 0 {
                plane
                    .local
                    .set_port(socket.get().local_addr().map_err(setup("ask for the socket's port"))?.port());
            }
            let core = HostAggregator::of_shard(shard, shards, slots, elements)?;
            plane.shards.push(Shard::start(shard, core, socket, plane.stop.clone())?);
        }
        Ok(plane)
    }

    /// With `slots` slots in each shard that dynamic jobs share. When nobody adds to one for `timeout`,
    /// others may take it.
    ///
    /// # Errors
    /// When the slots do not fit half of the memory that this host has.
    pub fn with_dynamic(self, slots: u32, timeout: Duration) -> Result<HostDataPlane, StartError> {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        for core in &mut self.lock_all() {
            core.share(slots)?;
            core.set_slot_timeout(timeout);
        }
        Ok(self)
    }

    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// Returns the sizes, which are the same in all shards.
    pub fn sizes(&self) -> State {
        let mut sizes = self.each(HostAggregator::sizes);
        State { base_port: self.local.port(), ..sizes.next().unwrap_or_default() }
    }

    pub fn held(&self) -> u32 {
        self.each(HostAggregator::held).sum()
    }

    /// Starts to aggregate for a job, in all shards or in none.
    pub fn add_job(&self, new: &NewJob) -> Result<(), JobError> {
        let mut cores = self.lock_all();
        cores.iter().try_for_each(|core| core.check(new))?;
        cores.iter_mut().try_for_each(|core| core.install(new))
    }

    /// Locks all shards, so that what one refuses no other has done. Threads hold one lock at a time: no
    /// deadlock.
    fn lock_all(&self) -> Vec<MutexGuard<'_, HostAggregator>> {
        self.shards.iter().map(|shard| lock(&shard.core)).collect()
    }

    fn each<T>(&self, read: impl Fn(&HostAggregator) -> T) -> impl Iterator<Item = T> {
        self.shards.iter().map(move |shard| read(&lock(&shard.core)))
    }

    /// Bytes of packets that the smallest socket holds until they are read.
    fn socket_bytes(&self) -> Option<u64> {
        self.shards.iter().map(|shard| shard.socket_bytes as u64).min()
    }

    pub fn entries(&self) -> Vec<(u16, JobEntry)> {
        let entries = |core: &HostAggregator| core.entries().map(|(job, entry)| (job, *entry)).collect();
        self.each(entries).next().unwrap_or_default()
    }

    pub fn counter(&self, reason: Reason) -> u64 {
        self.each(|core| core.counter(reason)).sum()
    }

    /// Returns the active jobs, as the first shard has them: by number, with workers and parents.
    pub fn jobs(&self) -> Vec<(u16, JobEntry, Vec<SocketAddrV4>, Vec<SocketAddrV4>)> {
        let jobs = |core: &HostAggregator| {
            let active = core.entries().filter(|(_, entry)| entry.flags & job_flag::ACTIVE != 0);
            active
                .map(|(job, entry)| (job, *entry, core.workers(job).to_vec(), core.parents(job).to_vec()))
                .collect()
        };
        self.each(jobs).next().unwrap_or_default()
    }

    fn job_seen(&self, job: u16) -> JobSeen {
        self.each(|core| core.watch.job(job)).fold(JobSeen::default(), |sum, one| sum.and(&one))
    }

    pub fn worker_seen(&self, job: u16, rank: u16) -> WorkerSeen {
        self.each(|core| core.worker_seen(job, rank)).fold(WorkerSeen::default(), |sum, one| sum.and(&one))
    }

    pub fn drops(&self, job: u16) -> Drops {
        self.each(|core| core.watch.drops(job)).next().unwrap_or_default()
    }

    fn job_status(
        &self,
        number: u16,
        entry: &JobEntry,
        addresses: &[SocketAddrV4],
        parents: Vec<SocketAddrV4>,
    ) -> JobStatus {
        let workers = (0..)
            .zip(addresses)
            .map(|(rank, address)| worker_status(rank, *address, None, self.worker_seen(number, rank)));
        let (seen, drops) = (self.job_seen(number), self.drops(number));
        job_status(number, entry, Observed { parents, seen, drops, workers: workers.collect() })
    }

    fn check_alive(&self) -> Result<(), PlaneError> {
        if !self.shards.iter().any(Shard::has_ended) {
            return Ok(());
        }
        let what = "an aggregating thread has ended; restart `sumac-agg serve`".into();
        Err(PlaneError::Unavailable { what })
    }

    /// Returns the address that packets to another come from: the bound one, or by the kernel's routes.
    fn source_for(&self, address: SocketAddrV4) -> Result<Ipv4Addr, String> {
        let bound = *self.local.ip();
        if !bound.is_unspecified() {
            return Ok(bound);
        }
        source_for(address).map_err(|error| error.to_string())
    }
}

impl DataPlane for HostDataPlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        self.check_alive()?;
        Ok(PlaneInfo { socket_bytes: self.socket_bytes(), ..info(Self::KIND, &self.sizes()) })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        take_over(self.entries(), known, |job| {
            for core in &mut self.lock_all() {
                core.remove(job);
            }
            Ok(())
        })
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.check_alive()?;
        let (workers, parents) = ways(job, |to| {
            Ok(WorkerEntry { aggregator_ip: self.source_for(to)?.to_bits(), ..endpoint(to) })
        })?;
        let new = NewJob::of(job, workers, parents).and_then(|new| self.add_job(&new).map(|()| new));
        let new = new.map_err(|error| failed("installing a job", &error))?;
        self.reasons.set(job.terms.job, Some(&job.terms.slots_reason));
        Ok(installed(job, &new, None))
    }

    fn resize(&self, job: u16, slots: u32, reason: &str) -> Result<(), PlaneError> {
        // In all shards or in none.
        let mut cores = self.lock_all();
        let checked = cores.iter().try_for_each(|core| core.check_resize(job, slots).map(drop));
        let resized = checked.and_then(|()| cores.iter_mut().try_for_each(|core| core.resize(job, slots)));
        resized.map_err(|error| failed("changing a job's slots", &error))?;
        self.reasons.set(job, Some(reason));
        Ok(())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let world = self.each(|core| core.workers(job).len() as u16).next().unwrap_or_default();
        for rank in 0..world {
            let worker = self.worker_seen(job, rank).counters;
            tracing::info!(
                job,
                rank,
                added = worker.added,
                last = worker.last,
                duplicates = worker.duplicates,
                replies = worker.replies,
                "a worker of a job that ends; `last`: how often the others waited for it"
            );
        }
        for core in &mut self.lock_all() {
            core.remove(job);
        }
        self.reasons.set(job, None);
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        self.check_alive()?;
        Ok(self.instance)
    }

    fn is_alive(&self) -> bool {
        self.shards.iter().all(Shard::is_alive)
    }
}

impl AggregatorPlane for HostDataPlane {
    const KIND: PlaneKind = PlaneKind::Host;

    fn status(&self) -> Result<Status, PlaneError> {
        let sizes = State { instance: self.instance()?, ..self.sizes() };
        let jobs = self.jobs().into_iter();
        let jobs: Vec<JobStatus> = jobs
            .map(|(number, entry, workers, parents)| self.job_status(number, &entry, &workers, parents))
            .collect();
        let of_slot = size_of::<SlotMeta>() as u64 + 2 * 4 * u64::from(sizes.elements);
        let of_dynamic = size_of::<dynamic::SlotMeta>() as u64 + 4 * PAGE_ELEMENTS as u64;
        let of_pool = u64::from(sizes.dynamic_slots) * of_dynamic;
        Ok(Status {
            pool_bytes: (u64::from(sizes.slots) * of_slot + of_pool) * u64::from(sizes.shards),
            sockets: self.shards.iter().map(Shard::counts).collect(),
            drops: self.each(|core| DropRule::of(core.watch.all_drops())).next().unwrap_or_default(),
            counters: by_reason(|reason| self.counter(reason)),
            ended: ended(self.entries(), |job| Ok::<_, PlaneError>(self.job_seen(job)))?,
            ..Status::of(Self::KIND, &sizes, Some(self.held()), jobs)
        })
    }

    fn set_drops(&self, jobs: Range<u16>, drops: Drops) -> Result<(), PlaneError> {
        for core in &mut self.lock_all() {
            jobs.clone().for_each(|job| core.watch.set_drops(job, drops));
        }
        Ok(())
    }

    fn slots_reasons(&self) -> &SlotsReasons {
        &self.reasons
    }
}

impl Drop for HostDataPlane {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.shards.iter_mut().filter_map(|shard| shard.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("an aggregating thread panicked");
            }
        }
    }
}
