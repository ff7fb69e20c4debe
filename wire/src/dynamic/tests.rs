//! The cases of figures 7 and 17, one by one.

extern crate std;

use std::{collections::BTreeMap, vec::Vec};

use super::{host, *};
use crate::{Kind, Reason};

const MAX_AGE_MICROS: u32 = 100;
const NOW: u32 = u32::MAX - 10;

/// So many milliseconds later; the clock wraps.
fn after(ms: u32) -> u32 {
    NOW.wrapping_add(ms)
}

fn packet(rank: u32, seq: u32) -> Header {
    Header {
        kind: Kind::Contribution as u8,
        job: 3,
        epoch: 1,
        seq,
        tensor: 77,
        elements: 8,
        fan_in_0: 3,
        fan_in_1: 2,
        bitmap_0: 1 << rank,
        bitmap_1: 1,
        ..Header::default()
    }
}

fn slot(bitmap: u32, seq: u32) -> SlotMeta {
    SlotMeta {
        owner: owner(3, 1, 0),
        seq,
        bitmap,
        tensor: 77,
        stamp: NOW,
        elements: 8,
        ..SlotMeta::default()
    }
}

fn at(before: &SlotMeta, header: &Header, now: u32) -> (SlotMeta, Action) {
    decide(before, &Contribution::of(header), now, MAX_AGE_MICROS)
}

#[test]
fn a_level_fills_and_keeps_its_sum() {
    let (one, action) = at(&SlotMeta::default(), &packet(0, 5), NOW);
    assert_eq!((one, action), (slot(1, 5), Action::Store));
    let (two, action) = at(&one, &packet(2, 5), after(1));
    assert_eq!((two.bitmap, two.stamp, action), (0b101, after(1), Action::Add));
    let (same, action) = at(&two, &packet(2, 5), after(9));
    assert_eq!((same, action), (two, Action::Drop), "and no longer life for the slot");
    let (three, action) = at(&two, &packet(1, 5), after(2));
    assert_eq!((three.bitmap, action), (0b111, Action::Complete));
    let header = sum(&packet(1, 5), &three);
    assert_eq!((header.bitmap_0, header.bitmap_1, header.flags), (0b111, 1, flag::LEVEL));
    assert_eq!(at(&three, &packet(1, 5), after(3)), (three, Action::Drop));
}

//= atp#3.5 congestion marks merged through slots
#[test]
fn congestion_reaches_the_sum_from_every_packet() {
    let marked = Header { flags: flag::ECN_ECHO, ..packet(0, 5) };
    let (dropped, action) = at(&slot(1, 5), &marked, NOW);
    assert_eq!((dropped.flags, action), (flag::ECN_ECHO, Action::Drop));
    let full = SlotMeta { bitmap: 7, ..dropped };
    assert!(sum(&packet(1, 5), &full).has(flag::ECN_ECHO));
}

#[test]
fn a_busy_slot_sends_on_to_the_host_past_the_second_level() {
    let before = slot(1, 4);
    assert_eq!(at(&before, &packet(0, 5), NOW), (refusing(before, 5), Action::Collide));
    let header = collided(&packet(0, 5));
    assert_eq!(header.flags, flag::LEVEL | flag::RESEND | flag::COLLISION);
    let second = slot(1, 5);
    let second = SlotMeta { flags: flag::LEVEL, ..second };
    let given_up = refusing(SlotMeta::default(), 5);
    assert_eq!(at(&second, &header, NOW), (given_up, Action::Pass), "what is there is given up");
}

/// A job of one level.
fn alone(rank: u32, seq: u32) -> Header {
    Header { fan_in_1: 0, bitmap_1: 0, ..packet(rank, seq) }
}

/// A slot of one level after its sum has left.
fn summed(seq: u32) -> SlotMeta {
    let (after, action) = at(&slot(0b11, seq), &alone(2, seq), NOW);
    assert_eq!((after.bitmap, action), (0b111, Action::Complete));
    after
}

#[test]
fn a_slot_whose_sum_has_left_is_another_chunks() {
    let before = summed(5);
    assert_eq!((before.summed, before.is_held(), slot(0b11, 5).is_held()), (1, false, true));
    let (taken, action) = at(&before, &alone(0, 6), after(1));
    assert_eq!((taken, action), (SlotMeta { stamp: after(1), ..slot(1, 6) }, Action::Store));
    assert_eq!(at(&taken, &alone(1, 7), after(1)).1, Action::Collide, "the new one has it for itself");
    let others = Header { job: 4, ..alone(0, 5) };
    assert_eq!(at(&before, &others, NOW).1, Action::Store, "another job's");
    let refused = refusing(before, 6);
    assert_eq!(at(&refused, &alone(1, 6), NOW), (refused, Action::Collide), "a refused chunk passes whole");
    let (later, action) = at(&refused, &alone(1, 7), NOW);
    assert_eq!((later, action), (refusing(slot(2, 7), 6), Action::Store));
}

#[test]
fn a_slot_whose_sum_has_left_is_still_its_chunks() {
    let before = summed(5);
    assert_eq!(at(&before, &alone(1, 5), after(3)), (before, Action::Drop), "a duplicate changes nothing");
    let again = Header { flags: flag::RESEND, ..alone(1, 5) };
    assert_eq!(at(&before, &again, NOW), (SlotMeta::default(), Action::Flush { adds: false }));
    assert_eq!(flushed(&again, &before).bitmap_0, 0b111, "the whole sum, which was lost");
    assert_eq!(release(&before, owner(3, 1, 0), 5, NOW, MAX_AGE_MICROS), SlotMeta::default());
    let (taken, _) = at(&before, &alone(0, 6), NOW);
    assert_eq!(at(&taken, &again, NOW), (taken, Action::Pass), "after the loss of a sum and its slot");
    assert_eq!(release(&taken, owner(3, 1, 0), 5, NOW, MAX_AGE_MICROS), taken, "the result comes late");
}

/// A lost sum of a rack costs all its packets past both levels, and the other racks' sums.
#[test]
fn with_two_levels_a_slot_keeps_its_sum() {
    let (first, action) = at(&slot(0b11, 5), &packet(2, 5), NOW);
    assert_eq!((first.summed, first.is_held(), action), (0, true, Action::Complete));
    assert_eq!(at(&first, &packet(0, 6), NOW).1, Action::Collide);
    let rack = |rack: u32| Header { flags: flag::LEVEL, bitmap_0: 7, bitmap_1: 1 << rack, ..packet(0, 5) };
    let (root, action) = at(&SlotMeta { flags: flag::LEVEL, ..slot(1, 5) }, &rack(1), NOW);
    assert_eq!((root.summed, root.is_held(), action), (0, true, Action::Complete));
    let next = Header { seq: 6, ..rack(0) };
    assert_eq!(at(&root, &next, NOW).1, Action::Collide);
}

/// The slot after it refused a chunk.
fn refusing(before: SlotMeta, seq: u32) -> SlotMeta {
    SlotMeta { refused_owner: owner(3, 1, 0), refused_seq: seq, ..before }
}

/// ATP section 3.6: the slot becomes free between a chunk's packets, and those in it would wait for those
/// that have passed.
#[test]
fn a_chunk_is_refused_whole() {
    let busy = refusing(slot(1, 4), 9);
    assert_eq!(at(&slot(1, 4), &packet(0, 9), NOW), (busy, Action::Collide));
    let free = release(&busy, owner(3, 1, 0), 4, NOW, MAX_AGE_MICROS);
    assert_eq!(free, refusing(SlotMeta::default(), 9), "it remembers");
    assert_eq!(at(&free, &packet(1, 9), NOW), (free, Action::Collide), "a later packet of the chunk");
    assert_eq!(at(&free, &packet(1, 7), NOW), (free, Action::Collide), "it may have been refused before");
    let (taken, action) = at(&free, &packet(0, 10), NOW);
    assert_eq!((taken, action), (refusing(slot(1, 10), 9), Action::Store), "a later chunk");
    let again = Header { flags: flag::RESEND, ..packet(1, 9) };
    assert_eq!(at(&free, &again, NOW), (free, Action::Pass));
    let other = Header { lane: 1, ..packet(0, 9) };
    let (taken, action) = at(&free, &other, NOW);
    assert_eq!((taken.owner, taken.refused_seq, action), (owner(3, 1, 1), 9, Action::Store));
    assert_eq!(at(&taken, &packet(0, 5), NOW).0, refusing(taken, 9), "the latest one stays");
    let half = 9u32.wrapping_sub(1 << 31);
    assert_eq!(at(&free, &packet(0, half), NOW).1, Action::Store, "numbers wrap");
}

#[test]
fn the_second_level_refuses_a_chunk_that_collided_below() {
    let below = Header { flags: flag::LEVEL | flag::RESEND | flag::COLLISION, ..packet(0, 9) };
    let sum = Header { flags: flag::LEVEL, bitmap_0: 7, bitmap_1: 2, ..packet(0, 9) };
    for before in [SlotMeta::default(), SlotMeta { flags: flag::LEVEL, ..slot(2, 9) }, slot(1, 4)] {
        let (after, action) = at(&before, &below, NOW);
        assert_eq!((after.refused_owner, after.refused_seq, action), (owner(3, 1, 0), 9, Action::Pass));
        assert_eq!(at(&after, &sum, NOW), (after, Action::Collide), "another rack's sum, after {before:?}");
    }
    let resent = Header { flags: flag::LEVEL | flag::RESEND, ..packet(0, 9) };
    assert_eq!(at(&SlotMeta::default(), &resent, NOW), (SlotMeta::default(), Action::Pass), "after a loss");
}

//= atp#3.7 retransmission flushes partial sums
#[test]
fn what_is_sent_again_flushes_the_first_level() {
    let again = Header { flags: flag::RESEND, ..packet(1, 5) };
    let before = slot(0b101, 5);
    assert_eq!(at(&before, &again, NOW), (SlotMeta::default(), Action::Flush { adds: true }));
    let header = flushed(&again, &before);
    assert_eq!((header.bitmap_0, header.flags), (0b111, flag::LEVEL | flag::RESEND));
    let mine = Header { flags: flag::RESEND, ..packet(2, 5) };
    assert_eq!(at(&before, &mine, NOW), (SlotMeta::default(), Action::Flush { adds: false }));
    assert_eq!(flushed(&mine, &before).bitmap_0, 0b101);
    assert_eq!(at(&SlotMeta::default(), &mine, NOW), (SlotMeta::default(), Action::Pass), "takes no slot");
    assert_eq!(at(&slot(1, 4), &mine, NOW), (slot(1, 4), Action::Pass), "nor another's");
}

#[test]
fn only_values_of_one_kind_meet() {
    let changes: [fn(&mut Header); 5] = [
        |h| h.tensor = 78,
        |h| h.elements = 7,
        |h| h.exponent = 1,
        |h| h.flags = flag::MAXIMUM,
        |h| (h.flags, h.bitmap_1) = (flag::LEVEL, 4),
    ];
    for change in changes {
        let mut header = packet(1, 5);
        change(&mut header);
        assert_eq!(at(&slot(1, 5), &header, NOW), (slot(1, 5), Action::Collide));
    }
}

#[test]
fn results_and_age_free_slots() {
    let before = slot(1, 5);
    assert_eq!(release(&before, owner(3, 1, 0), 5, NOW, MAX_AGE_MICROS), SlotMeta::default());
    assert_eq!(release(&before, owner(3, 1, 0), 6, after(99), MAX_AGE_MICROS), before);
    assert_eq!(release(&before, owner(3, 2, 0), 5, after(99), MAX_AGE_MICROS), before, "another epoch's");
    assert_eq!(release(&before, owner(4, 1, 0), 9, after(100), MAX_AGE_MICROS), SlotMeta::default());
    assert_eq!(at(&before, &packet(1, 6), after(9)).1, Action::Collide);
    let (taken, action) = at(&before, &packet(1, 6), after(100));
    assert_eq!((taken.seq, taken.bitmap, action), (6, 2, Action::Store), "an orphan's");
}

#[test]
fn alone_at_a_level_needs_no_slot() {
    let alone = Header { fan_in_0: 1, ..packet(0, 5) };
    assert_eq!(at(&SlotMeta::default(), &alone, NOW), (SlotMeta::default(), Action::Pass));
    assert_eq!(passed(&alone).flags, flag::LEVEL, "the second level may take it");
}

//= atp#3.5 slots by hash, first come first served
#[test]
fn hashes_spread_jobs_and_runs() {
    const SLOTS: u32 = 1000;
    let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
    for job in 1..=8 {
        for seq in 0..125 {
            *taken.entry(hash(job, 0, seq, SLOTS)).or_default() += 1;
        }
    }
    // 1,000 balls in 1,000 urns leave 1/e of them empty.
    assert!((330..410).contains(&(1000 - taken.len())), "{} slots taken", taken.len());
    let mut slot = 7;
    let path: Vec<u32> = (0..500u32)
        .map(|turn| {
            slot = rehash(slot, 3, turn * 64, SLOTS);
            slot
        })
        .collect();
    assert!(path.iter().all(|slot| *slot < SLOTS));
    let seen = path.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!((370..420).contains(&seen), "{seen} of 500: no circle");
    assert_ne!(rehash(7, 3, 5, SLOTS), rehash(7, 4, 5, SLOTS), "who met there parts");
}

#[test]
fn no_two_jobs_begin_with_the_same_slots() {
    const SLOTS: u32 = 1 << 20;
    let mut all = std::collections::BTreeMap::new();
    for job in 1..crate::MAX_JOBS as u16 {
        let mut own: Vec<u32> = (0..64).map(|position| hash(job, 0, position, SLOTS)).collect();
        own.sort_unstable();
        assert_eq!(all.insert(own, job), None, "job {job}");
    }
}

#[test]
fn every_lane_has_an_owner_of_its_own() {
    let mut owners = std::collections::BTreeSet::new();
    for (job, lane) in (1..crate::MAX_JOBS as u16).flat_map(|job| (0..32).map(move |lane| (job, lane))) {
        assert!(owners.insert(owner(job, 0, lane)) && owners.insert(owner(job, u16::MAX, lane)));
    }
    assert!(!owners.contains(&0));
}

fn workers(racks: &[u32]) -> host::Bits {
    core::array::from_fn(|rack| racks.get(rack).copied().unwrap_or(0))
}

#[test]
fn the_host_knows_whose_values_a_packet_holds() {
    let all = workers(&[0b11, 0b111, 0b1]);
    let of =
        |bitmap_0, bitmap_1| host::holds(&Header { bitmap_0, bitmap_1, fan_in_1: 3, ..packet(0, 5) }, &all);
    assert_eq!(of(0b10, 1), Some(workers(&[0b10])));
    assert_eq!(of(0b101, 2), Some(workers(&[0, 0b101])));
    assert_eq!(of(0b1, 0b111), Some(all), "a sum of the second level, whoever completed it");
    assert_eq!(of(0b1, 0b110), Some(workers(&[0, 0b111, 0b1])));
    assert_eq!([of(0b100, 1), of(0, 1), of(1, 0), of(1, 0b1000)], [None; 4]);
    let one_level = Header { bitmap_0: 3, bitmap_1: 0, fan_in_1: 0, ..packet(0, 5) };
    assert_eq!(host::holds(&one_level, &workers(&[0b11])), Some(workers(&[0b11])));
}

//= atp#3.6 parameter host adds each worker once
#[test]
fn the_host_adds_everyone_once() {
    let all = workers(&[0b111]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags, fan_in_1: 1, ..packet(0, 5) };
    let mut chunk = host::ChunkMeta::default();
    assert_eq!(chunk.absorb(&of(0b1, 0), job), host::Action::Store);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Wait);
    let overlap = chunk.absorb(&of(0b11, flag::RESEND), job);
    assert_eq!(overlap, host::Action::Ignore(Reason::Duplicate), "rank 0 would be in it twice");
    assert_eq!(chunk.absorb(&of(0b110, flag::RESEND), job), host::Action::Add);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete);
    assert_eq!(chunk.absorb(&of(0b1, 0), job), host::Action::Ignore(Reason::Duplicate));
    assert_eq!(chunk.absorb(&of(0b1, flag::RESEND), job), host::Action::Reply);
    assert_eq!(chunk.absorb(&Header { tensor: 1, ..of(1, 0) }, job), host::Action::Refuse);
    let later = |seq| Header { seq, ..of(1, 0) };
    assert_eq!(chunk.clone().absorb(&later(13), job), host::Action::Store, "all have the result of 5");
    for (seq, reason) in [(21, Reason::OutOfTurn), (0u32.wrapping_sub(3), Reason::Stale)] {
        assert_eq!(chunk.absorb(&later(seq), job), host::Action::Ignore(reason), "{seq}");
    }
    let mut open = host::ChunkMeta::default();
    assert_eq!(open.absorb(&later(9), job), host::Action::Ignore(Reason::OutOfTurn));
    assert_eq!(open.absorb(&later(5), job), host::Action::Store);
    assert_eq!(open.absorb(&later(13), job), host::Action::Ignore(Reason::OutOfTurn), "5 is not complete");
}

#[test]
fn a_chunk_gives_way_when_all_workers_are_known_to_have_its_result() {
    let all = workers(&[0b11, 0b1]);
    let mut received = [0; 64];
    let of = |seq, bitmap_0, bitmap_1| Header { bitmap_0, bitmap_1, fan_in_1: 2, ..packet(0, seq) };
    let mut chunk = host::ChunkMeta::default();
    let absorb = |chunk: &mut host::ChunkMeta, header: &Header, received: &[u32]| {
        chunk.absorb(header, host::Job { all: &all, kept: 8, received })
    };
    // Completed without the second rack, as with a loss bound.
    assert_eq!(absorb(&mut chunk, &of(5, 0b11, 0b1), &received), host::Action::Store);
    assert_eq!(chunk.settle(&workers(&[0b11]), false), host::Outcome::Complete);
    let (next, refused) = (of(13, 0b1, 0b1), host::Action::Ignore(Reason::OutOfTurn));
    let notes = [(&[0b11, 0][..], 6), (&[0, 0b1], 5), (&[0b1], 4)];
    for (bits, prefix) in notes {
        host::note_received(&mut received, &workers(bits), prefix);
        assert_eq!(absorb(&mut chunk, &next, &received), refused, "{bits:?} to {prefix}");
    }
    assert_eq!(absorb(&mut chunk, &next, &[]), refused, "of whom nothing is known");
    host::note_received(&mut received, &workers(&[0, 0b1]), 6);
    assert_eq!((received[0], received[1], received[32]), (6, 6, 6), "never back");
    assert_eq!(absorb(&mut chunk, &next, &received), host::Action::Store);
}

#[test]
fn a_sum_has_received_as_far_as_all_in_it() {
    for (values, expected) in [([7, 9], 7), ([9, 7], 7), ([u32::MAX, 3], u32::MAX)] {
        let of = |rank: u32| Header { received: values[rank as usize], fan_in_0: 2, ..packet(rank, 9) };
        let (held, _) = at(&SlotMeta::default(), &of(0), NOW);
        let (held, action) = at(&held, &of(1), NOW);
        assert_eq!((action, sum(&of(1), &held).received), (Action::Complete, expected));
    }
}

#[test]
fn what_overflowed_is_asked_for_as_floats() {
    let all = workers(&[0b11]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags, fan_in_1: 1, ..packet(0, 5) };
    let mut chunk = host::ChunkMeta::default();
    assert_eq!(chunk.absorb(&of(0b11, flag::OVERFLOW), job), host::Action::Store);
    assert_eq!(chunk.settle(&all, false), host::Outcome::AskRaw);
    assert!(chunk.is_raw());
    assert_eq!(chunk.absorb(&of(0b1, flag::RESEND), job), host::Action::AskRaw, "who has not heard");
    assert_eq!(chunk.absorb(&of(0b1, 0), job), host::Action::Ignore(Reason::Stale));
    assert_eq!(chunk.absorb(&of(0b1, flag::RAW_FLOAT), job), host::Action::Store);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Wait);
    assert_eq!(chunk.absorb(&of(0b10, flag::RAW_FLOAT), job), host::Action::Add);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete);
    assert_eq!(chunk.result(&of(0b10, flag::RAW_FLOAT), 2, 0).flags, flag::RAW_FLOAT);
    let mut here = host::ChunkMeta::default();
    assert_eq!(here.absorb(&of(0b1, 0), job), host::Action::Store);
    here.settle(&all, false);
    assert_eq!(here.absorb(&of(0b10, 0), job), host::Action::Add);
    assert_eq!(here.settle(&all, true), host::Outcome::AskRaw, "clamped by the host itself");
}

#[test]
fn floats_are_sent_at_once_where_no_exponent_is_known() {
    let all = workers(&[0b11]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags, fan_in_1: 0, ..packet(0, 5) };
    let mut chunk = host::ChunkMeta::default();
    assert_eq!(chunk.absorb(&of(0b1, flag::RAW_FLOAT | flag::RESEND), job), host::Action::Store);
    assert!(chunk.is_raw());
    assert_eq!(chunk.settle(&all, false), host::Outcome::Wait);
    assert_eq!(chunk.absorb(&of(0b10, flag::RAW_FLOAT | flag::RESEND), job), host::Action::Add);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete);
}

#[test]
fn floats_that_lost_their_room_come_again_as_floats() {
    let all = workers(&[0b11]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags: flags | flag::RESEND, ..packet(0, 5) };
    let of = |bitmap_0, flags| Header { fan_in_1: 0, ..of(bitmap_0, flags) };
    let mut chunk = host::ChunkMeta::default();
    assert_eq!(chunk.absorb(&of(0b1, flag::RAW_FLOAT), job), host::Action::Store);
    chunk.forget_floats();
    assert_eq!(chunk.absorb(&of(0b1, 0), job), host::Action::AskRaw, "no integers");
    assert_eq!(chunk.absorb(&of(0b10, flag::RAW_FLOAT), job), host::Action::Store);
    assert_eq!(chunk.absorb(&of(0b1, flag::RAW_FLOAT), job), host::Action::Add);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete);
    chunk.forget_floats();
    assert!(chunk.is_complete());
    assert_eq!(chunk.absorb(&of(0b1, flag::RAW_FLOAT), job), host::Action::Reply);
}

#[test]
fn results_say_where_to_go_from_a_busy_slot() {
    let all = workers(&[0b11]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags, slot: 17, lane: 6, fan_in_1: 0, ..packet(0, 5) };
    let mut chunk = host::ChunkMeta::default();
    let busy = flag::LEVEL | flag::RESEND | flag::COLLISION;
    assert_eq!(chunk.absorb(&of(0b1, busy), job), host::Action::Store);
    assert_eq!(chunk.absorb(&of(0b10, flag::LEVEL | flag::RESEND), job), host::Action::Add);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete);
    let last = of(0b10, flag::LEVEL | flag::RESEND);
    let result = chunk.result(&last, 2, 64);
    assert_eq!((result.kind, result.flags, result.slot), (Kind::Result as u8, flag::COLLISION, 17));
    assert_eq!((result.bitmap_0, result.lane), (rehash(17, 3, 5, 64), 6));
    assert_eq!(result.contributors, 2);
    let linear = chunk.result(&last, 2, 0);
    assert_eq!((linear.flags, linear.bitmap_0), (0, 0), "stays where it is");
    let none = Header { slot: crate::header::NO_SLOT, ..last };
    assert_eq!(chunk.result(&none, 2, 64).flags, 0, "there was no slot");
    assert!(chunk.has_collided());
}

#[test]
fn floats_never_meet_integers_in_a_slot() {
    let floats = Header { flags: flag::RAW_FLOAT | flag::RESEND, ..packet(0, 5) };
    assert_eq!(at(&slot(1, 5), &floats, NOW), (SlotMeta::default(), Action::Pass), "a late duplicate's slot");
    assert_eq!(at(&slot(1, 4), &floats, NOW), (slot(1, 4), Action::Pass));
}

#[test]
fn a_new_incarnation_begins_what_is_not_complete_anew() {
    let all = workers(&[0b11]);
    let job = host::Job { all: &all, kept: 8, received: &[6; 32] };
    let of = |bitmap_0, flags| Header { bitmap_0, flags, fan_in_1: 0, ..packet(0, 5) };
    let mut chunk = host::ChunkMeta::default();
    assert_eq!(chunk.absorb(&of(0b1, flag::OVERFLOW), job), host::Action::Store);
    chunk.settle(&all, false);
    chunk.forget();
    assert_eq!(chunk.absorb(&of(0b11, 0), job), host::Action::Store);
    assert_eq!(chunk.settle(&all, false), host::Outcome::Complete, "nothing of before overflows");
    chunk.forget();
    assert!(chunk.is_complete());
    assert_eq!(chunk.absorb(&of(0b1, flag::RESEND), job), host::Action::Reply);
}
