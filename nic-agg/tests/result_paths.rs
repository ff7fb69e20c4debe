//! The source ports of results: one for each path of a worker, but those that its probes name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use std::collections::HashSet;

use sumac_agg_job::NewJob;
use sumac_loader::Variant;
use sumac_wire::{
    DEFAULT_BASE_PORT, FIRST_SOURCE_PORT, Kind, Reason,
    header::{Header, NO_SLOT, flag},
    result_paths::{RESULT_PATHS, SURVEY, number, of_result, probe},
};
use support::{
    Bench, REDIRECT,
    frames::{answer, contribution, frame_of, header},
    job_of, needs_privileges,
};

/// A job of three workers: with all paths, with the own port alone, and with three paths.
fn job() -> NewJob {
    let mut job = job_of(3, 20);
    for (worker, paths) in job.workers.iter_mut().zip([RESULT_PATHS as u16, 0, 3]) {
        worker.paths = paths;
    }
    job
}

/// The port of a path in shard 0.
fn port(path: u16) -> u16 {
    if path == 0 { DEFAULT_BASE_PORT } else { FIRST_SOURCE_PORT + path }
}

/// The programs with this job, after the result of chunk 0.
fn completed(job: &NewJob) -> Bench {
    let bench = Bench::new(std::slice::from_ref(job));
    for rank in 0..2 {
        assert_eq!(bench.show(&contribution(job, rank, 0, 20)).reason, Reason::Added);
    }
    assert_eq!(bench.show(&contribution(job, 2, 0, 20)).reason, Reason::Completed);
    bench
}

/// The source ports of answers to a worker that asks for the result again.
fn ports_of_replies(bench: &Bench, job: &NewJob, rank: usize) -> HashSet<u16> {
    let again = Header { flags: flag::RESEND, ..header(job, rank, 0, 20) };
    let replies = (0..200).map(|_| {
        let reply = bench.show(&frame_of(job, rank, &again));
        assert_eq!(reply.reason, Reason::Replied);
        answer(&reply.out).frame.src_port
    });
    replies.collect()
}

/// The source port of the answer to a probe with this number.
fn port_of_report(bench: &Bench, job: &NewJob, rank: usize, number: u32, path: u16, avoided: u16) -> u16 {
    let header = Header {
        kind: Kind::Probe as u8,
        seq: number,
        slot: NO_SLOT,
        elements: 0,
        flags: flag::RESEND,
        ..header(job, rank, 0, 20)
    };
    let report = bench.show(&frame_of(job, rank, &probe(header, path, avoided)));
    assert_eq!(report.reason, Reason::Probed);
    answer(&report.out).frame.src_port
}

#[test]
fn replies_leave_by_the_ports_of_all_paths() {
    needs_privileges!("replies_leave_by_the_ports_of_all_paths");
    let job = job();
    let bench = completed(&job);
    assert_eq!(ports_of_replies(&bench, &job, 0), (0..RESULT_PATHS as u16).map(port).collect());
    assert_eq!(ports_of_replies(&bench, &job, 1), HashSet::from([DEFAULT_BASE_PORT]));
    assert_eq!(ports_of_replies(&bench, &job, 2), (0..3).map(port).collect());
}

#[test]
fn a_probe_is_answered_by_its_path_and_names_those_to_avoid() {
    needs_privileges!("a_probe_is_answered_by_its_path_and_names_those_to_avoid");
    let job = job();
    let bench = completed(&job);
    let avoided = |rank| bench.tables.lock().unwrap().worker_seen(job.job, rank).unwrap().avoided_paths;
    for path in 0..RESULT_PATHS as u16 {
        assert_eq!(port_of_report(&bench, &job, 0, u32::from(path), path, 0xffff), port(path));
    }
    assert_eq!(avoided(0), 0, "no survey");
    assert_eq!(port_of_report(&bench, &job, 0, SURVEY | 5, 5, 0x00ff), port(5));
    assert_eq!([0, 1, 2].map(avoided), [8, 0, 0]);
    assert_eq!(ports_of_replies(&bench, &job, 0), (8..16).map(port).collect());
    // Paths that a worker has not are the own port, and nothing is kept for a worker of one path.
    assert_eq!(port_of_report(&bench, &job, 2, SURVEY | 7, 7, 1), DEFAULT_BASE_PORT);
    assert_eq!(port_of_report(&bench, &job, 1, SURVEY | 7, 7, 1), DEFAULT_BASE_PORT);
    assert_eq!([0, 1, 2].map(avoided), [8, 0, 1]);
    assert_eq!(ports_of_replies(&bench, &job, 2), (1..3).map(port).collect());
    assert_eq!(port_of_report(&bench, &job, 0, SURVEY, 0, 0), DEFAULT_BASE_PORT);
    assert_eq!(avoided(0), 0);
}

#[test]
fn a_late_probe_of_an_older_survey_changes_nothing() {
    needs_privileges!("a_late_probe_of_an_older_survey_changes_nothing");
    let job = job();
    let bench = completed(&job);
    let probe = |survey, avoided| port_of_report(&bench, &job, 0, number(survey, 6), 6, avoided);
    for (survey, avoided, kept) in [(255, 1, 1), (0, 0xff00, 0xff00), (255, 1, 0xff00), (1, 0, 0)] {
        assert_eq!(probe(survey, avoided), port(6), "answered in any case");
        let expected = (0..RESULT_PATHS as u16).filter(|path| kept >> path & 1 == 0).map(port).collect();
        assert_eq!(ports_of_replies(&bench, &job, 0), expected, "survey {survey}");
    }
    // A job that is installed again counts anew.
    assert_eq!(probe(7, 0x00ff), port(6));
    bench.tables.lock().unwrap().clear_counters(job.job).unwrap();
    assert_eq!(probe(1, 0xff00), port(6));
    assert_eq!(ports_of_replies(&bench, &job, 0), (0..8).map(port).collect());
}

/// A result in several buffers cannot be copied on its way out: it leaves for its one worker at once.
#[test]
fn a_long_result_of_one_worker_takes_the_path_of_its_number() {
    needs_privileges!("a_long_result_of_one_worker_takes_the_path_of_its_number");
    let mut job = job_of(1, 1500);
    job.workers[0].paths = RESULT_PATHS as u16;
    let bench = Bench::of(Variant::Jumbo, std::slice::from_ref(&job));
    let port_of = |seq| {
        let shown = bench.show(&contribution(&job, 0, seq, 1500));
        assert_eq!((shown.verdict, shown.reason), (REDIRECT, Reason::Completed), "chunk {seq}");
        answer(&shown.out).frame.src_port
    };
    let named = |avoided, seq| port(of_result(avoided, RESULT_PATHS as u16, seq));
    for seq in 0..160 {
        assert_eq!(port_of(seq), named(0, seq), "chunk {seq}");
    }
    assert_eq!(port_of_report(&bench, &job, 0, number(1, 2), 2, 0x0ff0), port(2));
    for seq in 160..320 {
        assert_eq!(port_of(seq), named(0x0ff0, seq), "chunk {seq}");
    }
}
