//! The congestion window of a static job: which chunks go, what is ECN-capable, and how marks and losses
//! reach the other workers.

use crate::support::{Lone, Sent, job, peers};
use sumac_transport::{Arithmetic, DType, Engine, Importance, JobParams, Operation, Time, Tuning};
use sumac_wire::header::{exponent, flag};

const RTT: u64 = 100_000;
const SLOTS: u32 = 64;

/// A worker of two with this window at first, and a tensor that is long enough.
fn start(window: u32) -> Lone {
    let params = JobParams { congestion_control: true, ..job(2, SLOTS, 4) };
    let tuning = Tuning { initial_window: Some(window), ..Tuning::default() };
    let engine = Engine::starting_at(params, &peers(), &tuning, 0).expect("good parameters");
    let mut lone = Lone { engine, now: Time(1_000_000) };
    let probe = lone.send().expect("a probe");
    lone.wait(RTT);
    lone.take(&probe.answer());
    lone.submit_floats(&[1.0; 4000]);
    lone
}

fn seqs(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.header.seq).collect()
}

fn answer_all(lone: &mut Lone, sent: &[Sent]) {
    lone.wait(RTT);
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
}

/// An answer with a mark that all workers know.
fn echoed(sent: &Sent) -> Vec<u8> {
    sent.answer_with(|header| header.flags |= flag::ECN_ECHO)
}

#[test]
fn without_the_option_all_slots_are_in_flight_and_marks_change_nothing() {
    let mut lone = Lone::ready(job(2, SLOTS, 4), RTT);
    lone.submit_floats(&[1.0; 4000]);
    let sent = lone.send_all();
    assert_eq!(seqs(&sent), (0..SLOTS).collect::<Vec<_>>());
    lone.take_marked(&echoed(&sent[0]));
    let next = lone.send_all();
    assert_eq!((seqs(&next), next[0].header.flags), (vec![SLOTS], flag::POOL_VERSION));
    assert_eq!((lone.engine.stats().cwnd, lone.engine.stats().halvings), (0, 0));
}

#[test]
fn the_window_lets_the_first_chunks_go_and_grows() {
    let mut lone = start(4);
    let sent = lone.send_all();
    assert_eq!(seqs(&sent), [0, 1, 2, 3]);
    answer_all(&mut lone, &sent);
    let sent = lone.send_all();
    assert_eq!((seqs(&sent), lone.engine.stats().cwnd), ((4..12).collect(), 8));
    answer_all(&mut lone, &sent);
    lone.finish();
    let stats = lone.engine.stats();
    assert_eq!((stats.cwnd, stats.results, stats.questions), (u64::from(SLOTS), 1000, 0));
}

/// A chunk of a slot that was held up precedes those in flight: another worker may wait for it with a window
/// of one.
#[test]
fn an_earlier_chunk_goes_whatever_is_in_flight() {
    let mut lone = start(SLOTS);
    let sent = lone.send_all();
    // The aggregator draws for the others what slot 0 would have had, and more.
    sent[1..].iter().for_each(|sent| lone.take(&sent.answer()));
    let later = lone.send_all();
    assert_eq!(seqs(&later), (SLOTS + 1..2 * SLOTS).collect::<Vec<_>>());
    lone.take(&echoed(&later[62]));
    lone.take(&echoed(&later[61]));
    assert_eq!(lone.engine.stats().cwnd, 32, "one window, one halving");
    assert!(lone.send_all().iter().all(Sent::is_question), "61 are in flight");
    lone.take(&sent[0].answer());
    assert_eq!(seqs(&lone.send_all()), [SLOTS], "beyond the window, and before all others");
}

#[test]
fn a_mark_that_all_know_halves_the_window_once() {
    let mut lone = start(8);
    let sent = lone.send_all();
    lone.wait(RTT);
    lone.take(&echoed(&sent[0]));
    assert_eq!((lone.engine.stats().cwnd, lone.send_all().len()), (4, 0));
    sent[1..4].iter().for_each(|sent| lone.take(&echoed(sent)));
    assert_eq!((lone.engine.stats().cwnd, lone.send_all().len()), (4, 0), "four of eight are left");
    lone.take(&sent[4].answer());
    let new = lone.send_all();
    assert_eq!((seqs(&new), new[0].header.flags & flag::ECN_ECHO), (vec![8], 0));
    sent[5..].iter().for_each(|sent| lone.take(&sent.answer()));
    let new = [new, lone.send_all()].concat();
    assert_eq!((seqs(&new), lone.engine.stats().cwnd), (vec![8, 9, 10, 11], 4));
    lone.wait(RTT);
    lone.take(&echoed(&new[0]));
    assert_eq!(lone.engine.stats().cwnd, 4, "another worker may have sent it before");
    lone.take(&echoed(&new[1]));
    let stats = lone.engine.stats();
    assert_eq!((stats.cwnd, stats.halvings, stats.marked), (2, 2, 6));
}

#[test]
fn a_mark_on_the_last_hop_goes_out_with_the_next_chunk() {
    let mut lone = start(4);
    let sent = lone.send_all();
    lone.wait(RTT);
    lone.take_marked(&sent[0].answer());
    let new = lone.send_all();
    let echoes: Vec<bool> = new.iter().map(|sent| sent.header.has(flag::ECN_ECHO)).collect();
    assert_eq!(
        (lone.engine.stats().halvings, echoes),
        (0, vec![true, false]),
        "only its result halves windows"
    );
    lone.wait(RTT);
    lone.take(&new[0].answer());
    assert_eq!(lone.engine.stats().halvings, 1);
}

#[test]
fn a_lost_contribution_goes_out_as_a_mark_in_the_next_new_chunk() {
    let mut lone = start(4);
    let sent = lone.send_all();
    lone.wait(RTT);
    sent[1..].iter().for_each(|sent| lone.take(&sent.answer()));
    let new = lone.send_all();
    assert!(new.len() > 3 && new.iter().all(|sent| !sent.header.has(flag::ECN_ECHO)));
    lone.expire();
    let question = lone.send().expect("a question");
    assert!(question.is_question() && question.header.seq == 0);
    assert_eq!(lone.engine.stats().halvings, 0, "another worker's packet may be missing");
    lone.wait(RTT);
    lone.take(&question.answer());
    let again = lone.send().expect("its elements");
    assert_eq!((again.header.seq, again.header.flags), (0, flag::RESEND), "slots may merge nothing of it");
    lone.take(&new[0].answer());
    let echo = lone.send_all();
    assert!(echo[0].header.has(flag::ECN_ECHO) && lone.engine.stats().halvings == 0);
    lone.take(&echo[0].answer());
    assert_eq!(lone.engine.stats().halvings, 1);
}

#[test]
fn marks_of_exponent_rounds_count() {
    let params = JobParams { congestion_control: true, ..crate::support::block(2, 8, 4) };
    let mut lone = Lone::ready(params, RTT);
    // A short operation has no exponent chunk.
    lone.submit_floats(&[1.0; 28]);
    let rounds = lone.send_all();
    assert!(rounds.len() == 7 && rounds.iter().all(|sent| sent.header.has(flag::EXPONENT)));
    lone.wait(RTT);
    lone.take_marked(&rounds[0].answer());
    lone.take(&echoed(&rounds[1]));
    assert_eq!((lone.engine.stats().cwnd, lone.engine.stats().halvings), (4, 1));
    let elements = lone.send_all();
    assert_eq!(seqs(&elements), [0, 1], "they were let go before");
    assert_ne!(elements[0].header.exponent, exponent::NONE);
    assert!(elements.iter().all(|sent| !sent.header.has(flag::ECN_ECHO)), "the halving has answered it");
}

/// RFC 3168, section 6.1.5; and importance as drop precedence.
#[test]
fn only_first_transmissions_are_ecn_capable() {
    let mut lone = start(8);
    let mut frame = [0; 4096];
    let mut bytes = |lone: &mut Lone| -> Vec<u8> {
        std::iter::from_fn(|| lone.engine.poll_transmit(lone.now, &mut frame))
            .map(|sent| sent.dscp_ecn)
            .collect()
    };
    assert_eq!(bytes(&mut lone), [40 << 2 | 0b10; 8]);
    lone.expire();
    let queries = bytes(&mut lone);
    assert!(!queries.is_empty() && queries.iter().all(|byte| byte & 0b11 == 0), "{queries:?}");

    // RFC 2597: AF41 and AF43.
    for (importance, dscp) in [(Importance::High, 34), (Importance::Low, 38)] {
        let params = JobParams { congestion_control: true, ..job(2, SLOTS, 4) };
        let mut lone = Lone::ready(params, RTT);
        let sum = Operation::allreduce(5, DType::Float32, Arithmetic::Sum, 8, Box::new(vec![0u8; 32]));
        lone.operate(Operation { importance, ..sum });
        assert_eq!(bytes(&mut lone), [dscp << 2 | 0b10; 2], "{importance:?}");
    }
}
