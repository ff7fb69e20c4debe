//! Frames that leave the model, and those that vectors expect.

use std::{fmt, net::Ipv4Addr};

use sumac_vectors::{
    packets::BASE_PORT,
    record::{Host, Job, Step, To},
};
use sumac_wire::{Header, bytes::Bytes as _, checksum, header::HEADER_LEN};

/// A frame at a port.
#[derive(PartialEq, Eq)]
pub struct Left {
    port: u32,
    content: Result<Datagram, Vec<u8>>,
}

/// The fields of a packet that left. Everything else in its headers is fixed.
#[derive(Clone, PartialEq, Eq)]
struct Datagram {
    dst_mac: Vec<u8>,
    src_mac: Vec<u8>,
    tos: u8,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    src_port: u16,
    dst_port: u16,
    payload: Vec<u8>,
}

/// Returns the offset of a frame's IPv4 header.
pub fn l3(frame: &[u8]) -> usize {
    if frame.be16(12) == Some(0x8100) { 18 } else { 14 }
}

impl Left {
    /// A frame that is no whole UDP datagram without a UDP checksum and with IPv4's right is kept as it is.
    pub fn of(port: u32, frame: &[u8]) -> Left {
        Left { port, content: Datagram::of(frame).ok_or_else(|| frame.to_vec()) }
    }
}

impl Datagram {
    fn of(frame: &[u8]) -> Option<Datagram> {
        let l3 = l3(frame);
        let is_ipv4 =
            frame.be16(l3 - 2)? == 0x0800 && frame.be16(l3)? >> 8 == 0x45 && frame.u8(l3 + 9)? == 17;
        let ip = frame.get(l3..l3 + 20)?;
        let len = usize::from(frame.be16(l3 + 2)?);
        let udp_len = usize::from(frame.be16(l3 + 24)?);
        let is_whole = len == 20 + udp_len && frame.len() == l3 + len;
        let has_no_checksum = frame.be16(l3 + 26)? == 0;
        if !is_ipv4 || !is_whole || !has_no_checksum || !checksum::is_intact(checksum::add(0, ip)) {
            return None;
        }
        Some(Datagram {
            dst_mac: frame[..6].to_vec(),
            src_mac: frame[6..12].to_vec(),
            tos: ip[1],
            src: Ipv4Addr::from_bits(frame.be32(l3 + 12)?),
            dst: Ipv4Addr::from_bits(frame.be32(l3 + 16)?),
            src_port: frame.be16(l3 + 20)?,
            dst_port: frame.be16(l3 + 22)?,
            payload: frame[l3 + 28..].to_vec(),
        })
    }
}

/// Returns the frames that a step lets leave.
pub fn expected(step: &Step, job: Option<&Job>) -> Vec<Left> {
    let (Some(answer), Some(job)) = (&step.answer, job) else { return Vec::new() };
    let shard_port = step.frame.be16(l3(&step.frame) + 22).unwrap();
    let to = |host: &Host| Left {
        port: host.interface,
        content: Ok(Datagram {
            dst_mac: host.mac.clone(),
            src_mac: host.aggregator_mac.clone(),
            tos: answer.tos,
            src: host.aggregator_ip,
            dst: host.ip,
            src_port: shard_port,
            dst_port: host.port + (shard_port - BASE_PORT),
            payload: answer.payload.clone(),
        }),
    };
    match answer.to {
        To::All => job.workers.iter().map(to).collect(),
        To::Worker(rank) => vec![to(&job.workers[usize::from(rank)])],
        To::Parent(number) => vec![to(&job.parents[usize::from(number)])],
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let datagram = match &self.content {
            Ok(datagram) => datagram,
            Err(frame) => return write!(f, "port {}: {frame:02x?}", self.port),
        };
        let Datagram { dst_mac, src_mac, tos, src, dst, src_port, dst_port, payload } = datagram;
        writeln!(
            f,
            "port {}: {src_mac:02x?} > {dst_mac:02x?}, {src}:{src_port} > {dst}:{dst_port}, tos {tos:#x}",
            self.port
        )?;
        let header = Header::read(&payload[..], 0, payload.len());
        let values = payload.get(HEADER_LEN..).unwrap_or_default().as_chunks::<4>().0.iter();
        let values: Vec<i32> = values.map(|word| i32::from_be_bytes(*word)).collect();
        write!(f, "{header:?}\n{values:?}")
    }
}
