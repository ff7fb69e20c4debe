//! A worker's part in sums, over a socket in place of a daemon's.

use std::net::UdpSocket;

use sumac_control::{Grant, Member};
use sumac_wire::{
    Header, Kind,
    header::{HEADER_LEN, flag},
    stream::place,
};

fn value(rank: u16, seq: u32, i: usize) -> i32 {
    (seq as i32 * 31 + i as i32 * 7 - 500) * (i32::from(rank) + 1)
}

/// Sends `rank`'s part of chunk `seq` until the sum comes, and checks every element. `slots` are its lane's.
pub fn sum(rank: u16, member: &Member, socket: &UdpSocket, slots: u32, seq: u32) {
    let Grant { terms, placement } = member.grant();
    let place = place(seq, slots.ilog2());
    let header = Header {
        kind: Kind::Contribution as u8,
        flags: if place.version == 1 { flag::POOL_VERSION } else { 0 },
        job: terms.job,
        epoch: terms.epoch,
        seq,
        received: seq,
        slot: place.slot,
        fan_in_0: placement.rack_world as u8,
        elements: terms.elements,
        bitmap_0: 1 << placement.rack_rank,
        token: terms.token,
        ..Header::default()
    };
    let values = (0..usize::from(terms.elements)).flat_map(|i| value(rank, seq, i).to_be_bytes());
    let packet: Vec<u8> = header.to_bytes().into_iter().chain(values).collect();
    let mut buffer = [0; 4096];
    for _ in 0..100 {
        socket.send_to(&packet, (placement.aggregator_ip, placement.base_port)).unwrap();
        while let Ok(len) = socket.recv(&mut buffer) {
            let result = Header::read(&buffer[..], 0, len).unwrap();
            if result.kind != Kind::Result as u8 || result.seq != seq {
                continue;
            }
            assert_eq!(result.contributors, terms.world);
            for (i, bytes) in buffer[HEADER_LEN..len].chunks(4).enumerate() {
                let expected: i32 = (0..terms.world).map(|rank| value(rank, seq, i)).sum();
                let sum = i32::from_be_bytes(bytes.try_into().unwrap());
                assert_eq!(sum, expected, "rank {rank} chunk {seq} element {i}");
            }
            return;
        }
    }
    panic!("rank {rank}: no result for chunk {seq}");
}
