//! What all sessions share: the carrier of packets, the names of this host's jobs, and what is counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sumac_api::{Attach, Code, Failure, Open, OpenReply, StatsReply};
use sumac_control::{Credential, Secret};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::carrier::Carrier;
use crate::config::Config;
use crate::job;
use crate::line::JobLine;
use crate::memory::Budget;
use crate::parameter::Guests;
use crate::routes::Routes;
use crate::session::{Entered, Note};
use crate::stream::{Client, ClientId, Stream};

/// How long an open waits for the end of the job that has its name on this host: it may be telling the aggregator.
const PLACE_PATIENCE: Duration = Duration::from_secs(3);

/// What stands behind a job's name on this host.
#[derive(Debug)]
struct Tenant {
    rank: u16,
    /// Set while the job is open.
    door: Option<Door>,
}

/// Where further clients come into a job.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) stream: Arc<Stream>,
    /// The job's secret, which lets in any user who knows it.
    pub(crate) secret: Secret,
    /// The user who opened the job.
    pub(crate) uid: u32,
    /// What a client is told; the handle is its session's.
    pub(crate) reply: OpenReply,
}

impl Door {
    /// Lets a client in, or says why not.
    fn admit(&self, attach: &Attach, uid: u32) -> Result<(), Failure> {
        let denied = |why: String| {
            let message = format!("job {:?}: {why}", attach.job);
            Err(Failure::new(Code::Denied, message)
                .hint("attach as the user who opened it, or with its secret"))
        };
        let is_it =
            |given: &str| Credential::new(given.as_bytes()).is_ok_and(|given| given.secret == self.secret);
        match &attach.secret {
            Some(secret) if is_it(&secret.0) => Ok(()),
            Some(_) => denied("this is not its secret".into()),
            None if uid == self.uid => Ok(()),
            None => denied(format!("user {} has opened it, not user {uid}", self.uid)),
        }
    }
}

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
    /// The jobs that this host is a parameter host of.
    pub(crate) guests: Guests,
    pub(crate) clients: AtomicU32,
    pub(crate) memory: Arc<Budget>,
    runtime: tokio::runtime::Handle,
    /// The jobs that are open or being opened, by name.
    places: Mutex<HashMap<String, Tenant>>,
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
            guests: Guests::default(),
            clients: AtomicU32::new(0),
            memory,
            runtime,
            places: Mutex::default(),
            freed: Notify::new(),
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, Tenant>> {
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
        client: Client,
        request: u64,
    ) -> Result<JobLine, Failure> {
        let plan = job::Plan::new(&self.config, &open)?;
        let (orders, received) = mpsc::unbounded_channel();
        let line = JobLine::new(orders.clone());
        let member = job::Job { hub: self.clone(), plan, client, request, orders };
        self.runtime.spawn(member.run(received));
        Ok(line)
    }

    /// Lets a further client into a job that is open on this host. The client is to be detached from the stream when it
    /// goes, even before it hears that it is in.
    pub(crate) fn attach(
        &self,
        attach: &Attach,
        client: Client,
        request: u64,
    ) -> Result<(Arc<Stream>, ClientId), Failure> {
        let places = self.places();
        let door = places.get(&attach.job).and_then(|tenant| tenant.door.as_ref()).ok_or_else(|| {
            Failure::new(Code::UnknownJob, format!("job {:?} is not open on this host", attach.job))
                .hint("one client opens it as this host's rank; others attach when all ranks have joined")
        })?;
        door.admit(attach, client.peer.uid)?;
        let (stream, reply, job) = (door.stream.clone(), door.reply.clone(), client.handle);
        let entered = |client: ClientId| Box::new(Entered { stream: stream.clone(), client, reply });
        let greeting = |id| Note::Opened { request, job, result: Ok(entered(id)) };
        let id = door.stream.attach(client, greeting)?;
        Ok((stream, id))
    }

    /// Lets further clients come into a job, until its place is given up.
    pub(crate) fn unlock(&self, name: &str, door: Door) {
        if let Some(tenant) = self.places().get_mut(name) {
            tenant.door = Some(door);
        }
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
                .hint("a daemon is one worker of a job; attach to it, or close it before it is opened again")
                .ranks([holder]));
            }
        }
    }

    /// Takes a name, or tells the rank that has it.
    fn try_place(&self, name: &str, rank: u16) -> Result<(), u16> {
        match self.places().entry(name.to_owned()) {
            Entry::Occupied(taken) => Err(taken.get().rank),
            Entry::Vacant(free) => {
                free.insert(Tenant { rank, door: None });
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
            parameter_host: self.config.parameter_host.is_some().then_some(measured.hosted),
            ports: measured.ports,
            threads: measured.threads,
            frames: measured.frames,
            host_program: measured.host_program,
        })
    }
}
