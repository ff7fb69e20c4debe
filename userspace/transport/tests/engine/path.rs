//! The path of a running job that is lost, or on which nothing comes because a worker is late.

use sumac_transport::{DynamicParams, Engine, JobError, JobParams, JobState, Time, Tuning};
use sumac_wire::{Kind, Reason, header::flag, result_paths};

use crate::support::{Lone, Sent, block, job, peers};

const SECOND: u64 = 1_000_000_000;

/// A dynamic job of two workers.
fn dynamic() -> JobParams {
    JobParams { slots: 0, dynamic: Some(DynamicParams::new(64).with_window(16)), ..block(2, 1, 8) }
}

/// Lets time pass without a result, for at most a minute. `answer` gives the answer to a packet. Returns the
/// seconds until the job ended, with its error.
fn stall(lone: &mut Lone, answer: impl Fn(&Sent) -> Option<Vec<u8>>) -> Option<(f64, JobError)> {
    lone.submit_floats(&[2.0; 8]);
    let start = lone.now;
    loop {
        for sent in lone.send_all() {
            answer(&sent).into_iter().for_each(|payload| lone.take(&payload));
        }
        let seconds = lone.now.since(start) as f64 / SECOND as f64;
        if let JobState::Failed(error) = lone.engine.state() {
            let error = error.clone();
            assert!(lone.engine.poll_completion().is_some_and(|ended| ended.result.is_err()));
            return Some((seconds, error));
        }
        if seconds > 60.0 {
            return None;
        }
        lone.expire();
    }
}

fn is_probe(sent: &Sent) -> bool {
    sent.header.kind == Kind::Probe as u8
}

/// The report that the aggregator does not have the job.
fn unknown(sent: &Sent) -> Vec<u8> {
    sent.answer_with(|header| (header.kind, header.flags) = (Kind::Report as u8, flag::UNKNOWN_JOB))
}

fn text(end: Option<(f64, JobError)>) -> (f64, String) {
    end.map_or((0.0, String::new()), |(seconds, error)| (seconds, error.to_string()))
}

#[test]
fn a_path_that_answers_waits_for_the_late_worker() {
    for params in [job(2, 4, 8), dynamic()] {
        let mut lone = Lone::ready(params, 50_000);
        assert_eq!(stall(&mut lone, |sent| is_probe(sent).then(|| sent.answer())), None);
        let probes = lone.engine.stats().probes_sent;
        assert!((50..1_000).contains(&probes), "{probes} probes in a minute");
    }
}

#[test]
fn a_path_that_is_lost_for_ten_seconds_ends_the_job() {
    for (params, what) in
        [(job(2, 4, 8), "no answer from the aggregator"), (dynamic(), "no answer from the parameter host")]
    {
        let mut lone = Lone::ready(params, 50_000);
        let (seconds, error) = text(stall(&mut lone, |_| None));
        assert!((10.0..12.0).contains(&seconds) && error.contains(what), "after {seconds} s: {error}");
    }
}

#[test]
fn a_job_waits_while_one_of_its_paths_works() {
    for (name, params) in [("static", job(2, 4, 8)), ("dynamic", dynamic())] {
        for path in 0..16 {
            let tuning = Tuning { paths: 16, ..Tuning::default() };
            let engine = Engine::starting_at(params.clone(), &peers(), &tuning, 0).expect("good parameters");
            let mut lone = Lone { engine, now: Time(1_000_000) };
            lone.finish();
            lone.submit_floats(&[2.0; 8]);
            let answer = |sent: &Sent| (is_probe(sent) && sent.path == path).then(|| sent.answer());
            assert_eq!(stall(&mut lone, answer), None, "{name}, path {path}");
        }
    }
}

/// One of the paths of results loses them: the aggregator gets its number, and the sum ends. So it does when
/// the path works again.
#[test]
fn the_path_that_loses_results_is_named_to_the_aggregator() {
    const COUNT: u16 = 16;
    for dead in [0, 3, 7] {
        let mut lone = Lone::ready(JobParams { result_paths: COUNT, ..job(2, 64, 8) }, 50_000);
        lone.submit_floats(&[2.0; 8 * 64]);
        let (mut avoided, mut is_dead) = (0, true);
        let start = lone.now;
        while avoided != 0 || is_dead {
            let sent = lone.send_all();
            lone.wait(1_000_000);
            lone.engine.on_timeout(lone.now);
            for sent in sent {
                let path = match is_probe(&sent) {
                    true => result_paths::of_report(&sent.header, COUNT),
                    false => result_paths::of_result(avoided, COUNT, sent.header.seq),
                };
                avoided =
                    result_paths::avoided(&sent.header, COUNT).filter(|_| is_probe(&sent)).unwrap_or(avoided);
                if path != dead || !is_dead {
                    lone.take(&sent.answer());
                }
            }
            if lone.engine.poll_completion().is_some_and(|ended| ended.result.is_ok()) {
                assert!(!is_dead || avoided == 1 << dead, "path {dead}: {avoided:#x}");
                is_dead = false;
                // Surveys go on only while chunks are in flight.
                lone.submit_floats(&[2.0; 8 * 64]);
            }
            assert!(lone.now.since(start) < 10 * SECOND, "path {dead}: {avoided:#x}");
        }
    }
}

/// Fifteen of the sixteen paths die while a job runs: it finds the one that works.
#[test]
fn a_job_of_which_most_paths_die_goes_on() {
    for path in 0..16 {
        let tuning = Tuning { paths: 16, ..Tuning::default() };
        let engine = Engine::starting_at(job(2, 64, 8), &peers(), &tuning, 0).expect("good parameters");
        let mut lone = Lone { engine, now: Time(1_000_000) };
        lone.finish();
        lone.submit_floats(&[2.0; 8 * 1_000]);
        let start = lone.now;
        loop {
            let sent = lone.send_all();
            sent.iter().filter(|sent| sent.path == path).for_each(|sent| lone.take(&sent.answer()));
            if let Some(completion) = lone.engine.poll_completion() {
                assert!(completion.result.is_ok(), "path {path}: {:?}", completion.result);
                break;
            }
            let seconds = lone.now.since(start) / SECOND;
            assert!(seconds < 5, "path {path}: {:?}", lone.engine.stats());
            if sent.is_empty() {
                lone.expire();
            }
        }
    }
}

#[test]
fn an_mtu_that_has_become_too_small_is_named() {
    for params in [job(2, 4, 8), dynamic()] {
        let mut lone = Lone::ready(params, 50_000);
        let small = |sent: &Sent| (is_probe(sent) && sent.header.elements == 0).then(|| sent.answer());
        let (seconds, error) = text(stall(&mut lone, small));
        assert!(error.contains("raise the MTU"), "{error}");
        assert!((10.0..12.0).contains(&seconds), "after {seconds} s");
    }
}

#[test]
fn an_aggregator_that_does_not_have_the_job_ends_a_static_one() {
    let mut lone = Lone::ready(job(2, 4, 8), 50_000);
    let (seconds, error) = text(stall(&mut lone, |sent| Some(unknown(sent))));
    assert!(error.contains("no longer has job 3 (epoch 7)"), "{error}");
    assert!((2.0..4.0).contains(&seconds), "after {seconds} s: the control plane comes first");
    // Somebody else's word is nothing.
    let mut lone = Lone::ready(job(2, 4, 8), 50_000);
    let forged = |sent: &Sent| {
        let change = |header: &mut sumac_wire::Header| {
            (header.kind, header.flags) = (Kind::Report as u8, flag::UNKNOWN_JOB);
            header.token ^= 1;
        };
        Some(sent.answer_with(change))
    };
    assert!(text(stall(&mut lone, forged)).1.contains("no answer from the aggregator"));
    let stats = lone.engine.stats();
    assert!(stats.unknown_job == 0 && stats.frames.get(Reason::BadToken) > 0);
}

#[test]
fn an_aggregator_that_does_not_have_the_job_is_bypassed_by_a_dynamic_one() {
    let mut lone = Lone::ready(dynamic(), 50_000);
    lone.submit_floats(&[2.0; 8]);
    let sent = lone.send_all();
    assert_eq!((sent.len(), lone.engine.stats().direct), (1, 0));
    lone.take(&unknown(&sent[0]));
    assert_eq!(lone.engine.stats().direct, 1, "at once");
    let again: Vec<Sent> = lone.send_all().into_iter().filter(|sent| !is_probe(sent)).collect();
    assert_eq!((again.len(), again[0].header.seq), (1, sent[0].header.seq));
    assert!(again[0].header.has(flag::RESEND), "no slot shall keep it");
    lone.take(&again[0].answer());
    assert!(lone.engine.poll_completion().is_some_and(|ended| ended.result.is_ok()));
    assert_eq!(lone.engine.state(), JobState::Ready);
    assert!(lone.now < Time(SECOND));
}
