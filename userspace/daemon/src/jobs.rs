//! The jobs of this host, by name and by number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sumac_api::{Attach, Code, Failure, JobStats, OpenReply};
use sumac_control::{Credential, Secret};
use sumac_transport::{Completion, JobError, Loss};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::daemon::{json, json_list};
use crate::datapath::{Event, JobStats as LaneStats, OperationKey, Rejection};
use crate::explain;
use crate::job::JobEvent;
use crate::operations::{Client, ClientId, FragmentEnd, FragmentTimes, JobOperations};
use crate::session::{Notification, OpenedJob};

/// The time that an open waits for the end of a job of the same name, which may be leaving its coordinator.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Row {
    rank: u16,
    job: Option<ActiveJob>,
}

#[derive(Debug)]
pub(crate) struct ActiveJob {
    pub(crate) events: UnboundedSender<JobEvent>,
    pub(crate) operations: Arc<JobOperations>,
    /// The job's secret, with which any user may attach.
    pub(crate) secret: Secret,
    pub(crate) uid: u32,
    /// The reply to its clients; the handle is their session's.
    pub(crate) reply: OpenReply,
    /// Whether the control plane answers.
    pub(crate) is_connected: watch::Receiver<bool>,
    /// Whether all workers have joined, and clients may attach.
    pub(crate) is_open: bool,
}

impl ActiveJob {
    fn check(&self, attach: &Attach, uid: u32) -> Result<(), Failure> {
        let denied = |problem: String| {
            let message = format!("job {:?}: {problem}", attach.job);
            Err(Failure::new(Code::Denied, message)
                .hint("attach as the user who opened it, or with its secret"))
        };
        let is_secret = |given: &str| {
            Credential::new(given.as_bytes()).is_ok_and(|credential| credential.secret == self.secret)
        };
        match &attach.secret {
            Some(secret) if is_secret(&secret.0) => Ok(()),
            Some(_) => denied("this is not its secret".into()),
            None if uid == self.uid => Ok(()),
            None => denied(format!("user {} has opened it, not user {uid}", self.uid)),
        }
    }
}

/// A job's name, and what is known of it besides the data path.
#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) name: String,
    pub(crate) is_connected: bool,
    /// Operations that were submitted, and those of them that have ended.
    pub(crate) submitted: u64,
    pub(crate) ended: u64,
    pub(crate) clients: u32,
}

/// A reserved name, released when dropped: a host is one worker of a job.
#[derive(Debug)]
pub(crate) struct NameReservation {
    table: Arc<JobTable>,
    name: String,
}

impl Drop for NameReservation {
    fn drop(&mut self) {
        self.table.lock().remove(&self.name);
        self.table.released.notify_waiters();
    }
}

#[derive(Debug, Default)]
pub(crate) struct JobTable {
    rows: Mutex<HashMap<String, Row>>,
    released: Notify,
}

impl JobTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Row>> {
        // Every statement leaves the map whole.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, number: u16, call: impl FnOnce(&mut ActiveJob) -> T) -> Option<T> {
        let mut rows = self.lock();
        let mut jobs = rows.values_mut().filter_map(|row| row.job.as_mut());
        jobs.find(|job| job.reply.wire_job == number).map(call)
    }

    /// Returns the names of jobs that are being opened, or leave.
    pub(crate) fn unsettled(&self) -> Vec<String> {
        let rows = self.lock();
        let is_open = |row: &Row| row.job.as_ref().is_some_and(|job| job.is_open);
        let mut names: Vec<_> =
            rows.iter().filter(|(_, row)| !is_open(row)).map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the tasks and the operations of all open jobs, by name, with the replies to their clients.
    pub(crate) fn open_jobs(
        &self,
    ) -> Vec<(String, UnboundedSender<JobEvent>, Arc<JobOperations>, OpenReply)> {
        let rows = self.lock();
        let jobs = rows.iter().filter_map(|(name, row)| Some((name, row.job.as_ref()?)));
        let open = jobs.filter(|(_, job)| job.is_open);
        open.map(|(name, job)| (name.clone(), job.events.clone(), job.operations.clone(), job.reply.clone()))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Reserves a name. Waits for the end of a job that has it: a restarted trainer may meet its former job.
    pub(crate) async fn reserve(
        self: &Arc<JobTable>,
        name: &str,
        rank: u16,
    ) -> Result<NameReservation, Failure> {
        let deadline = Instant::now() + NAME_TIMEOUT;
        loop {
            // Before the attempt, so that no release is missed.
            let released = self.released.notified();
            let holder = match self.lock().entry(name.to_owned()) {
                Entry::Occupied(row) => row.get().rank,
                Entry::Vacant(free) => {
                    free.insert(Row { rank, job: None });
                    return Ok(NameReservation { table: self.clone(), name: name.to_owned() });
                }
            };
            if timeout_at(deadline, released).await.is_err() {
                return Err(Failure::new(
                    Code::RankTaken,
                    format!("job {name:?} is open on this daemon already, as rank {holder}"),
                )
                .hint("a daemon is one worker of a job; attach to it, or close it before it is opened again")
                .ranks([holder]));
            }
        }
    }

    /// Adds the job of a reserved name. Returns `false` when its number is in use: two coordinators may assign the same.
    pub(crate) fn add(&self, name: &str, job: ActiveJob) -> bool {
        let mut rows = self.lock();
        let number = job.reply.wire_job;
        if rows.values().filter_map(|row| row.job.as_ref()).any(|other| other.reply.wire_job == number) {
            return false;
        }
        if let Some(row) = rows.get_mut(name) {
            row.job = Some(job);
        }
        true
    }

    /// Removes the job with this number; its name stays reserved.
    pub(crate) fn remove(&self, number: u16) {
        for row in self.lock().values_mut() {
            row.job.take_if(|job| job.reply.wire_job == number);
        }
    }

    /// Attaches a client to an open job. The caller detaches it, also before its notification arrives.
    pub(crate) fn attach(
        &self,
        attach: &Attach,
        client: Client,
        request: u64,
    ) -> Result<(Arc<JobOperations>, ClientId), Failure> {
        let rows = self.lock();
        let job = rows.get(&attach.job).and_then(|row| row.job.as_ref()).filter(|job| job.is_open);
        let job = job.ok_or_else(|| {
            Failure::new(Code::UnknownJob, format!("job {:?} is not open on this host", attach.job))
                .hint("one client opens it as this host's rank; others attach when all ranks have joined")
        })?;
        job.check(attach, client.credentials.uid)?;
        let (operations, reply, handle) = (job.operations.clone(), job.reply.clone(), client.handle);
        let opened = |client| Box::new(OpenedJob { operations: operations.clone(), client, reply });
        let greeting = |id| Notification::Opened { request, job: handle, result: Ok(opened(id)) };
        let id = job.operations.attach(client, greeting)?;
        Ok((operations, id))
    }

    /// Handles an event of a data path thread. It blocks no longer than the submission of an operation.
    pub(crate) fn deliver(&self, event: Event) {
        match event {
            Event::JobReady { job } => self.send(job, JobEvent::Ready),
            Event::JobMeasured { job, measure } => self.send(job, JobEvent::Measured(measure)),
            Event::JobFailed { job, error } => self.send(job, JobEvent::Failed(error)),
            // The memory is released before the trainer is notified.
            Event::Completed { job, id, completion, sent, .. } => {
                let Completion { result, buffer, started, finished, loss, .. } = completion;
                drop(buffer);
                let times = FragmentTimes { taken: started.0, sent: sent.0, arrived: finished.0 };
                self.fragment_ended(job, id, times, loss, |tensor| match &result {
                    Ok(()) => FragmentEnd::Complete,
                    Err(error) => explain::fragment_end(error, tensor),
                });
            }
            Event::Rejected { job, id, error, operation, .. } => {
                drop(operation);
                self.fragment_ended(job, id, FragmentTimes::default(), None, |_| match error {
                    Rejection::Submit(error) => {
                        FragmentEnd::OwnFault(Failure::new(Code::Unsupported, error.to_string()))
                    }
                    // Submitted while the job was ending.
                    Rejection::UnknownJob { .. } => FragmentEnd::JobEnded,
                });
            }
        }
    }

    /// Fails all jobs of this host.
    pub(crate) fn fail_all(&self, error: &JobError) {
        for job in self.lock().values().filter_map(|row| row.job.as_ref()) {
            // Fails when the job has ended.
            drop(job.events.send(JobEvent::Failed(error.clone())));
        }
    }

    fn send(&self, number: u16, event: JobEvent) {
        // Fails when the job has ended.
        self.with(number, |job| drop(job.events.send(event)));
    }

    fn fragment_ended(
        &self,
        number: u16,
        id: OperationKey,
        times: FragmentTimes,
        loss: Option<Loss>,
        end: impl FnOnce(&str) -> FragmentEnd,
    ) {
        let operations = self.with(number, |job| job.operations.clone());
        let Some(operations) = operations else { return };
        match id {
            OperationKey::Collective(id) => operations.fragment_ended(id, times, loss, end),
            OperationKey::Transfer(key) => operations.transfer_ended(key, times, loss, end("")),
        }
    }

    pub(crate) fn state(&self, number: u16) -> Option<JobState> {
        let rows = self.lock();
        let mut jobs = rows.iter().filter_map(|(name, row)| Some((name, row.job.as_ref()?)));
        let (name, job) = jobs.find(|(_, job)| job.reply.wire_job == number)?;
        let (name, is_connected, operations) =
            (name.clone(), *job.is_connected.borrow(), job.operations.clone());
        drop(rows);
        let (submitted, ended, clients) = operations.counts();
        Some(JobState { name, is_connected, submitted, ended, clients })
    }

    /// Returns the statistics of the jobs that the data path has measured, from the sum of their lanes and the lanes.
    pub(crate) fn stats(&self, measured: Vec<(LaneStats, Vec<LaneStats>)>) -> Result<Vec<JobStats>, Failure> {
        // The data path's threads take the lock with every operation that ends: the JSON is made without it.
        let job = |(sum, lanes): (LaneStats, Vec<LaneStats>)| {
            let rows = self.lock();
            let mut jobs = rows.iter().filter_map(|(name, row)| Some((name, row.job.as_ref()?)));
            let (name, job) = jobs.find(|(_, job)| job.reply.wire_job == sum.job)?;
            Some((name.clone(), job.reply.clone(), job.operations.clone(), sum, lanes))
        };
        let jobs: Vec<_> = measured.into_iter().filter_map(job).collect();
        let stats = jobs
            .into_iter()
            .map(|(name, reply, operations, sum, lanes)| job_stats(name, reply, &operations, sum, lanes));
        stats.collect()
    }
}

fn job_stats(
    name: String,
    reply: OpenReply,
    operations: &JobOperations,
    sum: LaneStats,
    lanes: Vec<LaneStats>,
) -> Result<JobStats, Failure> {
    let (operations_submitted, operations_ended, clients) = operations.counts();
    Ok(JobStats {
        name,
        job: sum.job,
        epoch: reply.epoch,
        rank: reply.rank,
        world: reply.world,
        state: sum.state.to_owned(),
        error: sum.error.unwrap_or_default(),
        clients,
        mode: reply.mode,
        slots: reply.slots,
        slots_reason: reply.slots_reason,
        dynamic: reply.dynamic,
        elements: reply.elements,
        operations_submitted,
        operations_ended,
        engine: json(&sum.engine)?,
        lanes: json_list(lanes)?,
    })
}
