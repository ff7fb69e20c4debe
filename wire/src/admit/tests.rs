//! The checks of [`super`], refusal by refusal.

use super::*;

const JOB: JobEntry = JobEntry {
    token: 0xfeed,
    result_token: 0xbeef,
    slot_base: 64,
    slots: 128,
    group_ip: 0,
    epoch: 7,
    world: 4,
    elements: 256,
    flags: job_flag::ACTIVE,
    contributors: 4,
    shards: 2,
    lane_slots_log2: 5,
    rack: 0,
    racks: 0,
    hosts: 0,
};

fn good() -> Header {
    Header {
        kind: Kind::Contribution as u8,
        job: 1,
        epoch: 7,
        seq: 31,
        slot: 63,
        fan_in_0: 4,
        elements: 256,
        bitmap_0: 0b1000,
        token: 0xfeed,
        ..Header::default()
    }
}

#[test]
fn ranks() {
    for world in 1..=32u16 {
        for bit in 0..32u16 {
            assert_eq!(rank(1 << bit, world), (bit < world).then_some(bit), "{bit} of {world}");
        }
        assert_eq!(rank(0, world), None);
        assert_eq!(rank(3, world), None);
    }
}

#[test]
fn aggregator_refuses() {
    type Case = (&'static str, fn(&mut Header), Result<Option<(u32, u16, u32)>, Reason>);
    let table: [Case; 36] = [
        ("a good one", |_| (), Ok(Some((0b1000, 1, 31)))),
        ("the other lane of the shard", |h| h.slot = 96, Ok(Some((0b1000, 3, 0)))),
        ("a probe", |h| h.kind = Kind::Probe as u8, Ok(None)),
        ("a probe that is too long", |h| (h.kind, h.elements) = (3, 257), Err(Reason::WrongElements)),
        ("a result", |h| h.kind = Kind::Result as u8, Err(Reason::BadType)),
        ("one marked as a refusal", |h| h.flags = flag::MISMATCH, Err(Reason::BadType)),
        ("token", |h| h.token = 0, Err(Reason::BadToken)),
        ("epoch", |h| h.epoch = 6, Err(Reason::WrongEpoch)),
        ("fan-in", |h| h.fan_in_0 = 5, Err(Reason::WrongWorker)),
        ("second level", |h| h.bitmap_1 = 1, Err(Reason::WrongWorker)),
        ("from a rack", |h| h.flags = flag::LEVEL, Err(Reason::WrongWorker)),
        ("two workers", |h| h.bitmap_0 = 3, Err(Reason::WrongWorker)),
        ("no such worker", |h| h.bitmap_0 = 16, Err(Reason::WrongWorker)),
        ("slot beyond the range", |h| h.slot = 128, Err(Reason::WrongSlot)),
        ("no slot", |h| h.slot = u32::MAX, Err(Reason::WrongSlot)),
        ("slot of the other shard", |h| h.slot = 64, Err(Reason::WrongSlot)),
        ("slot of the other shard, first lane", |h| h.slot = 31, Err(Reason::WrongSlot)),
        ("no elements", |h| h.elements = 0, Err(Reason::WrongElements)),
        ("too many elements", |h| h.elements = 257, Err(Reason::WrongElements)),
        ("an exponent round", |h| (h.elements, h.flags) = (0, flag::EXPONENT), Ok(Some((0b1000, 1, 31)))),
        ("a question", |h| (h.elements, h.flags) = (0, flag::QUERY), Ok(Some((0b1000, 1, 31)))),
        ("a question with elements", |h| h.flags = flag::QUERY, Err(Reason::WrongElements)),
        (
            "the question of a round",
            |h| (h.elements, h.flags) = (0, flag::QUERY | flag::EXPONENT),
            Err(Reason::BadType),
        ),
        ("an exponent round with elements", |h| h.flags = flag::EXPONENT, Err(Reason::WrongElements)),
        ("any chunk: the slot decides", |h| h.seq = 77, Ok(Some((0b1000, 1, 31)))),
        ("a flush", |h| (h.flags, h.next_seq) = (flag::PARTIAL, 31), Ok(Some((0b1000, 1, 31)))),
        (
            "a flush of a later operation",
            |h| (h.flags, h.next_seq) = (flag::PARTIAL, 32),
            Err(Reason::OutOfTurn),
        ),
        ("a flush of a maximum", |h| h.flags = flag::PARTIAL | flag::MAXIMUM, Err(Reason::BadType)),
        (
            "a flush of a round",
            |h| (h.elements, h.flags) = (0, flag::PARTIAL | flag::EXPONENT),
            Err(Reason::BadType),
        ),
        ("one without values", |h| (h.elements, h.flags) = (0, flag::EMPTY), Ok(Some((0b1000, 1, 31)))),
        ("without values, which has some", |h| h.flags = flag::EMPTY, Err(Reason::WrongElements)),
        (
            "a round without values",
            |h| (h.elements, h.flags) = (0, flag::EMPTY | flag::EXPONENT),
            Err(Reason::BadType),
        ),
        (
            "a question without values",
            |h| (h.elements, h.flags) = (0, flag::EMPTY | flag::QUERY),
            Err(Reason::BadType),
        ),
        (
            "a flush without values",
            |h| (h.elements, h.flags) = (0, flag::EMPTY | flag::PARTIAL),
            Err(Reason::BadType),
        ),
        (
            "a maximum without values",
            |h| (h.elements, h.flags) = (0, flag::EMPTY | flag::MAXIMUM),
            Err(Reason::BadType),
        ),
        (
            "a result without values",
            |h| (h.kind, h.elements, h.flags) = (Kind::Result as u8, 0, flag::EMPTY),
            Err(Reason::BadType),
        ),
    ];
    for (what, change, expected) in table {
        let mut header = good();
        change(&mut header);
        let got = sender(&header, &JOB).and_then(|_| request(&header, &JOB, 1));
        assert_eq!(got.map(|c| c.map(|c| (c.worker, c.lane, c.slot))), expected, "{what}");
    }
    let flush = Header { flags: flag::PARTIAL, contributors: 9, next_seq: 4, ..good() };
    let terms = Header { flags: flag::MAXIMUM, contributors: 9, next_seq: 44, ..good() };
    let round = Header { flags: flag::EXPONENT, elements: 0, ..terms };
    for (what, header, flags, is) in [
        ("a flush", flush, 0, [true, false]),
        ("a child's", flush, job_flag::CHILD, [true, false]),
        ("a switch's", flush, job_flag::WHOLE, [false, false]),
        ("a switch's with a lane's budget", flush, job_flag::LANE_BUDGET, [true, false]),
        ("terms of such a one", terms, job_flag::LANE_BUDGET, [false, true]),
        ("without a limit", Header { contributors: 0, ..flush }, 0, [false, false]),
        ("terms", terms, 0, [false, true]),
        ("terms of a child's", terms, job_flag::CHILD, [false, true]),
        ("terms without a limit", Header { contributors: 0, ..terms }, 0, [false, false]),
        ("terms with a round", round, 0, [false, false]),
    ] {
        let job = JobEntry { flags: JOB.flags | flags, ..JOB };
        let c = request(&header, &job, 1).expect(what).expect(what);
        assert_eq!([c.is_flush(), c.has_terms()], is, "{what}");
        assert_eq!((c.limit > 0, c.bound), (is != [false, false], header.next_seq), "{what}");
    }
    let empty = Header { flags: flag::EMPTY, elements: 0, contributors: 9, next_seq: 44, ..good() };
    for (what, flags, expected) in [
        ("one level", 0, Ok((flag::EMPTY, 0))),
        ("a child's", job_flag::CHILD, Ok((flag::EMPTY, 0))),
        ("a switch's", job_flag::WHOLE, Err(Reason::WrongElements)),
        ("a switch's with a lane's budget", job_flag::LANE_BUDGET, Err(Reason::WrongElements)),
        ("a root's", job_flag::ROOT, Err(Reason::WrongElements)),
    ] {
        let job = JobEntry { flags: JOB.flags | flags, ..JOB };
        let got = request(&empty, &job, 1).map(|c| c.map(|c| (c.flags, c.limit)));
        assert_eq!(got, expected.map(Some), "without values, {what}");
        // Other jobs ignore the flag: it is not in the contribution.
        let values = request(&Header { elements: 256, ..empty }, &job, 1).map(|c| c.map(|c| c.flags));
        let expected = if expected.is_ok() { Err(Reason::WrongElements) } else { Ok(Some(0)) };
        assert_eq!(values, expected, "with the flag and values, {what}");
    }
    assert_eq!(sender(&good(), &JobEntry { flags: 0, ..JOB }), Err(Reason::UnknownJob));
    let former = JobEntry { flags: 0, ..JOB };
    type Change = (&'static str, fn(&mut Header), Option<u16>);
    let changes: [Change; 6] = [
        ("a worker that was not told", |_| (), Some(3)),
        ("its probe", |h| h.kind = Kind::Probe as u8, Some(3)),
        ("no worker of it", |h| h.bitmap_0 = 16, None),
        ("no packet of a worker", |h| h.kind = Kind::Report as u8, None),
        ("another token", |h| h.token = 1, None),
        ("another epoch", |h| h.epoch = 8, None),
    ];
    for (what, change, expected) in changes {
        let mut header = good();
        change(&mut header);
        assert_eq!(former_sender(&header, &former), expected, "{what}");
        assert_eq!(former_sender(&header, &JOB), None, "{what}, of a job that is here");
    }
    let never = Header { token: 0, epoch: 0, fan_in_0: 0, ..good() };
    assert_eq!(former_sender(&never, &JobEntry::default()), None);
    let told = unknown_job(&good(), &former);
    assert_eq!((told.kind, told.flags, told.elements), (Kind::Report as u8, flag::UNKNOWN_JOB, 256));
    assert_eq!(told.token, 0xbeef);
    let worker = WorkerEntry { ip: 9, ..WorkerEntry::default() };
    assert_eq!((source(9, &worker), source(8, &worker)), (Ok(()), Err(Reason::WrongSource)));
}

#[test]
fn a_root_has_racks_for_workers() {
    let root = JobEntry { flags: job_flag::ACTIVE | job_flag::ROOT, ..JOB };
    let rack = Header { flags: flag::LEVEL, fan_in_1: 4, bitmap_1: 2, bitmap_0: 0xff, ..good() };
    assert_eq!(sender(&rack, &root), Ok(1));
    let contribution = request(&rack, &root, 1).map(|c| c.map(|c| (c.worker, c.child)));
    assert_eq!(contribution, Ok(Some((2, false))));
    assert_eq!(sender(&good(), &root), Err(Reason::WrongWorker), "a worker past its rack");
    assert_eq!(sender(&Header { bitmap_1: 3, ..rack }, &root), Err(Reason::WrongWorker));
}

#[test]
fn a_child_listens_to_its_parent() {
    let child = JobEntry { flags: job_flag::ACTIVE | job_flag::CHILD, ..JOB };
    let parent = WorkerEntry { ip: 9, ..WorkerEntry::default() };
    let result =
        Header { kind: Kind::Result as u8, token: 0xbeef, flags: flag::LEVEL, next_seq: 99, ..good() };
    let got =
        |header: &Header, ip, job| conclusion(header, ip, job, &parent, 1).map(|c| c.map(|c| c.next_seq));
    assert_eq!(got(&result, 9, &child), Ok(Some(99)));
    assert_eq!(got(&Header { kind: Kind::Report as u8, ..result }, 9, &child), Ok(None));
    type Change = fn(&mut Header);
    let table: [(&str, Change, Reason); 8] = [
        ("of nobody", |h| (h.flags, h.bitmap_0) = (flag::LEVEL | flag::PARTIAL, 0), Reason::WrongWorker),
        ("without values", |h| (h.elements, h.flags) = (0, flag::LEVEL | flag::EMPTY), Reason::WrongElements),
        ("a contribution", |h| h.kind = Kind::Contribution as u8, Reason::BadType),
        ("not between levels", |h| h.flags = 0, Reason::BadType),
        ("the token of contributions", |h| h.token = 0xfeed, Reason::BadToken),
        ("epoch", |h| h.epoch = 8, Reason::WrongEpoch),
        ("slot", |h| h.slot = 0, Reason::WrongSlot),
        ("elements", |h| h.elements = 0, Reason::WrongElements),
    ];
    for (what, change, reason) in table {
        let mut header = result;
        change(&mut header);
        assert_eq!(got(&header, 9, &child), Err(reason), "{what}");
    }
    assert_eq!(got(&result, 8, &child), Err(Reason::WrongSource));
    assert_eq!(got(&result, 9, &JOB), Err(Reason::BadType), "it has no parent");
    assert_eq!(
        sender(&good(), &child).and_then(|_| request(&good(), &child, 1)).map(|c| c.map(|c| c.child)),
        Ok(Some(true))
    );
}

#[test]
fn host_refuses() {
    let job = HostJobEntry {
        token: 0xfeed,
        result_token: 0xbeef,
        ip: 20,
        group_ip: 0,
        aggregator_ip: 9,
        host_ips: [11, 0, 0, 12],
        epoch: 7,
        elements: 256,
        world: 4,
        flags: job_flag::ACTIVE,
        reserved: 0,
    };
    type Change = fn(&mut Header);
    let table: [(&str, Change, u32, Result<(), Reason>); 10] = [
        ("a result", |h| (h.kind, h.token) = (2, 0xbeef), 9, Ok(())),
        ("a parameter host's", |h| (h.kind, h.token) = (2, 0xbeef), 12, Ok(())),
        ("nobody's", |h| (h.kind, h.token) = (2, 0xbeef), 0, Err(Reason::WrongSource)),
        ("a stop", |h| h.kind = Kind::Stop as u8, 9, Err(Reason::BadType)),
        ("a report", |h| (h.kind, h.token) = (4, 0xbeef), 9, Ok(())),
        ("a contribution", |_| (), 9, Err(Reason::BadType)),
        ("the token of contributions", |h| h.kind = 2, 9, Err(Reason::BadToken)),
        ("epoch", |h| (h.kind, h.token, h.epoch) = (2, 0xbeef, 1), 9, Err(Reason::WrongEpoch)),
        ("source", |h| (h.kind, h.token) = (2, 0xbeef), 8, Err(Reason::WrongSource)),
        ("elements", |h| (h.kind, h.token, h.elements) = (2, 0xbeef, 257), 9, Err(Reason::WrongElements)),
    ];
    for (what, change, src_ip, expected) in table {
        let mut header = good();
        change(&mut header);
        assert_eq!(answer(&header, src_ip, 20, &job), expected, "{what}");
    }
    assert_eq!(answer(&good(), 9, 20, &HostJobEntry { flags: 0, ..job }), Err(Reason::UnknownJob));
    let result = Header { kind: Kind::Result as u8, token: 0xbeef, ..good() };
    for (dst_ip, group_ip, expected) in
        [(21, 0, Err(Reason::Foreign)), (0, 0, Err(Reason::Foreign)), (21, 21, Ok(())), (20, 21, Ok(()))]
    {
        let job = HostJobEntry { group_ip, ..job };
        assert_eq!(answer(&result, 9, dst_ip, &job), expected, "to {dst_ip}, group {group_ip}");
        let forged = Header { token: 1, ..result };
        assert_eq!(answer(&forged, 9, dst_ip, &job).is_err_and(|r| r == Reason::Foreign), expected.is_err());
    }
    let host = HostJobEntry { flags: job_flag::ACTIVE | job_flag::PARAMETER, ..job };
    assert_eq!(answer(&good(), 77, 20, &host), Ok(()), "a contribution, whoever sent it");
    assert_eq!(answer(&Header { token: 0xbeef, ..good() }, 77, 20, &host), Err(Reason::BadToken));
    assert_eq!(answer(&result, 77, 20, &host), Err(Reason::WrongSource));
}

/// A part leaves out only the rack's own workers, by the table.
#[test]
fn a_part_names_its_own_workers_alone() {
    let part = Header { flags: flag::PARTIAL | flag::LEVEL, bitmap_0: 0b1010_0101, ..Header::default() };
    let job = JobEntry { contributors: 8, flags: job_flag::ROOT, ..JobEntry::default() };
    let other = |flags, contributors| JobEntry { flags, contributors, ..job };
    let naming = |bitmap_0| Header { bitmap_0, ..part };
    for (what, part, job, below, expected) in [
        ("a rack of four", part, job, 0b1111, Ok(0b1010)),
        (
            "a rack in the middle",
            part,
            other(job_flag::ROOT | job_flag::CHILD, 8),
            0b1111_0000,
            Ok(0b0101_0000),
        ),
        ("a whole part", Header { flags: flag::LEVEL, ..part }, job, 0b1111, Ok(0)),
        ("a rack of one", part, job, 0b0001, Ok(0)),
        ("a rack of one, without it", part, job, 0b0010, Err(Reason::WrongWorker)),
        ("a rack that the table does not know", part, job, 0, Err(Reason::WrongWorker)),
        ("half of a rack of two", naming(0b0010), job, 0b0011, Ok(0b0001)),
        ("fewer than half", naming(0b0001), job, 0b0111, Err(Reason::WrongWorker)),
        ("of nobody", naming(0), job, 0b1111, Err(Reason::WrongWorker)),
        ("of others' workers", naming(0b1111_0000), job, 0b1111, Err(Reason::WrongWorker)),
        ("a worker's flush", part, other(0, 8), 0b1111, Ok(0)),
        ("below a switch", part, other(job_flag::ROOT | job_flag::WHOLE, 8), 0b1111, Ok(0)),
        ("more workers than bits", part, other(job_flag::ROOT, 33), 0b1111, Ok(0)),
    ] {
        assert_eq!(left_out(&part, &job, below), expected, "{what}");
    }
    let flush = Header { flags: flag::PARTIAL, contributors: 9, next_seq: 4, ..good() };
    let many = JobEntry { flags: JOB.flags | job_flag::CHILD, contributors: 33, ..JOB };
    assert_eq!(request(&flush, &many, 1).unwrap().unwrap().limit, 0, "more workers than bits");
}
