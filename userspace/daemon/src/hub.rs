//! What all sessions share: the carrier of packets, the names of this host's jobs, and what is counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sumac_api::{Code, Failure, Open, StatsReply};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::carrier::Carrier;
use crate::config::Config;
use crate::inbox::Inbox;
use crate::job;
use crate::line::JobLine;
use crate::memory::Budget;
use crate::routes::Routes;
use crate::session::Note;

/// How long an open waits for the end of the job that has its name on this host: it may be telling the aggregator.
const PLACE_PATIENCE: Duration = Duration::from_secs(3);

/// A job's name, taken on this host until dropped: a host is one worker of a job.
#[derive(Debug)]
pub(crate) struct Place {
    hub: Arc<Hub>,
    name: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hub.places().remove(&self.name);
        self.hub.freed.notify_waiters();
    }
}

/// The daemon's shared state.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) config: Config,
    pub(crate) carrier: Carrier,
    pub(crate) routes: Arc<Routes>,
    pub(crate) clients: AtomicU32,
    pub(crate) memory: Arc<Budget>,
    runtime: tokio::runtime::Handle,
    /// The names of the jobs that are open or being opened, with their ranks.
    places: Mutex<HashMap<String, u16>>,
    /// Told when a name is free again.
    freed: Notify,
}

impl Hub {
    pub(crate) fn new(
        config: Config,
        carrier: Carrier,
        routes: Arc<Routes>,
        runtime: tokio::runtime::Handle,
    ) -> Hub {
        let memory = Arc::new(Budget::new(config.memory_bytes()));
        Hub {
            config,
            carrier,
            routes,
            clients: AtomicU32::new(0),
            memory,
            runtime,
            places: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, u16>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many jobs are open or being opened.
    pub(crate) fn open_jobs(&self) -> usize {
        self.places().len()
    }

    /// Starts to join a job; its session hears the rest as notes.
    pub(crate) fn open(
        self: &Arc<Hub>,
        open: Open,
        inbox: Arc<Inbox<Note>>,
        request: u64,
        handle: u64,
    ) -> Result<JobLine, Failure> {
        let plan = job::Plan::new(&self.config, &open)?;
        let (orders, received) = mpsc::unbounded_channel();
        let outstanding = Arc::new(AtomicUsize::new(0));
        let line = JobLine::new(orders.clone(), outstanding.clone());
        let member = job::Job { hub: self.clone(), plan, inbox, request, handle, orders, outstanding };
        self.runtime.spawn(member.run(received));
        Ok(line)
    }

    /// Takes a job's name, and waits a little for whoever had it: a trainer that is started again meets the end of the
    /// one before.
    pub(crate) async fn take_place(self: &Arc<Hub>, name: &str, rank: u16) -> Result<Place, Failure> {
        let deadline = Instant::now() + PLACE_PATIENCE;
        loop {
            // Before the look, so that no end is missed in between.
            let freed = self.freed.notified();
            let Err(holder) = self.try_place(name, rank) else {
                return Ok(Place { hub: self.clone(), name: name.to_owned() });
            };
            if timeout_at(deadline, freed).await.is_err() {
                return Err(Failure::new(
                    Code::RankTaken,
                    format!("job {name:?} is open on this daemon already, as rank {holder}"),
                )
                .hint("a daemon is one worker of a job; close the job before it is opened again")
                .ranks([holder]));
            }
        }
    }

    /// Takes a name, or tells the rank that has it.
    fn try_place(&self, name: &str, rank: u16) -> Result<(), u16> {
        match self.places().entry(name.to_owned()) {
            Entry::Occupied(taken) => Err(*taken.get()),
            Entry::Vacant(free) => {
                free.insert(rank);
                Ok(())
            }
        }
    }

    /// Everything that is counted.
    pub(crate) fn stats(&self) -> Result<StatsReply, Failure> {
        let measured = self.carrier.stats()?;
        let jobs = self.routes.name(measured.jobs);
        Ok(StatsReply {
            backend: self.carrier.backend().to_owned(),
            fallback: self.carrier.fallback().to_owned(),
            clients: self.clients.load(Ordering::Relaxed),
            jobs,
            ports: measured.ports,
            threads: measured.threads,
            frames: measured.frames,
            host_program: measured.host_program,
        })
    }
}
