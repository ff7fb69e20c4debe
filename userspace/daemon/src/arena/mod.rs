//! The handles beside the core's state, by the same ids: mappings and their leases, completion words,
//! eventfds, outboxes.

mod buffer;
mod event;
mod region;
mod word;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sumac_api::{Channel, Code, Failure, JobSpec, Open};
use sumac_control::Credential;
use sumac_host::{
    ConnectionId, Credentials, FragmentKey, JobId, LeaseRequest, OperationKey, RankSum, RegionId, Resources,
    WordPlace,
};
use sumac_memory::{Holder, SharedRegion};
use sumac_transport::{Buffer, DirectWorkerBuffer, LocalSum, WorkerBuffer};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub(crate) use self::buffer::LeasedBuffer;
pub(crate) use self::event::CompletionEvent;
pub(crate) use self::region::MappedRegion;
use self::word::CompletionWord;
use crate::job_events::TaskEvent;
use crate::outbox::Outbox;
use crate::plan::{Plan, Planner};
use crate::spans::JobSpans;

/// A connection's socket, and the messages to it.
#[derive(Clone, Debug)]
pub(crate) struct SessionHandle {
    pub(crate) channel: Arc<Channel>,
    pub(crate) outbox: Arc<Outbox>,
}

/// The task of a job.
#[derive(Debug)]
pub(crate) struct TaskHandle {
    pub(crate) plan: Plan,
    /// Signalled when the core has posts or an end for the job.
    pub(crate) wake: Arc<Notify>,
    pub(crate) events: UnboundedSender<TaskEvent>,
    /// The other end of `events`, until the task starts: what is sent before waits for it.
    pub(crate) unstarted: Option<UnboundedReceiver<TaskEvent>>,
    pub(crate) spans: Option<JobSpans>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Arena {
    planner: Arc<Planner>,
    runtime: Handle,
    pub(crate) regions: HashMap<RegionId, Arc<MappedRegion>>,
    leases: BTreeMap<FragmentKey, LeasedBuffer>,
    words: HashMap<OperationKey, CompletionWord>,
    pub(crate) events: HashMap<(ConnectionId, u64), Arc<CompletionEvent>>,
    pub(crate) sessions: BTreeMap<ConnectionId, SessionHandle>,
    pub(crate) tasks: HashMap<JobId, TaskHandle>,
}

impl Arena {
    pub(crate) fn new(planner: Arc<Planner>, runtime: Handle) -> Arena {
        Arena {
            planner,
            runtime,
            regions: HashMap::new(),
            leases: BTreeMap::new(),
            words: HashMap::new(),
            events: HashMap::new(),
            sessions: BTreeMap::new(),
            tasks: HashMap::new(),
        }
    }

    /// Takes a fragment's lease, for the engine that sums it.
    pub(crate) fn take_lease(&mut self, key: FragmentKey) -> Option<LeasedBuffer> {
        self.leases.remove(&key)
    }

    /// Takes the leases of a fragment of several ranks, for their sum.
    pub(crate) fn sum(&mut self, RankSum { keys, mut sum }: RankSum) -> LocalSum {
        for (part, key) in sum.parts.iter_mut().zip(keys) {
            if let Some(lease) = self.take_lease(key) {
                part.buffer = Box::new(lease);
            }
        }
        sum
    }

    /// Takes a fragment's memory, for the engine: that of one rank, or of all of this host's.
    pub(crate) fn buffer(
        &mut self,
        key: FragmentKey,
        ranks: Option<RankSum>,
        is_direct: bool,
    ) -> Option<Box<dyn Buffer>> {
        match ranks.map(|ranks| self.sum(ranks)) {
            None => self.take_lease(key).map(|lease| Box::new(lease) as Box<dyn Buffer>),
            Some(sum) if is_direct => Some(Box::new(DirectWorkerBuffer::new(sum))),
            Some(sum) => Some(Box::new(WorkerBuffer::new(sum))),
        }
    }

    /// Leaves all completion words to another daemon: they are not set here. Returns the regions whose
    /// writable mappings are this process's.
    pub(crate) fn hand_over(&mut self) -> Vec<SharedRegion> {
        self.words.drain().for_each(|(_, word)| word.hand_over());
        self.holders().iter().for_each(|holder| holder.leave());
        let own = self.regions.values().map(|region| region.shared.clone());
        own.filter(|shared| shared.holder().is_none()).collect()
    }

    /// Returns a region's file for another daemon, and the place of its writable mapping.
    pub(crate) fn place(&self, region: RegionId) -> Option<(&OwnedFd, Option<&Arc<Holder>>, u64)> {
        let MappedRegion { shared, file, .. } = &**self.regions.get(&region)?;
        Some((file, shared.holder(), shared.address()))
    }

    /// Returns the processes that hold writable mappings of this daemon's regions.
    pub(crate) fn holders(&self) -> Vec<Arc<Holder>> {
        let mut holders: Vec<Arc<Holder>> = Vec::new();
        for holder in self.regions.values().filter_map(|region| region.shared.holder()) {
            if !holders.iter().any(|known| Arc::ptr_eq(known, holder)) {
                holders.push(holder.clone());
            }
        }
        holders
    }

    fn mapped(&self, region: RegionId) -> Result<&Arc<MappedRegion>, Failure> {
        self.regions.get(&region).ok_or_else(|| {
            Failure::new(Code::Internal, format!("region {region} of this host is not mapped"))
        })
    }
}

impl Resources for Arena {
    fn lease(&mut self, key: FragmentKey, request: &LeaseRequest) -> Result<(), Failure> {
        let [from, to] = request.regions;
        let (from, to) = (self.mapped(from)?, self.mapped(to)?);
        from.check_pages()?;
        to.check_pages()?;
        let lease = LeasedBuffer::new(from, to, request)?;
        self.leases.insert(key, lease);
        Ok(())
    }

    fn lease_word(&mut self, key: OperationKey, place: &WordPlace) -> Result<(), Failure> {
        let word = CompletionWord::new(self.mapped(place.region)?, place.handle, place.offset)?;
        self.words.insert(key, word);
        Ok(())
    }

    fn set_word(&mut self, key: OperationKey, is_complete: bool) {
        if let Some(word) = self.words.remove(&key) {
            word.set(is_complete);
        }
    }

    fn release(&mut self, key: OperationKey) {
        self.words.remove(&key);
        let fragment = |fragment| FragmentKey { operation: key, fragment };
        // Nearly always there are none: the engines have them.
        while let Some((first, _)) = self.leases.range(fragment(0)..=fragment(u16::MAX)).next() {
            let first = *first;
            self.leases.remove(&first);
        }
    }

    fn create_event(&mut self, connection: ConnectionId, handle: u64) -> Result<(), Failure> {
        let event = CompletionEvent::new().map_err(|error| {
            Failure::new(Code::Internal, format!("cannot make an eventfd for the job: {error}"))
        })?;
        self.events.insert((connection, handle), Arc::new(event));
        Ok(())
    }

    fn close_event(&mut self, connection: ConnectionId, handle: u64) {
        self.events.remove(&(connection, handle));
    }

    fn plan(&mut self, job: JobId, credentials: &Credentials, open: &Open) -> Result<JobSpec, Failure> {
        let plan = self.planner.plan(open, credentials)?;
        let spec = plan.spec.clone();
        let (events, receiver) = unbounded_channel();
        let (wake, unstarted) = (Arc::default(), Some(receiver));
        self.tasks.insert(job, TaskHandle { plan, wake, events, unstarted, spans: None });
        Ok(spec)
    }

    fn is_secret(&self, job: JobId, secret: &str) -> bool {
        let own = self.tasks.get(&job).and_then(|task| task.plan.secret.as_ref());
        let given = Credential::new(secret.as_bytes());
        own.zip(given.ok()).is_some_and(|(own, given)| *own == given.secret)
    }

    fn create_region(&mut self, region: RegionId, size: u64) -> Result<(), Failure> {
        self.regions.insert(region, MappedRegion::create(size)?);
        Ok(())
    }

    fn unmap(&mut self, region: RegionId) {
        if let Some(region) = self.regions.remove(&region) {
            // Unmapping takes long, and this may be a thread of the data path.
            self.runtime.spawn_blocking(move || drop(region));
        }
    }
}
