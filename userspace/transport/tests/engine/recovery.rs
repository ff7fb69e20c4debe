//! When a chunk is asked about, and sent again: the timer, a later result, and when neither has work to do.

use crate::support::{Lone, Sent, block, job};
use sumac_transport::Time;
use sumac_wire::{
    Header, Kind,
    header::{HEADER_LEN, flag},
};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

/// A worker with 8 slots of 4 elements and a tensor that is long enough.
fn start(rtt: u64) -> Lone {
    let mut lone = Lone::ready(job(2, 8, 4), rtt);
    lone.submit_floats(&[1.0; 4000]);
    lone
}

/// Returns the packets that the engine sends again once this is reported missing.
fn missing(lone: &mut Lone, questions: &[Sent]) -> Vec<Sent> {
    assert!(questions.iter().all(Sent::is_question), "only questions go out by themselves");
    questions.iter().for_each(|question| lone.take(&question.answer()));
    let again = lone.send_all();
    assert_eq!(seqs(&again), seqs(questions));
    assert!(again.iter().all(|sent| sent.header.has(flag::RESEND) && !sent.is_question()));
    again
}

fn seqs(sent: &[Sent]) -> Vec<u32> {
    sent.iter().map(|sent| sent.header.seq).collect()
}

#[test]
fn nothing_is_done_twice_and_no_timer_fires_without_loss() {
    let mut lone = start(100 * MICRO);
    let mut flying = lone.send_all();
    while !flying.is_empty() {
        lone.wait(100 * MICRO);
        let due = lone.engine.poll_timeout();
        assert!(due.is_some_and(|due| due > lone.now), "the timer is ahead: {due:?}");
        // A timer that is asked too early has nothing to do either.
        lone.engine.on_timeout(lone.now);
        flying.iter().for_each(|sent| lone.take(&sent.answer()));
        flying = lone.send_all();
    }
    let stats = lone.engine.stats();
    assert_eq!((stats.results, stats.questions, stats.frames.dropped()), (1000, 0, 0));
    assert_eq!(lone.engine.poll_timeout(), None);
}

#[test]
fn a_later_result_is_faster_than_the_timer() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    lone.wait(100 * MICRO);
    sent[1..5].iter().for_each(|later| lone.take(&later.answer()));
    assert_eq!(seqs(&lone.send_all()), [9, 10, 11, 12], "later results alone: only new chunks");
    let waited = lone.expire();
    assert!(waited <= lone.engine.stats().rtt.smoothed_ns, "no reordering was measured: {waited}");
    let next = lone.send_all();
    assert_eq!(seqs(&next), [0], "a question about the lost chunk");
    assert!(next[0].is_question());
    assert_eq!(next[0].payload.len(), HEADER_LEN, "without its elements");
    let again = missing(&mut lone, &next[..1]);
    assert_eq!(again[0].payload[HEADER_LEN..], sent[0].payload[HEADER_LEN..], "the same elements");
    lone.take(&next[0].answer());
    assert!(lone.send_all().is_empty(), "they have been sent since");
    let stats = lone.engine.stats();
    assert_eq!((stats.suspects_fast, stats.suspects_timer, stats.questions), (1, 0, 1));
    assert_eq!((stats.missing, stats.resent), (1, 1));
}

/// Results of one path are 90 us late, those of the other on time.
#[test]
fn measured_reordering_raises_no_questions() {
    let mut lone = start(100 * MICRO);
    for round in 0..20 {
        let sent = lone.send_all();
        lone.wait(100 * MICRO);
        let (late, on_time): (Vec<Sent>, Vec<Sent>) =
            sent.into_iter().partition(|sent| sent.header.seq % 2 == 0);
        on_time.iter().for_each(|sent| lone.take(&sent.answer()));
        lone.wait(90 * MICRO);
        lone.engine.on_timeout(lone.now);
        let due = lone.engine.stats().suspects_fast;
        late.iter().for_each(|sent| lone.take(&sent.answer()));
        assert!(due == 4 || round == 0, "round {round}: {due}");
    }
    let stats = lone.engine.stats();
    assert_eq!(
        (stats.results, stats.suspects_fast, stats.suspects_spurious),
        (160, 4, 4),
        "in the first round"
    );
    assert!(stats.rtt.reordering_ns >= 90 * MICRO && stats.rtt.reordering_ns <= stats.rtt.smoothed_ns);
}

#[test]
fn what_is_not_missing_is_not_sent_again() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    sent[1..3].iter().for_each(|later| lone.take(&later.answer()));
    lone.expire();
    let question = lone.send().expect("a question");
    assert!(question.is_question() && question.header.seq == 0);
    // The aggregator has it and says nothing; another worker's came late.
    lone.wait(100 * MICRO);
    lone.take(&sent[0].answer_to_another());
    let stats = lone.engine.stats();
    assert_eq!((stats.results, stats.questions, stats.resent), (3, 1, 0));
}

#[test]
fn answers_to_no_question_are_not_taken() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    let wanted = |header: &mut Header| (header.flags, header.elements) = (header.flags | flag::QUERY, 0);
    let cut = |mut payload: Vec<u8>| {
        payload.truncate(HEADER_LEN);
        payload
    };
    lone.take(&cut(sent[0].answer_with(wanted)));
    assert_eq!(lone.send_all().len(), 0, "nobody asked");
    sent[1..3].iter().for_each(|later| lone.take(&later.answer()));
    lone.expire();
    let question = lone.send().expect("a question");
    lone.send_all();
    type Change = fn(&mut Header);
    let table: [(&str, Change); 4] = [
        ("another operation", |header| header.tensor ^= 1),
        ("another place", |header| header.offset += 1),
        ("another version", |header| header.flags ^= flag::POOL_VERSION),
        ("a round", |header| header.flags |= flag::EXPONENT),
    ];
    for (what, change) in table {
        lone.take(&question.answer_with(change));
        assert_eq!(lone.send_all().len(), 0, "{what}");
    }
    lone.take(&question.answer());
    assert_eq!(seqs(&lone.send_all()), [0], "the right one");
}

#[test]
fn a_question_that_is_lost_needs_a_result_later_than_itself() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    sent[1..4].iter().for_each(|later| lone.take(&later.answer()));
    lone.expire();
    let next = lone.send_all();
    assert_eq!(seqs(&next), [0, 9, 10, 11]);
    sent[4..8].iter().for_each(|earlier| lone.take(&earlier.answer()));
    assert_eq!(seqs(&lone.send_all()), [12, 13, 14, 15], "sent before the question: no sign");
    next[1..4].iter().for_each(|later| lone.take(&later.answer()));
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [0, 17, 18, 19]);
    assert_eq!(lone.engine.stats().suspects_fast, 2);
}

#[test]
fn slots_go_on_while_one_waits() {
    let mut lone = start(100 * MICRO);
    let mut flying = lone.send_all();
    for _ in 0..20 {
        flying.iter().filter(|sent| sent.header.slot != 0).for_each(|sent| lone.take(&sent.answer()));
        flying = lone.send_all();
    }
    let highest = flying.iter().map(|sent| sent.header.seq).max();
    assert!(highest > Some(160), "seven slots move on: {highest:?}");
}

#[test]
fn the_timer_backs_off_and_stops_at_its_bound() {
    let mut lone = Lone::ready(job(2, 1, 4), 4 * MILLI);
    lone.submit_floats(&[1.0; 4]);
    let first = lone.send().expect("a chunk");
    let waits: Vec<u64> = (0..7)
        .map(|_| {
            let waited = lone.expire();
            let again = lone.send().expect("the chunk again");
            assert_eq!(again.header.seq, first.header.seq);
            assert!(again.header.has(flag::RESEND) && again.is_question());
            waited / MILLI
        })
        .collect();
    // The probe took 4 ms: RFC 6298 makes 4 + 4 * 2 of it.
    assert_eq!(waits, [12, 24, 48, 96, 192, 200, 200]);
    assert_eq!(lone.engine.stats().suspects_timer, 7);
}

#[test]
fn the_timer_follows_the_path() {
    let mut lone = start(100 * MICRO);
    let fast = lone.engine.stats().rtt.timeout_ns;
    assert_eq!(fast, 2 * MILLI + 100 * MICRO, "a fast path: the lower bound above it");
    for _ in 0..50 {
        let flying = lone.send_all();
        lone.wait(10 * MILLI);
        flying.iter().for_each(|sent| lone.take(&sent.answer()));
    }
    let slow = lone.engine.stats().rtt;
    assert!((9 * MILLI..11 * MILLI).contains(&slow.smoothed_ns), "{slow:?}");
    assert!((11 * MILLI..15 * MILLI).contains(&slow.timeout_ns), "{slow:?}");
}

#[test]
fn what_was_sent_twice_is_no_sample_and_its_back_off_holds_for_new_chunks() {
    let mut lone = Lone::ready(job(2, 1, 4), 100 * MICRO);
    lone.submit_floats(&[1.0; 40]);
    let before = lone.engine.stats().rtt;
    let first = lone.send().expect("a chunk");
    let timeout = before.timeout_ns;
    assert_eq!(lone.expire(), timeout);
    lone.send().expect("a question");
    lone.wait(MILLI);
    lone.take(&first.answer());
    let after = lone.engine.stats().rtt;
    assert_eq!(after.smoothed_ns, before.smoothed_ns, "Karn: no sample");
    let second = lone.send().expect("the next chunk");
    let due = lone.engine.poll_timeout().expect("a timer");
    assert_eq!(due.since(lone.now), 2 * before.timeout_begun_ns, "and the back-off holds");
    lone.wait(3 * MILLI);
    lone.take(&second.answer());
    let third = lone.send().expect("the one after");
    assert_eq!((second.header.seq, third.header.seq), (1, 2));
    let timeout = lone.engine.poll_timeout().map(|due| due.since(lone.now));
    assert_eq!(timeout, Some(lone.engine.stats().rtt.timeout_begun_ns), "until a clean sample");
}

#[test]
fn silence_is_probed_by_the_earliest_chunk_and_another_in_turn() {
    let mut lone = start(100 * MICRO);
    let timeout = lone.engine.stats().rtt.timeout_ns;
    assert_eq!(lone.send_all().len(), 8);
    let mut probed = Vec::new();
    let mut waits = Vec::new();
    for _ in 0..5 {
        let before = lone.now;
        lone.expire();
        waits.push(lone.now.since(before) / timeout);
        probed.push(seqs(&lone.send_all()));
    }
    assert_eq!(probed, [[0, 1], [0, 2], [0, 3], [0, 4], [0, 5]], "never the window");
    assert_eq!(waits, [0, 1, 3, 7, 15], "backed off as a whole: twice the pause each time, less a few us");
}

#[test]
fn a_straggler_costs_two_probes_and_does_not_stretch_the_timeout() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    let before = lone.engine.stats().rtt;
    lone.expire();
    let probes = lone.send_all();
    assert_eq!(seqs(&probes), [0, 1]);
    lone.wait(3 * MILLI);
    // The straggler is there; the answers to the probes follow.
    sent.iter().for_each(|sent| lone.take(&sent.answer_to_another()));
    let after = lone.engine.stats();
    assert_eq!((after.results, after.questions, after.resent), (8, 2, 0));
    assert_eq!(after.rtt.smoothed_ns, before.smoothed_ns, "how late it was is no round trip");
    assert_eq!(seqs(&lone.send_all()), [8, 9, 10, 11, 12, 13, 14, 15]);
}

#[test]
fn a_straggler_that_stalls_again_costs_two_probes_again() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [0, 1]);
    lone.wait(3 * MILLI);
    sent[..4].iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(seqs(&lone.send_all()), [8, 9, 10, 11]);
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [4, 5]);
    assert_eq!(lone.engine.stats().questions, 4);
}

#[test]
fn after_a_lost_window_the_probes_lead_to_the_rest() {
    let mut lone = start(100 * MICRO);
    lone.send_all();
    lone.expire();
    let probes = lone.send_all();
    assert_eq!(seqs(&probes), [0, 1]);
    let again = missing(&mut lone, &probes);
    lone.wait(100 * MICRO);
    lone.take(&again[0].answer());
    assert_eq!(seqs(&lone.send_all()), [8], "its slot goes on");
    lone.take(&again[1].answer());
    lone.expire();
    let next = lone.send_all();
    assert_eq!(seqs(&next), [2, 3, 4, 5, 6, 7, 9], "results of what was sent later");
    assert!(next[..6].iter().all(Sent::is_question));
}

#[test]
fn a_lost_tail_takes_two_round_trips() {
    let mut lone = Lone::ready(job(2, 8, 4), 100 * MICRO);
    lone.submit_floats(&[1.0; 32]);
    let sent = lone.send_all();
    lone.wait(100 * MICRO);
    sent[..2].iter().for_each(|sent| lone.take(&sent.answer()));
    let waited = lone.expire();
    assert!(waited <= 2 * 100 * MICRO, "before the timeout: {waited}");
    let probes = lone.send_all();
    assert_eq!(seqs(&probes), [2]);
    let again = missing(&mut lone, &probes);
    lone.wait(100 * MICRO);
    again.iter().for_each(|sent| lone.take(&sent.answer()));
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [3, 4, 5, 6, 7], "all of the rest at once");
}

/// One of eight slots is without a result, and later ones are there: another worker or this one has lost a
/// packet.
#[test]
fn the_last_chunk_is_sent_again_at_once() {
    for (congestion_control, asks) in [(false, false), (true, true)] {
        let params = sumac_transport::JobParams { congestion_control, ..job(2, 8, 4) };
        let mut lone = Lone::ready(params, 100 * MICRO);
        lone.submit_floats(&[1.0; 32]);
        let sent = lone.send_all();
        lone.wait(100 * MICRO);
        [0, 1, 2, 3, 4, 6, 7].iter().for_each(|at: &usize| lone.take(&sent[*at].answer()));
        assert!(lone.send_all().is_empty());
        lone.expire();
        let again = lone.send_all();
        assert_eq!((seqs(&again), again[0].is_question()), (vec![5], asks));
        assert_eq!(lone.engine.stats().resent, u64::from(!asks));
        lone.wait(MILLI);
        lone.expire();
        let next = lone.send_all();
        assert!(next.iter().all(Sent::is_question) && !next.is_empty(), "then it is asked for");
    }
}

/// All workers of a pause near the end wait for the same one.
#[test]
fn probes_of_the_tail_are_few_where_a_worker_is_late() {
    let mut lone = Lone::ready(job(2, 64, 4), 100 * MICRO);
    lone.submit_floats(&[1.0; 256]);
    let sent = lone.send_all();
    lone.wait(100 * MICRO);
    sent[..32].iter().for_each(|sent| lone.take(&sent.answer()));
    let end = Time(lone.now.0 + 20 * MILLI);
    let mut asked = 0;
    while lone.engine.poll_timeout().is_some_and(|due| due < end) {
        lone.expire();
        let again = lone.send_all();
        assert!(again.iter().all(Sent::is_question), "32 are without a result");
        asked += again.len();
    }
    assert!((2..=24).contains(&asked), "{asked} in 200 round trips");
}

#[test]
fn a_late_answer_to_a_probe_says_nothing_of_the_tail() {
    let mut lone = Lone::ready(job(2, 8, 4), 100 * MICRO);
    lone.submit_floats(&[1.0; 32]);
    let sent = lone.send_all();
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [0, 1]);
    // The straggler sums its first two chunks, and is away again.
    lone.wait(MILLI);
    sent[..2].iter().for_each(|sent| lone.take(&sent.answer_to_another()));
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [2], "not the rest");
}

#[test]
fn one_later_result_is_enough() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    let timeout = lone.engine.stats().rtt.timeout_ns;
    lone.wait(100 * MICRO);
    lone.take(&sent[1].answer());
    assert_eq!(seqs(&lone.send_all()), [9]);
    let waited = lone.expire() + 100 * MICRO;
    assert!(waited <= timeout, "before the timer: {waited}");
    assert_eq!(seqs(&lone.send_all()), [0], "alone");
}

#[test]
fn a_result_spares_the_retransmission_that_was_queued() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    lone.expire();
    lone.take(&sent[0].answer());
    let stats = lone.engine.stats();
    assert_eq!((stats.suspects_spared, stats.in_flight), (1, 7));
    assert!(!seqs(&lone.send_all()).contains(&0));
}

#[test]
fn a_clock_that_jumps_back_harms_nothing() {
    let mut lone = start(100 * MICRO);
    let sent = lone.send_all();
    lone.now = Time(0);
    sent.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(lone.send_all().len(), 8);
    lone.engine.on_timeout(Time(u64::MAX));
    let sent = lone.send_all();
    let probes = sent.iter().filter(|sent| sent.header.kind == Kind::Probe as u8).count();
    assert_eq!((sent.len(), probes), (9, 1), "the path is checked, too");
}

#[test]
fn only_the_last_worker_learns_that_the_path_became_slower() {
    for (was_last, slower) in [(false, false), (true, true)] {
        let mut lone = start(100 * MICRO);
        let before = lone.engine.stats().rtt.timeout_ns;
        for _ in 0..20 {
            let sent = lone.send_all();
            lone.wait(900 * MICRO);
            for sent in &sent {
                lone.take(&if was_last { sent.answer() } else { sent.answer_to_another() });
            }
        }
        let after = lone.engine.stats();
        assert_eq!(after.questions, 0, "no later than the timeout");
        assert_eq!(after.rtt.timeout_ns > before, slower, "last: {was_last}");
    }
}

#[test]
fn an_operation_that_others_have_not_begun_is_not_overtaken_by_the_one_before() {
    let mut lone = Lone::ready(block(2, 8, 4), 100 * MICRO);
    // Another worker has the first operation, of chunks 0 to 2, and not the second.
    lone.submit_floats(&[1.0; 12]);
    lone.submit_floats(&[1.0; 16]);
    let rounds = lone.send_all();
    lone.wait(100 * MICRO);
    rounds[..3].iter().for_each(|round| lone.take(&round.answer()));
    let chunks = lone.send_all();
    assert_eq!(seqs(&chunks), [0, 1, 2]);
    lone.wait(100 * MICRO);
    chunks.iter().for_each(|sent| lone.take(&sent.answer()));
    assert_eq!(lone.send_all().len(), 0, "three results of packets that were sent later say nothing");
    assert!(lone.engine.poll_timeout() > Some(lone.now.plus(2 * MILLI)), "only silence does, in its time");
    // Now it has; the answer to chunk 4 is lost.
    lone.take(&rounds[3].answer());
    lone.take(&rounds[5].answer());
    lone.take(&rounds[6].answer());
    let chunks = lone.send_all();
    assert_eq!(seqs(&chunks), [3, 5, 6], "what was sent before says nothing yet");
    lone.wait(100 * MICRO);
    chunks.iter().for_each(|sent| lone.take(&sent.answer()));
    lone.expire();
    let again = lone.send_all();
    assert_eq!((seqs(&again), again[0].header.has(flag::EXPONENT)), (vec![4], true));
}

#[test]
fn a_tail_that_all_are_at_does_not_wait_for_stragglers() {
    let mut lone = Lone::ready(job(2, 8, 4), 100 * MICRO);
    lone.submit_floats(&[1.0; 32]);
    let sent = lone.send_all();
    let rtt = lone.engine.stats().rtt;
    assert!(rtt.timeout_begun_ns < rtt.timeout_ns);
    assert!(lone.expire() > rtt.timeout_begun_ns, "perhaps another worker has not begun");
    sent[..6].iter().for_each(|sent| lone.take(&sent.answer()));
    lone.wait(10 * MICRO);
    lone.send_all();
    assert!(lone.expire() <= lone.engine.stats().rtt.timeout_begun_ns);
}

#[test]
fn a_silence_asks_first_about_what_all_are_at() {
    let mut lone = Lone::ready(job(2, 64, 4), 100 * MICRO);
    // Another worker is at the first operation, of chunks 0 to 3, and not at the second, which fills the
    // window.
    lone.submit_floats(&[1.0; 16]);
    lone.submit_floats(&[1.0; 240]);
    let sent = lone.send_all();
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [0, 1], "and these questions are lost");
    sent[2..4].iter().for_each(|sent| lone.take(&sent.answer()));
    lone.expire();
    assert_eq!(seqs(&lone.send_all()), [0], "a probe of the tail");
    let asked = [(); 3].map(|()| {
        lone.expire();
        seqs(&lone.send_all())
    });
    assert!(asked.concat().contains(&4), "not the first operation's chunks alone: {asked:?}");
}
