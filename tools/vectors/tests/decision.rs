//! The vectors against the pure decisions: each step anew, from the slot that it begins with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::BufReader,
    path::Path,
};

use sumac_vectors::{
    cases, packets,
    random::{self, Profile, SWITCH_SEED},
    record::{self, Step},
    reference::Reference,
};
use sumac_wire::{Reason, slot::state};

const SEED: u64 = 14;

#[test]
fn each_step_follows_from_its_slot_alone() {
    for (seed, profile, checksum) in [
        (SEED, Profile::Host, false),
        (SEED, Profile::Host, true),
        (SWITCH_SEED, Profile::Switch, false),
        (SWITCH_SEED, Profile::BoundedSwitch, false),
    ] {
        let setup = packets::setup("random", Some(seed), random::jobs(profile, checksum));
        let steps = random::steps(&setup, seed, 10_000);
        for (at, step) in steps.iter().enumerate() {
            let mut reference = Reference::new(setup.clone());
            reference.begin(step);
            assert_eq!(
                &reference.receive(step.interface, step.frame.clone()),
                step,
                "{profile:?}, seed {seed}, step {at}"
            );
        }
    }
}

#[test]
fn random_packets_meet_every_reason() {
    use Reason::{
        Added, BadChecksum, BadFormat, BadLength, BadToken, BadType, BadVersion, Collided, Completed,
        Concluded, Duplicate, Flushed, Foreign, Forwarded, Fragment, Mismatch, OutOfTurn, Passed, Probed,
        Replied, Stale, Truncated, UnknownJob, Wanted, WrongElements, WrongEpoch, WrongPlace, WrongSlot,
        WrongSource, WrongWorker,
    };
    let reasons = [
        Added,
        BadChecksum,
        BadFormat,
        BadLength,
        BadToken,
        BadType,
        BadVersion,
        Collided,
        Completed,
        Concluded,
        Flushed,
        Passed,
        Duplicate,
        Foreign,
        Forwarded,
        Fragment,
        Mismatch,
        OutOfTurn,
        Probed,
        Replied,
        Stale,
        Truncated,
        UnknownJob,
        Wanted,
        WrongElements,
        WrongEpoch,
        WrongPlace,
        WrongSlot,
        WrongSource,
        WrongWorker,
    ];
    for (seed, profile, unmet) in
        [(SEED, Profile::Host, None), (SWITCH_SEED, Profile::Switch, Some(BadChecksum))]
    {
        let setup = packets::setup("random", Some(seed), random::jobs(profile, true));
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for step in random::steps(&setup, seed, 10_000) {
            *counts.entry(step.reason).or_default() += 1;
        }
        println!("{profile:?}, seed {seed}: {counts:?}");
        for reason in reasons {
            let is_met = counts.contains_key(reason.name());
            assert_eq!(is_met, Some(reason) != unmet, "{profile:?}: {}", reason.name());
        }
    }
}

/// The packets of a lane's budget: operations of which some chunks are flushed, as many as they may be.
#[test]
fn random_packets_spend_budgets() {
    let setup = packets::setup("random", Some(SWITCH_SEED), random::jobs(Profile::BoundedSwitch, false));
    let steps = random::steps(&setup, SWITCH_SEED, 10_000);
    let slots = || steps.iter().filter_map(|step| step.slot.as_ref());
    let is_spent = |before: u32, after: u32| {
        slots().any(|slot| {
            let (one, two) = (slot.before.lane_spent, slot.after.lane_spent);
            (one.spent, two.spent) == (before, after) && one.owner != 0
        })
    };
    let operations: BTreeSet<u32> = slots().map(|slot| slot.after.lane_spent.spent_of).collect();
    println!("operations {operations:?}, a second chunk {}", is_spent(1, 2));
    assert!(operations.len() > 2 && is_spent(0, 1), "{operations:?}");
    let partial =
        slots().filter(|slot| slot.after.versions.iter().any(|version| version.state & state::PARTIAL != 0));
    assert!(partial.count() > 0);
    let late = slots().filter(|slot| {
        let pairs = slot.before.versions.iter().zip(&slot.after.versions);
        pairs.into_iter().any(|(one, two)| one.seq == two.seq && one.received != two.received)
    });
    assert!(late.count() > 0);
    // Packets that a slot ignores change `received` and the terms of budgets.
    let ignored = |step: &&Step| ["stale", "duplicate", "out_of_turn"].contains(&step.reason.as_str());
    let changed = steps.iter().filter(ignored).filter_map(|step| step.slot.as_ref());
    let (mut noted, mut agreed) = (0, 0);
    for slot in changed {
        noted += u32::from(slot.before.versions != slot.after.versions);
        agreed += u32::from(slot.before.lane_spent != slot.after.lane_spent);
    }
    assert!(noted > 0 && agreed > 0, "{noted} noted, {agreed} with terms");
}

#[test]
fn the_files_in_the_repository_are_as_generated() {
    let random = |profile, count| {
        let setup = packets::setup("random packets", Some(1), random::jobs(profile, false));
        vec![(setup.clone(), random::steps(&setup, 1, count))]
    };
    for (name, parts) in [
        ("cases", cases::all(false)),
        ("random", random(Profile::Host, 200)),
        ("switch", random(Profile::Switch, 100)),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name).with_extension("jsonl");
        let file = BufReader::new(File::open(path).unwrap());
        assert_eq!(record::read(file).unwrap(), parts, "generate it anew: see README.md");
    }
}

#[test]
fn what_is_written_is_read() {
    for (setup, steps) in cases::all(true).into_iter().chain(cases::bounded()) {
        let mut file = Vec::new();
        record::write(&mut file, &setup, &steps).unwrap();
        assert_eq!(record::read(&file[..]).unwrap(), [(setup, steps)]);
    }
}

#[test]
fn damaged_files_are_refused_by_their_line() {
    let mut file = Vec::new();
    let (setup, steps) = cases::all(false).swap_remove(0);
    record::write(&mut file, &setup, &steps).unwrap();
    let text = String::from_utf8(file).unwrap();
    let read = |text: &str| record::read(text.as_bytes()).unwrap_err().to_string();
    assert!(read("").contains("no jobs"));
    assert!(read(&text.replacen("\"format\":2", "\"format\":9", 1)).contains("format 9"));
    assert!(read(&text.replacen("\"reason\"", "\"cause\"", 1)).contains("line 2"));
    assert!(read(&text.replacen("\"frame\":\"02", "\"frame\":\"0g", 1)).contains("line 2"));
}
