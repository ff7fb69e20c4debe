//! Dynamic jobs (ATP) on the program in the kernel: the slot's table of cases, one level after the other, and what goes
//! on to where.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod support;

use sumac_agg::NewJob;
use sumac_wire::{
    Header, Kind, Reason,
    dynamic::{SlotMeta, owner},
    header::flag,
};
use support::{
    Bench, DROP, REDIRECT, Shown,
    dynamic::{ECT, contribution, dynamic_job, frame, header, host, result, values},
    frames::{Answer, answer, sum},
    privileged,
};

/// A packet of the tables: who sends it, of which chunk, and what differs from a contribution.
#[derive(Clone, Copy)]
enum Packet {
    Rank(usize, u32, u16),
    Host(u32),
}
use Packet::{Host, Rank};

fn show(bench: &Bench, job: &NewJob, slot: u32, packet: Packet) -> Shown {
    bench.show(&match packet {
        Rank(rank, seq, flags) => {
            let plain = header(job, rank, seq, slot);
            contribution(job, rank, &Header { flags: plain.flags | flags, ..plain })
        }
        Host(seq) => {
            let above = job.dynamic.as_ref().and_then(|dynamic| dynamic.hosts.first());
            let above = above.copied().unwrap_or(host(9));
            let header = result(&header(job, 0, seq, slot));
            frame(job, &above, &header, &values(&header, 9), ECT)
        }
    })
}

#[test]
fn table_of_cases() {
    if !privileged("table_of_cases") {
        return;
    }
    const AGAIN: u16 = flag::RESEND;
    const FLOATS: u16 = flag::RESEND | flag::RAW_FLOAT;
    // Three workers: what is sent, what becomes of the last, what the slot holds afterwards as chunk and bits, and of
    // whom the values are that go on.
    type Row = (&'static str, &'static [Packet], Reason, Option<(u32, u32)>, &'static [usize]);
    let table: [Row; 16] = [
        ("first", &[Rank(0, 9, 0)], Reason::Added, Some((9, 1)), &[]),
        ("second", &[Rank(0, 9, 0), Rank(2, 9, 0)], Reason::Added, Some((9, 5)), &[]),
        ("last", &[Rank(0, 9, 0), Rank(2, 9, 0), Rank(1, 9, 0)], Reason::Forwarded, Some((9, 7)), &[0, 1, 2]),
        ("twice", &[Rank(0, 9, 0), Rank(0, 9, 0)], Reason::Duplicate, Some((9, 1)), &[]),
        ("another chunk", &[Rank(0, 9, 0), Rank(0, 8, 0)], Reason::Collided, Some((9, 1)), &[0]),
        ("sent again to nothing", &[Rank(0, 9, AGAIN)], Reason::Passed, None, &[0]),
        (
            "sent again, is in",
            &[Rank(0, 9, 0), Rank(2, 9, 0), Rank(0, 9, AGAIN)],
            Reason::Flushed,
            None,
            &[0, 2],
        ),
        ("sent again, is not in", &[Rank(0, 9, 0), Rank(1, 9, AGAIN)], Reason::Flushed, None, &[0, 1]),
        (
            "sent again to a complete one",
            &[Rank(0, 9, 0), Rank(2, 9, 0), Rank(1, 9, 0), Rank(1, 9, AGAIN)],
            Reason::Flushed,
            None,
            &[0, 1, 2],
        ),
        ("sent again to another's", &[Rank(0, 9, 0), Rank(1, 8, AGAIN)], Reason::Passed, Some((9, 1)), &[1]),
        ("floats", &[Rank(0, 9, FLOATS)], Reason::Passed, None, &[0]),
        ("floats to the chunk's integers", &[Rank(0, 9, 0), Rank(1, 9, FLOATS)], Reason::Passed, None, &[1]),
        ("a result to nothing", &[Host(9)], Reason::Concluded, None, &[9]),
        ("a result", &[Rank(0, 9, 0), Rank(2, 9, 0), Rank(1, 9, 0), Host(9)], Reason::Concluded, None, &[9]),
        ("another's result", &[Rank(0, 9, 0), Host(8)], Reason::Concluded, Some((9, 1)), &[9]),
        (
            "a contribution after the result",
            &[Rank(0, 9, 0), Host(9), Rank(1, 9, 0)],
            Reason::Added,
            Some((9, 2)),
            &[],
        ),
    ];
    let job = dynamic_job(3, 20);
    let bench = Bench::new(std::slice::from_ref(&job));
    for (slot, (what, packets, reason, after, goes_on)) in (0..).zip(table) {
        let (last, before) = packets.split_last().unwrap();
        before.iter().for_each(|packet| drop(show(&bench, &job, slot, *packet)));
        let shown = show(&bench, &job, slot, *last);
        let verdict = if goes_on.is_empty() { DROP } else { REDIRECT };
        assert_eq!((shown.verdict, shown.reason), (verdict, reason), "{what}");
        let seq = match *last {
            Rank(_, seq, _) | Host(seq) => seq,
        };
        if !goes_on.is_empty() {
            let got = answer(&shown.out);
            assert_eq!(got.values, sum(goes_on.iter().copied(), seq, 20), "{what}: values");
            check_way(what, &got, reason, goes_on);
        }
        let slot = bench.dynamic_slot(slot);
        let expected = after.map_or(SlotMeta::default(), |(seq, bitmap)| SlotMeta {
            owner: owner(job.job, job.epoch, 0),
            seq,
            bitmap,
            tensor: 7,
            stamp: slot.meta.stamp,
            elements: 20,
            ..SlotMeta::default()
        });
        assert_eq!(slot.meta, expected, "{what}: slot");
        assert_eq!(slot.lock, 0, "{what}: lock");
    }
}

/// Where a packet goes, and what its header says.
fn check_way(what: &str, got: &Answer, reason: Reason, ranks: &[usize]) {
    assert_eq!(got.frame.dscp_ecn, ECT, "{what}: may be marked");
    if reason == Reason::Concluded {
        assert_eq!(got.macs[0], [0; 6], "{what}: a copy for each port");
        assert_eq!((got.header.kind, got.header.flags), (Kind::Result as u8, 0), "{what}");
        return;
    }
    let to = host(0);
    assert_eq!((got.frame.dst_ip, got.frame.dst_port), (to.ip.to_bits(), to.port), "{what}");
    assert_eq!(
        (got.frame.src_ip, got.macs),
        (to.aggregator_ip.to_bits(), [to.mac, to.aggregator_mac]),
        "{what}"
    );
    assert_eq!(got.header.kind, Kind::Contribution as u8, "{what}");
    assert_eq!(got.header.bitmap_0, ranks.iter().map(|rank| 1 << rank).sum::<u32>(), "{what}");
    let marks = match reason {
        Reason::Collided => flag::LEVEL | flag::RESEND | flag::COLLISION,
        Reason::Flushed => flag::LEVEL | flag::RESEND,
        _ => flag::LEVEL | got.header.flags & (flag::RESEND | flag::RAW_FLOAT),
    };
    assert_eq!(got.header.flags, marks, "{what}");
}
