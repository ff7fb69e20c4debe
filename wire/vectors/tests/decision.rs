//! The vectors against the pure decisions: each step anew, from the slot that it begins with.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::{collections::BTreeMap, fs::File, io::BufReader, path::Path};

use sumac_vectors::{cases, packets, random, record, reference::Reference};
use sumac_wire::Reason;

const SEED: u64 = 14;

#[test]
fn each_step_follows_from_its_slot_alone() {
    for checksum in [false, true] {
        let setup = packets::setup("random", Some(SEED), random::jobs(checksum));
        let steps = random::steps(&setup, SEED, 10_000);
        for (at, step) in steps.iter().enumerate() {
            let mut reference = Reference::new(setup.clone());
            reference.begin(step);
            assert_eq!(
                &reference.receive(step.interface, step.frame.clone()),
                step,
                "seed {SEED}, step {at}"
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
    let setup = packets::setup("random", Some(SEED), random::jobs(true));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for step in random::steps(&setup, SEED, 10_000) {
        *counts.entry(step.reason).or_default() += 1;
    }
    println!("seed {SEED}: {counts:?}");
    for reason in reasons {
        assert!(counts.contains_key(reason.name()), "no packet was counted as {}", reason.name());
    }
}

#[test]
fn the_files_in_the_repository_are_as_generated() {
    let random = packets::setup("random packets", Some(1), random::jobs(false));
    let random = vec![(random.clone(), random::steps(&random, 1, 200))];
    for (name, parts) in [("cases", cases::all(false)), ("random", random)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name).with_extension("jsonl");
        let file = BufReader::new(File::open(path).unwrap());
        assert_eq!(record::read(file).unwrap(), parts, "generate it anew: see README.md");
    }
}

#[test]
fn what_is_written_is_read() {
    for (setup, steps) in cases::all(true) {
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
    assert!(read(&text.replacen("\"format\":1", "\"format\":9", 1)).contains("format 9"));
    assert!(read(&text.replacen("\"reason\"", "\"cause\"", 1)).contains("line 2"));
    assert!(read(&text.replacen("\"frame\":\"02", "\"frame\":\"0g", 1)).contains("line 2"));
}
