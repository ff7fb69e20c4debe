//! Malformed, forged or foreign packets are counted, and change no answer to valid ones.

use std::net::SocketAddrV4;

use proptest::{collection::vec, prelude::*, sample::Index};
use sumac_parameter::ParameterHost;
use sumac_wire::{
    Header, Reason, Time,
    header::{HEADER_LEN, flag, offset},
};

use crate::support::*;

const RACKS: [u32; 2] = [2, 3];

/// Chunks of a stream, and what every worker says of each.
fn stream() -> Vec<(SocketAddrV4, Vec<u8>)> {
    let job = job(&RACKS);
    let mut packets = Vec::new();
    for seq in 0..6 {
        for (rank, worker) in job.workers.iter().enumerate() {
            let header = header(&RACKS, worker.rack.into(), worker.bit.into(), seq);
            let (from, header) = match (rank + seq as usize) % 3 {
                0 => (address(&job, rank), direct(header)),
                _ => (aggregator(), passed(header)),
            };
            packets.push((from, packet(&header, &[rank as i32 + seq as i32; 4])));
        }
    }
    packets
}

fn host() -> ParameterHost {
    let mut host = ParameterHost::new();
    host.install(job(&RACKS)).unwrap();
    host
}

/// A change of a valid packet.
#[derive(Clone, Debug)]
enum Harm {
    Noise(Vec<u8>),
    Cut(Index),
    Longer,
    From,
    /// A byte of the header that tells whose it is, or what.
    Byte(Index, u8),
    Shard,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        vec(any::<u8>(), 0..120).prop_map(Harm::Noise),
        any::<Index>().prop_map(Harm::Cut),
        Just(Harm::Longer),
        Just(Harm::From),
        (any::<Index>(), 1..=u8::MAX).prop_map(|(at, bits)| Harm::Byte(at, bits)),
        Just(Harm::Shard),
    ]
}

/// Bytes whose change no good packet survives: version, type, format, job, epoch, token, element count, lane.
const IDENTITY: [usize; 16] = [
    offset::VERSION_KIND,
    offset::JOB,
    offset::JOB + 1,
    offset::EPOCH,
    offset::EPOCH + 1,
    offset::ELEMENTS,
    offset::ELEMENTS + 1,
    offset::LANE,
    offset::TOKEN,
    offset::TOKEN + 1,
    offset::TOKEN + 2,
    offset::TOKEN + 3,
    offset::TOKEN + 4,
    offset::TOKEN + 5,
    offset::TOKEN + 6,
    offset::TOKEN + 7,
];

fn harmed(good: &(SocketAddrV4, Vec<u8>), harm: &Harm) -> (SocketAddrV4, u16, Vec<u8>) {
    let (from, bytes) = good;
    let (mut from, mut shard, mut bytes) = (*from, 1, bytes.clone());
    match harm {
        Harm::Noise(noise) => bytes.clone_from(noise),
        Harm::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Harm::Longer => bytes.push(0),
        Harm::From => from = STRANGER,
        Harm::Byte(at, bits) => {
            let at = IDENTITY[at.index(IDENTITY.len())];
            // A probe of a known worker is no harm.
            let bits = if at == offset::VERSION_KIND { bits | 0x10 } else { *bits };
            bytes[at] ^= bits;
        }
        Harm::Shard => shard = 0,
    }
    (from, shard, bytes)
}

proptest! {
    #[test]
    fn harm_is_counted_and_changes_nothing(harms in vec((any::<Index>(), harm()), 0..200)) {
        let stream = stream();
        let (mut quiet, mut harmed_host) = (host(), host());
        let mut harms = harms.into_iter();
        for (from, bytes) in &stream {
            for (index, harm) in harms.by_ref().take(7) {
                let (from, shard, bytes) = harmed(&stream[index.index(stream.len())], &harm);
                let reason = harmed_host.on_packet(Time(0), from, shard, &bytes, true);
                prop_assert!(reason.is_refusal(), "{:?} was {}", harm, reason.name());
            }
            let reasons = [&mut quiet, &mut harmed_host].map(|host| host.on_packet(Time(0), *from, 1, bytes, false));
            prop_assert_eq!(reasons[0], reasons[1]);
            prop_assert_eq!(sent(&mut quiet), sent(&mut harmed_host));
        }
        prop_assert_eq!(quiet.stats().job(JOB).unwrap().completed, 6);
    }

    #[test]
    fn no_header_panics(
        fields in vec(any::<u8>(), HEADER_LEN),
        members in vec(any::<Index>(), 0..8),
        elements in 0..=ELEMENTS,
    ) {
        // A member that has lost its mind: token, epoch and source are right.
        let mut host = host();
        let good = Header::fields(&fields[..], 0).unwrap();
        for member in members {
            let (from, bytes) = &stream()[member.index(stream().len())];
            let own = Header::fields(&bytes[..], 0).unwrap();
            let flags = [good.flags, good.flags & (flag::RAW_FLOAT | flag::RESEND)];
            for flags in flags {
                let header = Header {
                    flags,
                    kind: own.kind,
                    format: 0,
                    elements,
                    seq: good.seq % 32,
                    tensor: own.tensor,
                    slot: good.slot,
                    exponent: good.exponent,
                    ..own
                };
                host.on_packet(Time(0), *from, 1, &packet(&header, &vec![-1; elements.into()]), false);
                sent(&mut host);
            }
        }
    }
}

#[test]
fn what_cannot_be_answered_yet_comes_again() {
    let mut host = host();
    let job = job(&RACKS);
    let probe = Header { kind: 3, ..header(&RACKS, 0, 0, 0) };
    let from = address(&job, 0);
    let answered =
        (0..100_000).take_while(|_| give(&mut host, from, &probe, &[0; 4]) == Reason::Probed).count();
    assert!((1_000..100_000).contains(&answered), "{answered}");
    let own = direct(header(&RACKS, 0, 0, 0));
    assert_eq!(give(&mut host, from, &own, &[1; 4]), Reason::Busy);
    assert_eq!(sent(&mut host).len(), answered);
    assert_eq!(give(&mut host, from, &own, &[1; 4]), Reason::Added, "as if the first had been lost");
}
