//! The client against the P4Runtime server of the behavioural model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod support;

use std::time::{Duration, Instant};

use sumac_agg_p4::{
    p4runtime::P4Runtime,
    target::{Change, Entry, Group, Replica, SwitchError, Target as _, Update},
};

use support::{DEADLINE, model, runtime};

fn host(mac: u64, port: u64) -> Entry {
    Entry::new("hosts", "forward").exact("mac", mac).parameter("port", port)
}

fn sender(rank: u64) -> Entry {
    Entry::new("senders", "set_sender")
        .exact("job", 7_u64)
        .ternary("level", 0_u64, 1_u64)
        .ternary("fan_in_1", 0_u64, 0_u64)
        .ternary("bitmap_0", 1_u64 << rank, u64::from(u32::MAX))
        .parameter("destination", 1 + rank)
        .parameter("bit_", 1_u64 << rank)
}

/// Waits until the switch answers, or does not.
fn wait(switch: &P4Runtime, until: impl Fn(Result<u64, SwitchError>) -> bool) {
    let began = Instant::now();
    while !until(switch.instance()) {
        assert!(began.elapsed() < DEADLINE, "{:?}", switch.instance());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn entries_groups_and_counters_of_the_model() {
    let Some((model, program)) = model("entries_groups_and_counters_of_the_model") else { return };
    let runtime = runtime();
    let switch = model.connect(&runtime, 1, &program);
    let write = |change, entries: &[Entry]| {
        let updates: Vec<_> = entries.iter().map(|entry| Update::Entry(change, entry.clone())).collect();
        switch.write(&updates)
    };
    let sorted = |table| {
        let mut entries = switch.entries(table).unwrap();
        entries.sort();
        entries
    };
    let hosts = [host(0x0200_0000_0001, 1), host(0xfeff_ffff_ffff, 511)];
    write(Change::Insert, &hosts).unwrap();
    write(Change::Insert, &[sender(0), sender(31)]).unwrap();
    assert_eq!((sorted("hosts"), sorted("senders")), (hosts.to_vec(), vec![sender(0), sender(31)]));
    let moved = host(0x0200_0000_0001, 2);
    write(Change::Modify, std::slice::from_ref(&moved)).unwrap();
    write(Change::Delete, &[sender(0), hosts[1].clone()]).unwrap();
    assert_eq!((sorted("hosts"), sorted("senders")), (vec![moved.clone()], vec![sender(31)]));

    let refused = write(Change::Insert, std::slice::from_ref(&moved)).unwrap_err();
    assert!(
        matches!(&refused, SwitchError::Refused { doing, what } if doing.contains(
            "`hosts`") && what.contains("exists")),
        "{refused}"
    );
    let refused = write(Change::Insert, &[Entry::new("nothing", "forward")]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the switch's program has no table `nothing`: load the program of this release (p4/ of the same \
        version)"
    );
    let refused = write(Change::Insert, &[host(1, 1).exact("ip", 1_u64)]).unwrap_err();
    assert!(refused.to_string().contains("no key field `ip` of table `hosts`"), "{refused}");

    let group = |ports: &[u32]| Group {
        id: 7,
        replicas: ports.iter().map(|port| Replica { port: *port, instance: port + 10 }).collect(),
    };
    switch.write(&[Update::Group(Change::Insert, group(&[1, 2]))]).unwrap();
    switch.write(&[Update::Group(Change::Modify, group(&[2, 3, 4]))]).unwrap();
    assert_eq!(switch.groups().unwrap(), [group(&[2, 3, 4])]);
    switch.write(&[Update::Group(Change::Delete, group(&[]))]).unwrap();
    assert_eq!(switch.groups().unwrap(), []);

    assert_eq!(switch.counters("reasons", 60..70).unwrap(), [0; 10]);
    switch.clear_counters("reasons", 0..128).unwrap();
}

#[test]
fn a_full_table_of_the_model_is_named() {
    let Some((model, program)) = model("a_full_table_of_the_model_is_named") else { return };
    let runtime = runtime();
    let switch = model.connect(&runtime, 1, &program);
    let own = |ip: u64| Entry::new("own", "set_own").exact("ip", ip).parameter("own_mac", ip);
    let updates: Vec<_> = (1..=65).map(|ip| Update::Entry(Change::Insert, own(ip))).collect();
    let full = switch.write(&updates).unwrap_err();
    assert!(matches!(&full, SwitchError::TableFull { table, .. } if table == "own"), "{full}");
    assert_eq!(switch.entries("own").unwrap().len(), 64, "the others are there");
}

#[test]
fn the_latest_control_plane_of_the_model_is_its_primary() {
    let Some((model, program)) = model("the_latest_control_plane_of_the_model_is_its_primary") else {
        return;
    };
    let runtime = runtime();
    let first = model.connect(&runtime, 5, &program);
    first.write(&[Update::Entry(Change::Insert, host(1, 1))]).unwrap();
    let before = first.binding().unwrap();
    let second = model.connect(&runtime, 6, &program);
    assert_eq!(second.instance(), Ok(second.instance().unwrap()));
    assert_eq!(second.entries("hosts").unwrap(), [host(1, 1)], "the same program runs on");
    wait(&first, |instance| matches!(instance, Err(SwitchError::NotPrimary { .. })));
    assert!(matches!(
        first.write(&[Update::Entry(Change::Insert, host(2, 1))]),
        Err(SwitchError::NotPrimary { .. })
    ));
    let server = model.server(4);
    let late = P4Runtime::start(runtime.handle(), server, program.clone(), Duration::from_millis(300));
    assert!(late.unwrap_err().to_string().contains("another primary control plane for device"));
    let instance = second.instance();
    drop(second);
    wait(&first, |found| found == instance);
    let after = first.binding().unwrap();
    assert!(after.instance == before.instance && after.session > before.session, "{before:?} {after:?}");
    first.write(&[Update::Entry(Change::Insert, host(2, 1))]).unwrap();
}

#[test]
fn a_restart_of_the_model_loads_the_program_again() {
    let Some((mut model, program)) = model("a_restart_of_the_model_loads_the_program_again") else { return };
    let runtime = runtime();
    let switch = model.connect(&runtime, 1, &program);
    let before = switch.instance().unwrap();
    switch.write(&[Update::Entry(Change::Insert, host(1, 1))]).unwrap();
    model.stop();
    wait(&switch, |instance| instance.is_err());
    let gone = switch.entries("hosts").unwrap_err();
    assert!(matches!(gone, SwitchError::Away { .. } | SwitchError::Connect { .. }), "{gone}");
    model.start();
    wait(&switch, |instance| instance.is_ok());
    assert_ne!(switch.instance().unwrap(), before, "its tables and registers are lost");
    assert_eq!(switch.entries("hosts").unwrap(), []);
}

#[test]
fn what_cannot_be_reached_or_loaded_in_the_model_is_named() {
    let Some((mut model, program)) = model("what_cannot_be_reached_or_loaded_in_the_model_is_named") else {
        return;
    };
    let runtime = runtime();
    let mut wrong = program.clone();
    wrong.compiled = b"no program".to_vec();
    let start =
        |program| P4Runtime::start(runtime.handle(), model.server(1), program, Duration::from_secs(5));
    let refused = start(wrong).unwrap_err();
    assert!(
        matches!(&refused, SwitchError::PipelineRefused { file, .. } if file.ends_with("sumac.json")),
        "{refused}"
    );
    model.stop();
    let refused =
        P4Runtime::start(runtime.handle(), model.server(1), program, Duration::from_millis(300)).unwrap_err();
    assert!(
        refused.to_string().starts_with("cannot connect to the switch at http://127.0.0.1:"),
        "{refused}"
    );
}
