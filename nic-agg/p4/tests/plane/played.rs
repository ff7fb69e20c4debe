//! Jobs on a played server of BFRuntime.

use std::{collections::BTreeMap, net::SocketAddr};

use sumac_agg_p4::{
    bfrt::{BfRuntime, Options},
    tables,
};
use sumac_played_switch::{PROGRAM, PlayedServer, PlayedSwitch, Row};

use super::*;

/// Returns an entry as a played switch shows it.
fn row(entry: &Entry) -> Row {
    let matched = |value: &Match| match *value {
        Match::Exact(value) => (value, None),
        Match::Ternary { value, mask } => (value, Some(mask)),
    };
    Row {
        key: entry.key.0.iter().map(|(name, value)| (name.clone(), matched(value))).collect(),
        action: entry.action.clone(),
        data: entry.parameters.iter().map(|(name, value)| (name.clone(), vec![*value])).collect(),
    }
}

/// Returns the entries of a played switch, without fields that match anything, priorities, and the number of
/// its memory.
fn rows(played: &PlayedSwitch) -> BTreeMap<&'static str, Vec<Row>> {
    let of = |table: &'static str| {
        let mut rows = played.rows(table);
        rows.iter_mut()
            .for_each(|row| row.key.retain(|name, (_, mask)| *mask != Some(0) && !name.starts_with('$')));
        rows.retain(|row| table != "drops" || row.key["job"] != (0xffff, None));
        (table, sorted(rows))
    };
    tables::ALL.into_iter().map(of).collect()
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| format!("{row:?}"));
    rows
}

/// Starts a control plane of a played server.
pub fn control(address: SocketAddr) -> SwitchPlane<BfRuntime> {
    let options = Options { address: address.to_string(), device: 0, program: None, pipeline: None };
    SwitchPlane::start(BfRuntime::connect(options).unwrap(), wiring()).unwrap()
}

/// On a played server of BFRuntime, which is no switch: the entries are those of the switch in memory, after
/// restarts of both sides as well.
#[test]
fn jobs_on_a_played_server_of_bfruntime() {
    let played = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    let server = PlayedServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), &played).unwrap();
    let address = server.address();
    let start = || control(address);
    let (memory, expected) = plane();
    let is_as_expected = |played: &PlayedSwitch, plane: &SwitchPlane<BfRuntime>| {
        let (entries, groups) = memory.all();
        let of = |table| entries.iter().filter(|entry| entry.table == table).map(row).collect();
        let rows_expected: BTreeMap<_, _> =
            tables::ALL.into_iter().map(|table| (table, sorted(of(table)))).collect();
        assert_eq!(rows(played), rows_expected);
        assert_eq!(plane.switch().groups().unwrap(), groups);
    };
    let plane = start();
    for job in
        [job(1, 1), rack(job(2, 1)), root(job(3, 1)), dynamic(4, 1), rack(dynamic(5, 1)), root(dynamic(6, 1))]
    {
        assert_eq!(plane.install(&job).unwrap(), expected.install(&job).unwrap());
    }
    is_as_expected(&played, &plane);
    plane.resize(1, 2, "measured").unwrap();
    expected.resize(1, 2, "measured").unwrap();
    for parts in [Drops { up: 1, down: 2 }, Drops { up: 0, down: 3 }] {
        plane.set_drops(1..64, parts).unwrap();
        expected.set_drops(1..64, parts).unwrap();
    }
    plane.remove(6).unwrap();
    expected.remove(6).unwrap();
    is_as_expected(&played, &plane);
    played.count("reasons", 64 + Reason::Added as u32, 5);
    assert_eq!(plane.counters().unwrap()[1].counters[Reason::Added as usize], 5);
    let (jobs, instance) = (plane.jobs(), plane.instance().unwrap());
    drop(plane);

    let plane = start();
    assert_eq!(
        (plane.jobs(), plane.instance().unwrap()),
        (jobs, instance),
        "the control plane was restarted"
    );
    let known = [known(&job(1, 1)), known(&dynamic(4, 1))];
    assert_eq!(plane.take_over(&known).unwrap().jobs, expected.take_over(&known).unwrap().jobs);
    is_as_expected(&played, &plane);

    drop(server);
    assert!(plane.instance().is_err());
    let fresh = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    let _server = PlayedServer::start(address, &fresh).unwrap();
    support::until(|| plane.instance().is_ok_and(|now| now != instance));
    is_as_expected(&fresh, &plane);
}
