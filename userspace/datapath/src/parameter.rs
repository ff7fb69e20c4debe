//! The parameter host of one thread: the shards that would be its lanes.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use nix::unistd::{SysconfVar, sysconf};
use sumac_parameter::{ParameterHost, Sending, Worker};
use sumac_wire::{Time, admit::payload_len};

use super::frame_io::{FrameIo, Outgoing, Peer, Received, TurnEnd, take_turn};
use super::handoff::thread_of;
use super::job::{InstallError, ParameterJob};
use super::lane::check_capacity;

/// The part of this host's memory that chunks may take on all threads together: one fourth.
const MEMORY_DIVISOR: u64 = 4;

struct Job {
    shards: u16,
    /// The MAC address of each peer or of the next hop, by the peer's address.
    macs: BTreeMap<Ipv4Addr, [u8; 6]>,
}

pub(super) struct ThreadParameterHost {
    pub(super) host: ParameterHost,
    thread: usize,
    threads: usize,
    /// The UDP port of shard 0.
    base_port: u16,
    /// By their numbers in packets.
    jobs: BTreeMap<u16, Job>,
}

impl ThreadParameterHost {
    pub(super) fn new(thread: usize, threads: usize, base_port: u16) -> ThreadParameterHost {
        let memory = host_memory() / MEMORY_DIVISOR / threads.max(1) as u64;
        let host = ParameterHost::with_memory(memory);
        ThreadParameterHost { host, thread, threads, base_port, jobs: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, plan: ParameterJob, io: &dyn FrameIo) -> Result<(), InstallError> {
        let ParameterJob { job, peers } = plan;
        check_capacity(payload_len(job.elements), io)?;
        let macs = macs(&peers, job.workers.iter().map(|worker| worker.address).chain(job.upstream.clone()))?;
        let (number, entry) = (job.job, Job { shards: job.shards, macs });
        let (thread, threads, shards) = (self.thread, self.threads, job.shards);
        self.host.install_lanes(job, |lane| thread_of(lane, shards, threads) == thread)?;
        self.jobs.insert(number, entry);
        Ok(())
    }

    /// Returns whether the job was installed.
    pub(super) fn remove(&mut self, job: u16) -> bool {
        self.jobs.remove(&job);
        self.host.remove(job)
    }

    /// Continues in another epoch. Returns the first chunk of each lane that is not summed.
    pub(super) fn renew(
        &mut self,
        job: u16,
        epoch: u16,
        workers: Vec<Worker>,
        peers: &[Peer],
    ) -> Result<Vec<u32>, InstallError> {
        let macs = macs(peers, workers.iter().map(|worker| worker.address))?;
        let firsts = self.host.renew(job, epoch, workers)?;
        if let Some(entry) = self.jobs.get_mut(&job) {
            // The aggregators' addresses do not change.
            entry.macs.extend(macs);
        }
        Ok(firsts)
    }

    /// Returns the shard whose port a packet arrived at, and the thread of that shard; `None` for an unknown
    /// job.
    pub(super) fn shard(&self, received: &Received<'_>) -> Option<(u16, usize)> {
        let entry = self.jobs.get(&received.header.job)?;
        let shard = received.port.wrapping_sub(self.base_port);
        (shard < entry.shards).then(|| (shard, thread_of(shard, entry.shards, self.threads)))
    }

    pub(super) fn on_received(&mut self, now: Time, shard: u16, received: Received<'_>) {
        let Received { from, header, elements, is_marked, .. } = received;
        self.host.on_parsed_packet(now, from, shard, header, elements, is_marked);
    }

    /// Sends up to a turn of packets. Returns whether there may be more.
    pub(super) fn take_turn(&mut self, io: &mut dyn FrameIo) -> io::Result<bool> {
        let ThreadParameterHost { host, jobs, .. } = self;
        if host.is_idle() {
            return Ok(false);
        }
        let end = take_turn(io, &mut |bytes| {
            std::iter::from_fn(|| host.poll_transmit(bytes)).find_map(|sending| outgoing(jobs, &sending))
        })?;
        Ok(end == TurnEnd::More)
    }
}

fn outgoing(jobs: &BTreeMap<u16, Job>, sending: &Sending) -> Option<Outgoing> {
    let Sending { len, to, path, dscp_ecn, checksum, .. } = *sending;
    let job = jobs.get(&sending.job)?;
    Some(Outgoing { len, to, mac: *job.macs.get(to.ip())?, path, dscp_ecn, checksum })
}

/// Returns the MAC addresses of the peers with these addresses.
fn macs(
    peers: &[Peer],
    addresses: impl Iterator<Item = SocketAddrV4>,
) -> Result<BTreeMap<Ipv4Addr, [u8; 6]>, InstallError> {
    let mac = |address: SocketAddrV4| {
        let ip = *address.ip();
        let peer = peers.iter().find(|peer| peer.ip == ip).ok_or(InstallError::NoAddress { ip })?;
        Ok((ip, peer.mac))
    };
    addresses.map(mac).collect()
}

/// Returns this host's memory in bytes; `u64::MAX` when it is unknown.
pub fn host_memory() -> u64 {
    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}
