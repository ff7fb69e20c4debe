//! Rounds of a thread with many jobs.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Instant;

use nix::poll::PollFlags;
use sumac_transport::JobParams;

use super::*;
use crate::frame_io::{Build, IoReport, Peer, Transmitted};

/// Takes any number of packets, or none.
struct Sink {
    is_full: bool,
}

impl FrameIo for Sink {
    fn capacity(&self) -> usize {
        1472
    }

    fn shards(&self) -> u16 {
        1
    }

    fn paths(&self) -> u16 {
        1
    }

    fn receive(&mut self, _each: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, build: Build<'_>) -> io::Result<Transmitted> {
        if self.is_full {
            return Ok(Transmitted::Full);
        }
        let built = build(&mut [0; 1472]);
        Ok(built.map_or(Transmitted::Nothing, |_| Transmitted::Staged))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn interest<'a>(&'a mut self, _fds: &mut Vec<(BorrowedFd<'a>, PollFlags)>) -> Option<Instant> {
        None
    }

    fn quiesce(&mut self, _deadline: Instant) {}

    fn report(&self) -> IoReport {
        IoReport::default()
    }
}

const JOBS: u64 = 200;

/// Returns a thread with jobs of two lanes, and the failures that it reports.
fn engines() -> (Engines, Arc<Mutex<Vec<JobId>>>) {
    let handoffs: Arc<[HandoffQueue]> = Arc::new([HandoffQueue::new().unwrap()]);
    let failed = Arc::new(Mutex::new(Vec::new()));
    let to = failed.clone();
    let sink: EventSink = Arc::new(move |event| {
        if let Event::JobFailed { job, .. } = event {
            to.lock().unwrap().push(job);
        }
    });
    let mut engines = Engines::new(0, handoffs.clone(), sink.clone(), 1);
    let peer = Peer { ip: Ipv4Addr::LOCALHOST, base_port: 1, mac: [0; 6], checksum: true };
    for id in 1..=JOBS {
        // Of several control planes some have the same number.
        let params = JobParams { token: id, ..JobParams::new((id % 100) as u16 + 1, 2, 64, 64) };
        let lanes = (0..2).map(|lane| JobParams { lane, ..params.clone() }).collect();
        let plan = WorkerJob { id, lanes, peer: Some(peer), ..WorkerJob::default() };
        let progress = Progress::new(id, 1, false, 2, handoffs.clone(), sink.clone());
        engines.add(&plan, Arc::new(progress), &Sink { is_full: false }).unwrap();
    }
    (engines, failed)
}

/// Runs a round, and returns how many lanes it has looked at.
fn round(engines: &mut Engines, now: u64, is_full: bool) -> usize {
    let mut ports = Ports { io: Box::new(Sink { is_full }), udp: None };
    engines.on_time(Time(now));
    engines.transmit(Time(now), &mut ports).unwrap();
    engines.note_sent(|| Time(now));
    engines.report();
    let looked_at = engines.schedule.active().len();
    engines.end_round(true);
    looked_at
}

#[test]
fn a_round_looks_at_the_lanes_that_have_changed() {
    let (mut engines, _) = engines();
    let all = 2 * JOBS as usize;
    assert_eq!(round(&mut engines, 1, true), all, "there is no room");
    assert_eq!(round(&mut engines, 2, false), all);
    assert_eq!(round(&mut engines, 3, false), 0, "they wait for answers");
    engines.peer_left(Time(3), 9, 1);
    assert_eq!(
        [round(&mut engines, 3, true), round(&mut engines, 3, false)],
        [2, 2],
        "no others wait for room"
    );
    engines.peer_left(Time(4), 7, 1);
    assert_eq!(round(&mut engines, 4, false), 2);
    let due = engines.deadline().unwrap();
    assert_eq!(round(&mut engines, due.0 - 1, false), 0);
    let expired = round(&mut engines, due.0, false);
    assert!((1..=all).contains(&expired), "{expired} timers");
    assert!(engines.deadline() > Some(due));
}

#[test]
fn a_job_that_fails_on_another_thread_fails_here() {
    let (mut engines, failed) = engines();
    round(&mut engines, 1, false);
    let error = JobError::Ended { reason: "elsewhere".to_owned() };
    engines.jobs[&7].progress.lane_failed(&error);
    assert_eq!(round(&mut engines, 2, false), 2 * JOBS as usize);
    assert_eq!(round(&mut engines, 3, false), 0);
    assert_eq!(*failed.lock().unwrap(), [7]);
    let is_failed = |(job, lane): (JobId, &Lane)| (job, lane.stats(job).state == "failed");
    let all: Vec<_> = engines.lanes().map(is_failed).filter(|(_, is_failed)| *is_failed).collect();
    assert_eq!(all, [(7, true); 2]);
}

#[test]
fn a_removed_job_leaves_nothing() {
    let (mut engines, _) = engines();
    round(&mut engines, 1, false);
    engines.fail(7, &JobError::Ended { reason: "x".to_owned() });
    engines.remove(7, &JobError::Ended { reason: "x".to_owned() });
    round(&mut engines, 2, false);
    assert_eq!(round(&mut engines, 3, false), 0);
    engines.forget_one(8);
    assert_eq!(engines.jobs.len(), JOBS as usize - 2);
    engines.forget();
    assert_eq!((engines.deadline(), engines.by_number.len()), (None, 0));
}
