//! The lanes on one thread: which payload is whose, whose turn it is to send, when the next timer expires.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use sumac_parameter::HostStats;
use sumac_transport::{JobError, LaneField, Operation, Packet, Time};
use sumac_wire::{bytes::Bytes, header::offset};

use super::{
    command::{AddError, Event, JobPlan, Refusal},
    hosted::{Hosted, is_request},
    lane::Lane,
    links::{Links, thread_of},
    port::{Port, Received},
    progress::Progress,
    stats::{JobStats, Strays},
    ways::Ways,
};

/// Turns the monotonic clock into the engines' time and back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    /// All threads of a data path count from `start`: an operation's parts are on several.
    pub(super) fn new(start: Instant) -> Clock {
        Clock { start }
    }

    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_nanos(time.0)
    }
}

/// A job as one thread knows it: also without a lane here, since its frames may arrive here.
struct Job {
    number: u16,
    shards: u16,
    /// The field by which its packets tell lanes apart.
    lane_field: LaneField,
    ways: Ways,
    /// The lanes on this thread, the urgent ones first.
    lanes: Vec<Lane>,
}

impl Job {
    fn lane(&mut self, lane: u16) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|entry| entry.number() == lane)
    }
}

/// The chunk that a lane's stream goes on with; nobody names one: the first.
fn first_of(resume: &[u32], lane: u16) -> u32 {
    resume.get(usize::from(lane)).copied().unwrap_or(0)
}

/// All jobs of one thread. There are few, so a list is searched. The other side's are there too: what this host sums for
/// others, and for itself.
pub(super) struct Engines {
    thread: usize,
    links: Links,
    progress: Arc<Progress>,
    jobs: Vec<Job>,
    hosted: Hosted,
    strays: Strays,
}

impl Engines {
    /// Without a job; shard 0 comes to UDP port `base_port`.
    pub(super) fn new(thread: usize, links: Links, progress: Arc<Progress>, base_port: u16) -> Engines {
        let hosted = Hosted::new(thread, links.len(), base_port);
        Engines { thread, links, progress, jobs: Vec::new(), hosted, strays: Strays::default() }
    }

    fn find(&mut self, job: u16) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|entry| entry.number == job)
    }

    /// Makes engines for this thread's lanes.
    pub(super) fn add(&mut self, plan: JobPlan, port: &dyn Port) -> Result<(), AddError> {
        let JobPlan { lanes, peer, hosts, resume } = plan;
        let Some(first) = lanes.first() else { return Err(AddError::Lanes { job: 0, given: 0 }) };
        let (number, shards) = (first.job, first.shards);
        if self.find(number).is_some() {
            return Err(AddError::Exists { job: number });
        }
        let ways = Ways::new(peer, hosts, first)?;
        let lane_field = match first.dynamic {
            Some(_) => LaneField::Lane,
            None if lanes.iter().any(|lane| lane.measure) => LaneField::Unknown,
            None => LaneField::Slot(first.slots),
        };
        let threads = self.links.len();
        let mine = lanes.into_iter().filter(|lane| thread_of(lane.lane, shards, threads) == self.thread);
        let resume = |lane| (!resume.is_empty()).then(|| first_of(&resume, lane));
        let mut lanes = mine
            .map(|params| {
                let first = resume(params.lane);
                Lane::new(params, ways.peers(), first, port)
            })
            .collect::<Result<Vec<_>, _>>()?;
        // Classes go up with the number, and with the urgency.
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.class()));
        self.jobs.push(Job { number, shards, lane_field, ways, lanes });
        Ok(())
    }

    /// Settles the number of slots.
    pub(super) fn start(&mut self, job: u16, slots: u32) -> Result<(), AddError> {
        let entry = self.find(job).ok_or(AddError::NoJob { job })?;
        entry.lane_field = LaneField::Slot(slots);
        entry.lanes.iter_mut().try_for_each(|lane| Ok(lane.start(slots)?))
    }

    /// Has the lanes of a dynamic job go on under another incarnation.
    pub(super) fn renew(&mut self, now: Time, job: u16, epoch: u16, resume: &[u32]) -> Result<(), AddError> {
        let entry = self.find(job).ok_or(AddError::NoJob { job })?;
        for lane in &mut entry.lanes {
            lane.renew(now, epoch, first_of(resume, lane.number()));
        }
        Ok(())
    }

    pub(super) fn submit(&mut self, now: Time, job: u16, lane: u16, tag: u64, operation: Operation) {
        let refused = match self.find(job).and_then(|job| job.lane(lane)) {
            None => Some((Refusal::NoJob { job }, operation)),
            Some(entry) => entry.submit(now, tag, operation).err(),
        };
        if let Some((error, operation)) = refused {
            self.progress.tell(Event::Refused { job, lane, tag, error, operation });
        }
    }

    pub(super) fn fail(&mut self, job: u16, why: &JobError) {
        if let Some(entry) = self.find(job) {
            entry.lanes.iter_mut().for_each(|lane| lane.fail(why));
        }
    }

    /// Ends and forgets a job; its operations complete with `why`.
    pub(super) fn remove(&mut self, job: u16, why: &JobError) {
        let Some(at) = self.jobs.iter().position(|entry| entry.number == job) else { return };
        let mut entry = self.jobs.remove(at);
        entry.lanes.iter_mut().for_each(|lane| {
            lane.fail(why);
            lane.tell(&self.progress);
        });
    }

    /// Ends and forgets all jobs.
    pub(super) fn clear(&mut self, why: &JobError) {
        while let Some(job) = self.jobs.last().map(|job| job.number) {
            self.remove(job, why);
        }
    }

    /// Gives a payload to its lane's engine, to the parameter host, or to the thread whose lane it is.
    pub(super) fn on_payload(&mut self, now: Time, received: Received, payload: &[u8]) {
        let Some(job) = payload.be16(offset::JOB) else {
            self.strays.truncated += 1;
            return;
        };
        if is_request(payload) {
            return self.on_request(job, received, payload);
        }
        let Some(entry) = self.jobs.iter_mut().find(|entry| entry.number == job) else {
            self.strays.unknown_job += 1;
            return;
        };
        let Some(from) = entry.ways.find(*received.from.ip()) else {
            self.strays.wrong_source += 1;
            return;
        };
        let packet = Packet::parse(payload, from, received.is_marked).ok();
        let named = packet.and_then(|packet| Some((packet, entry.lane_field.lane(&packet.header)?)));
        let Some((packet, lane)) = named else {
            self.strays.no_lane += 1;
            return;
        };
        if let Some(lane) = entry.lane(lane) {
            return lane.on_packet(now, &packet);
        }
        let thread = thread_of(lane, entry.shards, self.links.len());
        self.cross(thread, received, payload);
    }

    /// Gives the parameter host what is for it.
    fn on_request(&mut self, job: u16, received: Received, payload: &[u8]) {
        match self.hosted.place(job, &received) {
            Some((shard, thread)) if thread == self.thread => {
                self.hosted.on_payload(&received, shard, payload);
            }
            Some((_, thread)) => self.cross(thread, received, payload),
            None => self.strays.unknown_job += 1,
        }
    }

    /// Hands a payload to another thread.
    fn cross(&mut self, thread: usize, received: Received, payload: &[u8]) {
        match self.links.get(thread) {
            // A lane that the job does not have would go round for ever.
            Some(link) if thread != self.thread => {
                self.strays.crossed += 1;
                self.strays.crossed_lost += u64::from(!link.cross(received, payload));
            }
            _ => self.strays.no_lane += 1,
        }
    }

    /// Does what is due at `now`.
    pub(super) fn on_time(&mut self, now: Time) {
        self.lanes().for_each(|lane| lane.on_time(now));
    }

    /// Sends what the engines have, in turns with a kick after each; a bulk lane waits until all urgent ones have
    /// nothing to send. An error ends the round, not the jobs: what was not sent is sent again when its timer expires.
    pub(super) fn transmit(&mut self, now: Time, port: &mut dyn Port) -> io::Result<()> {
        loop {
            // Others wait for its results; what they answer comes back here.
            let mut is_more = self.hosted.take_turn(port)?;
            for class in (0..sumac_wire::CLASSES).rev() {
                for Job { ways, lanes, .. } in &mut self.jobs {
                    for lane in lanes.iter_mut().filter(|lane| lane.class() == class) {
                        is_more |= lane.take_turn(now, ways, port)?;
                    }
                }
                if is_more {
                    break;
                }
            }
            port.flush()?;
            if !is_more {
                return Ok(());
            }
        }
    }

    /// Tells what has changed since the last time.
    pub(super) fn tell(&mut self) {
        for lane in self.jobs.iter_mut().flat_map(|job| &mut job.lanes) {
            lane.tell(&self.progress);
        }
    }

    /// When the next timer expires.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.jobs.iter().flat_map(|job| &job.lanes).filter_map(Lane::deadline).min()
    }

    pub(super) fn strays(&self) -> Strays {
        self.strays
    }

    pub(super) fn stats(&self) -> Vec<JobStats> {
        self.jobs.iter().flat_map(|job| &job.lanes).map(Lane::stats).collect()
    }

    /// What this thread sums.
    pub(super) fn hosted(&mut self) -> &mut Hosted {
        &mut self.hosted
    }

    pub(super) fn host_stats(&self) -> HostStats {
        self.hosted.stats()
    }

    fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.jobs.iter_mut().flat_map(|job| &mut job.lanes)
    }
}
