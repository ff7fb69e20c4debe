//! Workers whose engines are handed over to other processes, as a live upgrade of a daemon does it.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use ciborium::Value;
use sumac_sim::worker::Worker;

use crate::{
    Draw, draw,
    run::{self, Simulation},
    scenario::Scenario,
};

/// The fields of the states, as of the handover's format in `userspace/daemon/src/handover/versions.rs`.
const FIELDS: &str = include_str!("handover-fields.txt");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/handover-fields.txt");

/// A worker that is handed over between two packets goes on as if it had not been: every sum ends at the same
/// time.
#[test]
fn handed_over_workers_go_on_as_before() {
    let mut handed_over = 0;
    for draw in [draw::mixed as Draw, draw::alone] {
        for seed in 0..20 {
            let scenario = draw(seed);
            let interval = 50_000 + 7_919 * (seed % 31);
            let upgraded = Scenario { handovers: Some(interval), ..scenario.clone() };
            let (ends, totals) = run::ends_with_totals(&upgraded);
            assert_eq!(ends, run::ends(&scenario), "seed {seed}");
            handed_over += totals.handed_over;
        }
    }
    println!("{handed_over} workers handed over");
    assert!(handed_over > 1000);
}

/// Adds the fields of a value, each with those that it is in.
fn add_fields(value: &Value, path: &str, fields: &mut BTreeSet<String>) {
    match value {
        Value::Map(entries) => {
            for (key, value) in entries {
                let name = key.as_text().unwrap_or("*");
                // Counters by name: others do no harm.
                if path.ends_with("stats") {
                    continue;
                }
                let path = format!("{path}.{name}");
                add_fields(value, &path, fields);
                fields.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_fields(value, path, fields)),
        _ => {}
    }
}

/// The state is that of the engine's types. Another field means another version of the format, or two
/// releases would not understand each other in the middle of a handover.
#[test]
fn another_field_of_the_state_is_another_version_of_the_handover() {
    let found = Rc::new(RefCell::new(BTreeSet::new()));
    for draw in [draw::mixed as Draw, draw::alone] {
        for seed in 0..20 {
            let scenario = draw(seed);
            let mut simulation = Simulation::new(&scenario);
            for number in 1..=20 {
                let found = Rc::clone(&found);
                simulation.at(number * 100_000, move |world| {
                    for state in world.workers.iter().flat_map(Worker::states) {
                        add_fields(&state, "engine", &mut found.borrow_mut());
                    }
                });
            }
            simulation.go();
        }
    }
    let fields: Vec<_> = found.borrow().iter().map(|field| format!("{field}\n")).collect();
    let fields = fields.concat();
    if std::env::var("SUMAC_WRITE_FIELDS").is_ok() {
        std::fs::write(FILE, &fields).unwrap();
    } else {
        let hint = "raise FORMAT in userspace/daemon/src/handover/versions.rs, and run this test with \
        SUMAC_WRITE_FIELDS=1";
        assert!(fields == FIELDS, "{hint}");
    }
}
