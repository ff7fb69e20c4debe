//! The jobs that this host is a parameter host of, on one thread: it has their shards as it would have their lanes.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
};

use nix::unistd::{SysconfVar, sysconf};
use sumac_parameter::{HostStats, ParameterHost, Sending, Worker};
use sumac_wire::{
    Kind,
    admit::payload_len,
    header::{ELEMENT_LEN, HEADER_LEN},
};

use super::{
    command::{HostPlan, HostingError},
    links::thread_of,
    port::{Attempt, Outgoing, Peer, Port, Received},
};

/// Packets before the workers' lanes have their turn, and before a kick.
const TURN: usize = 64;
/// What part of this host's memory chunks may take, all threads together.
const PART_OF_MEMORY: u64 = 4;

/// What the thread must know of a job besides what its sums need.
struct Job {
    number: u16,
    shards: u16,
    /// By address: where its packets leave to.
    macs: Vec<(Ipv4Addr, [u8; 6])>,
}

/// The parameter host of one thread.
pub(super) struct Hosted {
    host: ParameterHost,
    thread: usize,
    threads: usize,
    /// The UDP port of this host that packets of shard 0 come to.
    base_port: u16,
    jobs: Vec<Job>,
}

/// Whether a payload is for a parameter host and not for an engine.
pub(super) fn is_request(payload: &[u8]) -> bool {
    let kind = payload.first().and_then(|first| Kind::from_number(first & 0x0f));
    matches!(kind, Some(Kind::Contribution | Kind::Probe))
}

impl Hosted {
    /// That of one of so many threads; shard 0 comes to UDP port `base_port`.
    pub(super) fn new(thread: usize, threads: usize, base_port: u16) -> Hosted {
        let memory = host_memory() / PART_OF_MEMORY / threads.max(1) as u64;
        Hosted { host: ParameterHost::with_memory(memory), thread, threads, base_port, jobs: Vec::new() }
    }

    pub(super) fn add(&mut self, plan: HostPlan, port: &dyn Port) -> Result<(), HostingError> {
        let HostPlan { job, peers } = plan;
        let (needed, capacity) = (payload_len(job.elements), port.capacity());
        if needed > capacity {
            let elements = capacity.saturating_sub(HEADER_LEN) / ELEMENT_LEN;
            return Err(HostingError::TooLong { needed, capacity, elements });
        }
        let macs = macs(&peers, job.workers.iter().map(|worker| worker.address).chain(job.upstream.clone()))?;
        let entry = Job { number: job.job, shards: job.shards, macs };
        let (thread, threads, shards) = (self.thread, self.threads, job.shards);
        self.host.install_lanes(job, |lane| thread_of(lane, shards, threads) == thread)?;
        self.jobs.push(entry);
        Ok(())
    }

    pub(super) fn remove(&mut self, job: u16) -> bool {
        self.jobs.retain(|entry| entry.number != job);
        self.host.remove(job)
    }

    /// Goes on under another incarnation: see [`ParameterHost::renew`].
    pub(super) fn renew(
        &mut self,
        job: u16,
        epoch: u16,
        workers: Vec<Worker>,
        peers: &[Peer],
    ) -> Result<Vec<u32>, HostingError> {
        let mut known = macs(peers, workers.iter().map(|worker| worker.address))?;
        let firsts = self.host.renew(job, epoch, workers)?;
        if let Some(entry) = self.jobs.iter_mut().find(|entry| entry.number == job) {
            // The aggregators are where they were.
            known.extend(entry.macs.iter().copied());
            known.sort_by_key(|(ip, _)| *ip);
            known.dedup_by_key(|(ip, _)| *ip);
            entry.macs = known;
        }
        Ok(firsts)
    }

    /// The shard that a payload of this job came by, and the thread that has it; `None`: of no job here.
    pub(super) fn place(&self, job: u16, received: &Received) -> Option<(u16, usize)> {
        let entry = self.jobs.iter().find(|entry| entry.number == job)?;
        let shard = received.port.wrapping_sub(self.base_port);
        (shard < entry.shards).then(|| (shard, thread_of(shard, entry.shards, self.threads)))
    }

    /// Gives it a payload of a shard of this thread's.
    pub(super) fn on_payload(&mut self, received: &Received, shard: u16, payload: &[u8]) {
        self.host.on_packet(received.from, shard, payload, received.is_marked);
    }

    /// Sends up to a turn of packets; says whether there may be more.
    pub(super) fn take_turn(&mut self, port: &mut dyn Port) -> io::Result<bool> {
        let Hosted { host, jobs, .. } = self;
        for _ in 0..TURN {
            if host.is_idle() {
                return Ok(false);
            }
            let mut build = |bytes: &mut [u8]| {
                std::iter::from_fn(|| host.poll_transmit(bytes)).find_map(|sending| outgoing(jobs, &sending))
            };
            match port.transmit(&mut build)? {
                Attempt::Staged => {}
                Attempt::Nothing | Attempt::Full => return Ok(false),
            }
        }
        Ok(!host.is_idle())
    }

    pub(super) fn stats(&self) -> HostStats {
        self.host.stats()
    }
}

/// A packet on its way; every job knows the ways to all its members.
fn outgoing(jobs: &[Job], sending: &Sending) -> Option<Outgoing> {
    let Sending { len, to, entropy, dscp_ecn, checksum, .. } = *sending;
    let job = jobs.iter().find(|entry| entry.number == sending.job)?;
    Some(Outgoing { len, to, mac: job.mac(*to.ip())?, entropy, dscp_ecn, checksum })
}

impl Job {
    fn mac(&self, ip: Ipv4Addr) -> Option<[u8; 6]> {
        let at = self.macs.binary_search_by_key(&ip, |(ip, _)| *ip).ok()?;
        self.macs.get(at).map(|(_, mac)| *mac)
    }
}

/// The MAC addresses of all that packets go to, by address.
fn macs(
    peers: &[Peer],
    addresses: impl Iterator<Item = SocketAddrV4>,
) -> Result<Vec<(Ipv4Addr, [u8; 6])>, HostingError> {
    let mac = |address: SocketAddrV4| {
        let ip = *address.ip();
        let peer = peers.iter().find(|peer| peer.ip == ip).ok_or(HostingError::NoWay { ip })?;
        Ok((ip, peer.mac))
    };
    let mut macs = addresses.map(mac).collect::<Result<Vec<_>, HostingError>>()?;
    macs.sort_by_key(|(ip, _)| *ip);
    macs.dedup();
    Ok(macs)
}

/// Bytes of memory in this host; without bound when it does not say.
fn host_memory() -> u64 {
    let number = |variable| sysconf(variable).ok().flatten().and_then(|number| u64::try_from(number).ok());
    match (number(SysconfVar::_PHYS_PAGES), number(SysconfVar::PAGE_SIZE)) {
        (Some(pages), Some(size)) => pages.saturating_mul(size),
        _ => u64::MAX,
    }
}
