//! The client against a played server: what a switch holds after each call, and after either side was
//! restarted.

mod published;

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use sumac_played_switch::{PROGRAM, PlayedServer, PlayedSwitch, Row};

use super::{BfRuntime, Options, Pipeline};
use crate::{
    sizes::Compiled,
    target::{Change, Entry, Group, Replica, SwitchError, Target as _, Update},
};

const NAME: &str = "sumac";

fn switch() -> PlayedSwitch {
    PlayedSwitch::with_program(NAME, PROGRAM).unwrap()
}

fn serve(switch: &PlayedSwitch) -> PlayedServer {
    PlayedServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), switch).unwrap()
}

fn options(server: &PlayedServer) -> Options {
    Options { address: server.address().to_string(), device: 0, program: Some(NAME.into()), pipeline: None }
}

fn insert(entry: Entry) -> Update {
    Update::Entry(Change::Insert, entry)
}

/// Slots 0 to 63 of a lane.
fn lane(lane: u16) -> Entry {
    let entry = Entry::new("lanes", "set_static").exact("job", 3u16).exact("shard", 0u16);
    let entry = entry.ternary("slot", 0u32, !63u32).ternary("lane", lane, 0xffffu16);
    let entry = entry.parameter("first", 128u16).parameter("mask", 63u32);
    entry.parameter("lane_slots", 64u32).parameter("lane", 3 * 64 + lane)
}

fn way(destination: u64, port: u64) -> Entry {
    let entry = Entry::new("ways", "set_way").exact("job", 3u16);
    entry.exact("destination", destination).parameter("port", port)
}

fn group(replicas: &[(u32, u32)]) -> Group {
    let replicas = replicas.iter().map(|(port, instance)| Replica { port: *port, instance: *instance });
    Group::new(3, replicas)
}

fn row(key: &[(&str, u64, Option<u64>)], action: &str, data: &[(&str, &[u64])]) -> Row {
    Row {
        key: key.iter().map(|(name, value, mask)| ((*name).to_owned(), (*value, *mask))).collect(),
        action: action.into(),
        data: data.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect(),
    }
}

fn temporary(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("sumac-bfrt-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn entries_are_on_the_switch_as_they_were_written() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    client.write(&[insert(lane(5)), insert(way(6, 0x184)), insert(way(7, 12))]).unwrap();
    let expected = row(
        &[
            ("job", 3, None),
            ("shard", 0, None),
            ("slot", 0, Some(0xffff_ffc0)),
            ("lane", 5, Some(0xffff)),
            ("$MATCH_PRIORITY", 0, None),
        ],
        "set_static",
        &[("first", &[128]), ("mask", &[63]), ("lane_slots", &[64]), ("lane", &[197])],
    );
    assert_eq!(played.rows("lanes"), [expected]);
    let expected = row(&[("job", 3, None), ("destination", 6, None)], "set_way", &[("port", &[0x184])]);
    assert_eq!(played.rows("ways")[0], expected);
    assert_eq!(client.entries("lanes").unwrap(), [lane(5)]);
    assert_eq!(client.entries("ways").unwrap(), [way(6, 0x184), way(7, 12)]);

    client
        .write(&[Update::Entry(Change::Modify, way(7, 13)), Update::Entry(Change::Delete, way(6, 0))])
        .unwrap();
    assert_eq!(client.entries("ways").unwrap(), [way(7, 13)]);
    client
        .write(&[Update::Entry(Change::Delete, lane(5)), Update::Entry(Change::Delete, way(7, 0))])
        .unwrap();
    assert_eq!((played.rows("lanes"), played.rows("ways")), (vec![], vec![]));

    // A field that an entry leaves out matches anything.
    let anywhere = Entry::new("lanes", "set_no_slot").exact("job", 3u16).exact("shard", 0u16);
    client.write(&[insert(anywhere.clone())]).unwrap();
    assert_eq!(played.rows("lanes")[0].key["lane"], (0, Some(0)));
    assert_eq!(client.entries("lanes").unwrap(), [anywhere]);
}

#[test]
fn queues_of_the_ports_in_loopback_have_priority_and_a_buffer() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    // Port 6 of the pipes of `front` and `slots`: the third of its group.
    let key =
        |pipe: u64, queue: u64| [("pg_id", 1, None), ("pg_queue", 16 + queue, None), ("pipe", pipe, None)];
    let priority = |pipe, queue, priority: &[u64]| {
        row(&key(pipe, queue), "", &[("min_priority", priority), ("max_priority", priority)])
    };
    let mut found = played.rows("tf2.tm.queue.sched_cfg");
    found.sort_by_key(|row| (row.key["pipe"], row.key["pg_queue"]));
    assert_eq!(
        found,
        [priority(0, 0, &[0]), priority(0, 1, &[7]), priority(1, 0, &[0]), priority(1, 1, &[7])]
    );
    // A packet of 4 blocks has 7 cells.
    let slots = u64::from(client.compiled().unwrap().static_slots);
    let buffer = |pipe| row(&key(pipe, 1), "shared_pool", &[("guaranteed_cells", &[slots * 7])]);
    let mut found = played.rows("tf2.tm.queue.buffer");
    found.sort_by_key(|row| row.key["pipe"]);
    assert_eq!((slots, found), (2048, vec![buffer(0), buffer(1)]));
}

/// FRONT_PIPE may be another one than the lowest of `front`.
#[test]
fn the_front_pipe_is_the_first_of_the_configuration_file() {
    let directory = temporary("pipes");
    let pipe = |name: &str, pipes: &[u32]| {
        format!(
            r#"{{"p4_pipeline_name": "{name}", "context": "context.json", "config": "tofino.bin",
                "pipe_scope": {pipes:?}}}"#
        )
    };
    let configuration = format!(
        r#"{{"p4_devices": [{{"p4_programs": [{{"program-name": "sumac", "bfrt-config": "bf-rt.json",
            "p4_pipelines": [{}, {}]}}]}}]}}"#,
        pipe("slots", &[1]),
        pipe("front", &[3, 0, 2])
    );
    let files = [("bf-rt.json", PROGRAM), ("context.json", b"{}"), ("tofino.bin", b"binary")];
    for (file, content) in files.into_iter().chain([("sumac.conf", configuration.as_bytes())]) {
        fs::write(directory.join(file), content).unwrap();
    }
    let pipeline = Pipeline::open(&directory.join("sumac.conf")).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let played = PlayedSwitch::with_program("another", b"{\"tables\": []}").unwrap();
    let server = serve(&played);
    let client = BfRuntime::connect(Options { pipeline: Some(pipeline), ..options(&server) }).unwrap();
    let mut pipes: Vec<_> = played.rows("tf2.tm.queue.buffer").iter().map(|row| row.key["pipe"].0).collect();
    pipes.sort_unstable();
    assert_eq!(pipes, [1, 3]);
    drop(client);
}

#[test]
fn a_job_of_many_entries_goes_in_batches() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    let ways: Vec<Update> = (0..1000).map(|destination| insert(way(destination, 1))).collect();
    client.write(&ways).unwrap();
    assert_eq!(client.entries("ways").unwrap().len(), 1000);
    // The error of the last update of a batch is behind the successes of all others.
    let refused = client.write(&[insert(way(1000, 1)), insert(way(999, 1))]).unwrap_err();
    assert!(refused.to_string().contains("Already exists (AlreadyExists)"), "{refused}");
    assert_eq!(client.entries("ways").unwrap().len(), 1001);
}

#[test]
fn groups_have_a_node_for_each_replication_id() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    let first = group(&[(8, 1), (12, 2), (16, 2)]);
    client.write(&[Update::Group(Change::Insert, first.clone())]).unwrap();
    let node = |rid: u64, ports: &[u64]| {
        row(
            &[("$MULTICAST_NODE_ID", 3 << 16 | rid, None)],
            "",
            &[("$MULTICAST_RID", &[rid]), ("$MULTICAST_LAG_ID", &[]), ("$DEV_PORT", ports)],
        )
    };
    assert_eq!(played.rows("$pre.node"), [node(1, &[8]), node(2, &[12, 16])]);
    let nodes: &[u64] = &[3 << 16 | 1, 3 << 16 | 2];
    let listed = row(
        &[("$MGID", 3, None)],
        "",
        &[
            ("$MULTICAST_NODE_ID", nodes),
            ("$MULTICAST_NODE_L1_XID_VALID", &[0, 0]),
            ("$MULTICAST_NODE_L1_XID", &[0, 0]),
        ],
    );
    assert_eq!(played.rows("$pre.mgid"), [listed]);
    assert_eq!(client.groups().unwrap(), [first]);

    // A worker is replaced by one at another port, and another is new.
    let second = group(&[(12, 2), (4, 7)]);
    client.write(&[Update::Group(Change::Modify, second.clone())]).unwrap();
    assert_eq!(played.rows("$pre.node"), [node(2, &[12]), node(7, &[4])]);
    assert_eq!(client.groups().unwrap(), std::slice::from_ref(&second));
    client.write(&[Update::Group(Change::Delete, second)]).unwrap();
    assert_eq!((played.rows("$pre.mgid"), played.rows("$pre.node")), (vec![], vec![]));
}

#[test]
fn counters_are_synchronized_before_they_are_read() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    played.count("reasons", 65, 7);
    assert_eq!(client.counters("reasons", 64..67).unwrap(), [0, 7, 0]);
    played.count("reasons", 65, 1);
    assert_eq!(client.counters("reasons", 65..66).unwrap(), [8]);
    client.clear_counters("reasons", 64..67).unwrap();
    assert_eq!(client.counters("reasons", 64..67).unwrap(), [0, 0, 0]);
    let refused = client.counters("reasons", 4090..4100).unwrap_err();
    assert!(refused.to_string().contains("beyond the table's size"), "{refused}");
}

#[test]
fn the_switch_s_refusals_name_the_entry() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    client.write(&[insert(way(1, 1))]).unwrap();
    let refused = |updates: &[Update]| client.write(updates).unwrap_err();
    for (updates, expected) in [
        (
            vec![insert(way(2, 1)), insert(way(1, 1))],
            "Insert of an entry of table `ways` (set_way): the switch answers",
        ),
        (vec![Update::Entry(Change::Delete, way(9, 1))], "Object not found (NotFound)"),
        (vec![Update::Entry(Change::Modify, way(9, 1))], "Object not found (NotFound)"),
        (vec![insert(way(3, 512))], "field `port` of table `"),
        (vec![insert(Entry::new("absent", "set_way"))], "no table `absent`"),
        (vec![insert(Entry::new("ways", "absent"))], "no action `"),
        (vec![insert(way(3, 1).parameter("absent", 1u8))], "no parameter `"),
        (vec![insert(way(3, 1).exact("absent", 1u8))], "no key `"),
        (
            vec![insert(Entry::new("ways", "set_way").exact("job", 1u8).parameter("port", 1u8))],
            "field `destination`",
        ),
        (vec![Update::Group(Change::Delete, group(&[]))], "Delete of multicast group 3"),
        (vec![Update::Group(Change::Insert, group(&[(1, 1 << 16)]))], "16 bits"),
    ] {
        let error = refused(&updates);
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // Updates in front of a refused one are applied.
    assert_eq!(client.entries("ways").unwrap(), [way(1, 1), way(2, 1)]);
    let size = 1152 - 2;
    let full = refused(&(0..=size).map(|destination| insert(way(destination + 10, 1))).collect::<Vec<_>>());
    assert!(full.to_string().contains("table `ways` of the switch is full"), "{full}");
}

#[test]
fn a_program_has_one_control_plane_and_must_be_there() {
    let played = switch();
    let server = serve(&played);
    let other = Options { program: Some("tna_counter".into()), ..options(&server) };
    let absent = BfRuntime::connect(other).err().unwrap().to_string();
    assert!(absent.contains("[\"sumac\"]") && absent.contains("`tna_counter`"), "{absent}");
    // Without a name it is the only one.
    drop(BfRuntime::connect(Options { program: None, ..options(&server) }).unwrap());
    played.bind_another(NAME);
    let bound = BfRuntime::connect(options(&server)).err().unwrap();
    assert!(matches!(bound, SwitchError::Bound { .. }), "{bound}");
    let options = options(&server);
    drop(server);
    let alone = BfRuntime::connect(options).err().unwrap();
    assert!(matches!(alone, SwitchError::Connect { .. }), "{alone}");
}

#[test]
fn either_side_may_restart() {
    let played = switch();
    let server = serve(&played);
    let address = server.address();
    let client = BfRuntime::connect(options(&server)).unwrap();
    let instance = client.instance().unwrap();
    client.write(&[insert(way(1, 1))]).unwrap();

    // The control plane: the next one binds, and finds what is there.
    drop(client);
    let client = BfRuntime::connect(options(&server)).unwrap();
    assert_eq!(client.instance().unwrap(), instance);
    assert_eq!(client.entries("ways").unwrap(), [way(1, 1)]);
    assert_eq!(
        client.entries("drops").unwrap(),
        [],
        "the number of its memory is no entry of the control plane"
    );

    // The connection: the switch keeps its memory.
    drop(server);
    let away = client.instance().unwrap_err();
    assert!(matches!(away, SwitchError::Away { .. } | SwitchError::Connect { .. }), "{away}");
    let server = PlayedServer::start(address, &played).unwrap();
    assert_eq!(client.instance().unwrap(), instance);
    assert_eq!(client.entries("ways").unwrap(), [way(1, 1)]);

    // The switch: its memory is another, and empty.
    drop(server);
    let played = switch();
    let _server = PlayedServer::start(address, &played).unwrap();
    let _ = client.entries("ways");
    assert_ne!(client.instance().unwrap(), instance);
    assert_eq!(client.entries("ways").unwrap(), []);
    client.write(&[insert(way(1, 2))]).unwrap();
    assert_eq!(client.entries("ways").unwrap(), [way(1, 2)]);
}

#[test]
fn a_program_is_loaded_where_the_switch_does_not_run_it() {
    let directory = temporary("loads");
    let configuration = directory.join("sumac.conf");
    fs::write(
        &configuration,
        r#"{"chip_list": [], "p4_devices": [{"device-id": 0, "p4_programs": [{
            "program-name": "sumac", "bfrt-config": "bf-rt.json", "p4_pipelines": [{
                "p4_pipeline_name": "pipe", "context": "context.json", "config": "tofino.bin",
                "pipe_scope": [0, 1]}]}]}]}"#,
    )
    .unwrap();
    let missing = Pipeline::open(&configuration).unwrap_err().to_string();
    assert!(missing.contains("context.json: No such file"), "{missing}");
    for (file, content) in [("bf-rt.json", PROGRAM), ("context.json", b"{}"), ("tofino.bin", b"binary")] {
        fs::write(directory.join(file), content).unwrap();
    }
    let pipeline = Pipeline::open(&configuration).unwrap();
    assert_eq!(pipeline.program(), NAME);
    fs::write(directory.join("tofino.bin"), b"another binary").unwrap();
    let newer = Pipeline::open(&configuration).unwrap();
    fs::write(directory.join("tofino.bin"), b"").unwrap();
    let empty = Pipeline::open(&configuration).unwrap();
    fs::remove_dir_all(&directory).unwrap();

    let played = PlayedSwitch::with_program("another", b"{\"tables\": []}").unwrap();
    let server = serve(&played);
    let options = Options { pipeline: Some(pipeline), ..options(&server) };
    let client = BfRuntime::connect(options.clone()).unwrap();
    assert_eq!(played.loaded(), 1);
    client.write(&[insert(way(1, 1))]).unwrap();
    drop(client);
    let client = BfRuntime::connect(options.clone()).unwrap();
    assert_eq!(played.loaded(), 1, "it runs already");
    assert_eq!(client.entries("ways").unwrap(), [way(1, 1)]);

    let other = Options { pipeline: Some(newer), ..options.clone() };
    let bound = BfRuntime::connect(other.clone()).err().unwrap();
    assert!(matches!(bound, SwitchError::Bound { .. }), "{bound}");
    assert_eq!(
        (played.loaded(), client.entries("ways").unwrap()),
        (1, vec![way(1, 1)]),
        "it has its program"
    );
    drop(client);
    let client = BfRuntime::connect(other).unwrap();
    assert_eq!((played.loaded(), client.entries("ways").unwrap()), (2, vec![]), "the binary is another");
    drop(client);
    let refused = BfRuntime::connect(Options { pipeline: Some(empty), ..options }).err().unwrap();
    assert!(matches!(refused, SwitchError::PipelineRefused { .. }), "{refused}");
}

#[test]
fn a_load_by_another_ends_the_session() {
    let played = switch();
    let server = serve(&played);
    let client = BfRuntime::connect(options(&server)).unwrap();
    let (before, instance) = (played.clients(), client.instance().unwrap());
    played.load_again().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while played.clients() == before {
        assert!(Instant::now() < deadline, "it goes on with the session");
        let _ = client.instance();
    }
    assert_ne!(client.instance().unwrap(), instance);
}

#[test]
fn sizes_are_those_of_the_switch_s_program() {
    let played = switch();
    let server = serve(&played);
    let address = server.address();
    let client = BfRuntime::connect(options(&server)).unwrap();
    let both = Compiled {
        shards: 2,
        static_slots: 2048,
        dynamic_slots: 2048,
        blocks: 4,
        bounds_loss: true,
        slots_pipes: vec![1],
        front_pipe: Some(0),
    };
    assert_eq!(client.compiled().unwrap(), both);
    // The switch comes back with a program of one mode.
    drop(server);
    let one = String::from_utf8_lossy(PROGRAM).replace(".shared_chunks\"", ".absent\"");
    let one = one.replace(".terms_owners\"", ".absent\"");
    let played = PlayedSwitch::with_program(NAME, one.as_bytes()).unwrap();
    let server = PlayedServer::start(address, &played).unwrap();
    let changed = until_reached(&client);
    assert!(changed.to_string().contains("other sizes than before"), "{changed}");
    let client = BfRuntime::connect(options(&server)).unwrap();
    assert_eq!(
        client.compiled().unwrap(),
        Compiled { dynamic_slots: 0, blocks: 1, bounds_loss: false, ..both }
    );
}

/// Calls until the error is not that of the broken connection.
fn until_reached(client: &BfRuntime) -> SwitchError {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let error = client.instance().unwrap_err();
        if error.to_string().contains("sizes") {
            return error;
        }
        assert!(Instant::now() < deadline, "{error}");
    }
}
