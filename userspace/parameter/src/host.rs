//! All jobs of one thread: a packet in, packets out.

use std::{collections::VecDeque, net::SocketAddrV4};

use sumac_job::result_token;
use sumac_wire::{
    DEFAULT_PATHS, Header, Kind, MAX_JOBS, Reason, Time,
    admit::{dynamic as admit, payload_len},
    dynamic::host::{Action, Bits, Outcome, holds},
    header::{HEADER_LEN, flag},
    reason::COUNTERS,
    tos,
};

use crate::{
    floats::FloatStock,
    job::{HostError, HostJob, Worker},
    members::{Members, Source, count},
    outbox::{Body, Pending, ROOM, Sending, To},
    ring::{Done, Ring},
    stats::{HostStats, JobStats},
};

/// Bytes that the chunks of all jobs may take by default.
const MEMORY: u64 = 1 << 30;

/// The jobs whose sums come to one thread. Threads have nothing in common: each has the shards whose packets
/// it gets.
#[derive(Debug)]
pub struct ParameterHost {
    jobs: Vec<Option<Box<Job>>>,
    outbox: VecDeque<Pending>,
    counters: [u64; COUNTERS],
    /// Bytes that chunks may take.
    memory: u64,
    /// Bytes that those of the jobs here can take.
    reserved: u64,
    /// Not later than the first lane's deadline.
    timeout: Option<Time>,
}

#[derive(Debug)]
struct Job {
    terms: HostJob,
    result_token: u64,
    members: Members,
    /// By lane; none of a lane whose packets do not come here.
    rings: Vec<Option<Ring>>,
    reserved: u64,
    stats: JobStats,
    /// See [`ParameterHost::place_linearly`].
    is_linear: bool,
}

impl Default for ParameterHost {
    fn default() -> ParameterHost {
        ParameterHost::new()
    }
}

impl ParameterHost {
    pub fn new() -> ParameterHost {
        ParameterHost::with_memory(MEMORY)
    }

    /// Returns one whose jobs' chunks may take so many bytes together.
    pub fn with_memory(bytes: u64) -> ParameterHost {
        ParameterHost {
            jobs: std::iter::repeat_with(|| None).take(MAX_JOBS).collect(),
            outbox: VecDeque::new(),
            counters: [0; COUNTERS],
            memory: bytes,
            reserved: 0,
            timeout: None,
        }
    }

    pub fn install(&mut self, terms: HostJob) -> Result<(), HostError> {
        self.install_lanes(terms, |_| true)
    }

    /// As [`ParameterHost::install`], for the lanes that `is_here` accepts; other threads have the others.
    ///
    /// # Errors
    /// When the terms contradict the protocol, the number is taken, or its chunks could not all be kept.
    pub fn install_lanes(&mut self, terms: HostJob, is_here: impl Fn(u16) -> bool) -> Result<(), HostError> {
        terms.check()?;
        let (job, free) = (terms.job, self.memory.saturating_sub(self.reserved));
        let members = Members::new(&terms)?;
        let entry = self.jobs.get_mut(usize::from(job)).ok_or(HostError::Number(job))?;
        if entry.is_some() {
            return Err(HostError::Taken(job));
        }
        let floats =
            terms.float_chunks() as u64 * FloatStock::chunk_bytes(terms.workers.len(), terms.elements);
        let here = (0..terms.lanes).filter(|lane| is_here(*lane)).count() as u64;
        let needed = (Ring::bytes(terms.kept(), terms.elements) + floats) * here;
        if needed > free {
            return Err(HostError::Memory { job, needed, free });
        }
        let stock = || FloatStock::new(members.world(), terms.elements, terms.float_chunks());
        let racks = members.racks();
        let ring = || Ring::new(terms.kept(), terms.elements, racks, stock());
        let rings = (0..terms.lanes).map(|lane| is_here(lane).then(ring)).collect();
        let stats = JobStats { job, epoch: terms.epoch, world: members.world(), ..JobStats::default() };
        let result_token = result_token(terms.token);
        let reserved = needed;
        *entry =
            Some(Box::new(Job { terms, result_token, members, rings, reserved, stats, is_linear: false }));
        self.reserved += needed;
        Ok(())
    }

    pub fn remove(&mut self, job: u16) -> bool {
        let Some(entry) = self.jobs.get_mut(usize::from(job)).and_then(Option::take) else { return false };
        self.reserved -= entry.reserved;
        true
    }

    /// Leaves a job's chunks the slots that they begin with, busy or not: ATP's baseline (figure 14), for
    /// simulations.
    pub fn place_linearly(&mut self, job: u16) {
        if let Some(entry) = self.jobs.get_mut(usize::from(job)).and_then(Option::as_mut) {
            entry.is_linear = true;
        }
    }

    pub fn knows(&self, job: u16) -> bool {
        matches!(self.jobs.get(usize::from(job)), Some(Some(_)))
    }

    /// Continues a job in another epoch, after a worker was replaced (ATP appendix A.3): complete chunks
    /// stay, partial sums do not. `workers` have the same places, maybe at new addresses. Returns each lane's
    /// first chunk that is not summed, with which the newcomer begins.
    pub fn renew(&mut self, job: u16, epoch: u16, workers: Vec<Worker>) -> Result<Vec<u32>, HostError> {
        let entry = self.jobs.get_mut(usize::from(job)).and_then(Option::as_mut);
        let entry = entry.ok_or(HostError::Unknown(job))?;
        entry.members.renew(job, workers)?;
        entry.terms.epoch = epoch;
        entry.stats.epoch = epoch;
        entry.rings.iter_mut().flatten().for_each(Ring::renew);
        Ok(entry.rings.iter().map(|ring| ring.as_ref().map_or(0, Ring::next)).collect())
    }

    pub fn stats(&self) -> HostStats {
        let stats = |job: &Job| JobStats { direct: job.members.direct(), ..job.stats.clone() };
        HostStats {
            jobs: self.jobs.iter().flatten().map(|job| stats(job)).collect(),
            counters: self.counters,
            memory: self.reserved,
        }
    }

    /// Returns whether there is nothing to send.
    pub fn is_idle(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Parses a UDP payload and processes it: [`ParameterHost::on_parsed_packet`] for callers that have not
    /// parsed it.
    pub fn on_packet(
        &mut self,
        now: Time,
        from: SocketAddrV4,
        shard: u16,
        payload: &[u8],
        ce: bool,
    ) -> Reason {
        match Header::read(payload, 0, payload.len()) {
            Ok(header) => self.on_parsed_packet(now, from, shard, header, &payload[HEADER_LEN..], ce),
            Err(reason) => {
                self.counters[reason as usize] += 1;
                reason
            }
        }
    }

    /// Processes a packet that came from `from` by the port of `shard`; `ce`: the network marked it. Returns
    /// the reason that it was counted by.
    pub fn on_parsed_packet(
        &mut self,
        now: Time,
        from: SocketAddrV4,
        shard: u16,
        header: Header,
        elements: &[u8],
        ce: bool,
    ) -> Reason {
        let reason = self.take(now, from, shard, header, elements, ce).unwrap_or_else(|reason| reason);
        self.counters[reason as usize] += 1;
        reason
    }

    /// Returns the time of the next [`ParameterHost::on_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timeout
    }

    /// Notes which jobs wait for which workers: those of lanes that have stalled.
    pub fn on_timeout(&mut self, now: Time) {
        if self.timeout.is_none_or(|timeout| timeout > now) {
            return;
        }
        self.jobs.iter_mut().flatten().for_each(|job| job.on_timeout(now));
        let rings = self.jobs.iter().flatten().flat_map(|job| &job.rings).flatten();
        self.timeout = rings.filter_map(Ring::deadline).min();
    }

    fn take(
        &mut self,
        now: Time,
        from: SocketAddrV4,
        shard: u16,
        mut header: Header,
        elements: &[u8],
        ce: bool,
    ) -> Result<Reason, Reason> {
        let entry = self.jobs.get_mut(usize::from(header.job)).and_then(Option::as_mut);
        let job = entry.ok_or(Reason::UnknownJob)?;
        if ce {
            header.flags |= flag::ECN_ECHO;
        }
        let taken = job.take(now, &header, from, shard, elements, &mut self.outbox);
        self.timeout = self.timeout.or_else(|| job.deadline(&header));
        if taken.is_err_and(Reason::is_refusal) {
            job.stats.refused += 1;
        }
        taken
    }

    /// Writes the next packet into `out`, which has room for the longest; `None`: there is none.
    pub fn poll_transmit(&mut self, out: &mut [u8]) -> Option<Sending> {
        loop {
            let pending = self.outbox.front_mut()?;
            let job = self.jobs.get_mut(usize::from(pending.header.job)).and_then(Option::as_mut);
            match job.and_then(|job| job.write(pending, out)) {
                Some(sending) => {
                    if let To::One(_) = pending.to {
                        self.outbox.pop_front();
                    }
                    return Some(sending);
                }
                None => drop(self.outbox.pop_front()),
            }
        }
    }
}

impl Job {
    fn deadline(&self, header: &Header) -> Option<Time> {
        self.rings.get(usize::from(header.lane))?.as_ref()?.deadline()
    }

    fn on_timeout(&mut self, now: Time) {
        for ring in self.rings.iter_mut().flatten() {
            if let Some(missing) = ring.on_timeout(now, self.members.all()) {
                self.stats.stalls += 1;
                self.stats.waiting_for = self.members.ranks(&missing);
            }
        }
    }

    fn take(
        &mut self,
        now: Time,
        header: &Header,
        from: SocketAddrV4,
        shard: u16,
        elements: &[u8],
        outbox: &mut VecDeque<Pending>,
    ) -> Result<Reason, Reason> {
        let terms = admit::HostTerms {
            token: self.terms.token,
            epoch: self.terms.epoch,
            elements: self.terms.elements,
            shards: self.terms.shards,
            lanes: self.terms.lanes,
            all: self.members.all(),
        };
        let contribution = admit::to_host(header, &terms, shard)?;
        let bits = contribution.or_else(|| holds(header, self.members.all())).ok_or(Reason::WrongWorker)?;
        let source = self.members.source(from, shard, &bits, header.has(flag::LEVEL))?;
        let rank = self.members.only(&bits);
        // Floats cannot be taken out of a sum again, nor be compared as integers.
        if header.has(flag::RAW_FLOAT) && (rank.is_none() || header.has(flag::MAXIMUM)) {
            return Err(Reason::BadType);
        }
        if outbox.len() >= ROOM {
            return Err(Reason::Busy);
        }
        self.stats.bytes_in += payload_len(header.elements) as u64;
        if let Some(ring) = ring(&mut self.rings, header) {
            ring.note_received(&bits, header.received);
        }
        if contribution.is_none() {
            self.stats.probes += 1;
            let header = Header { kind: Kind::Report as u8, ..*header };
            outbox.push_back(Pending { header, shard, body: Body::Zeros, to: To::One(source) });
            return Ok(Reason::Probed);
        }
        self.count(header, &bits);
        let ring = ring(&mut self.rings, header).ok_or(Reason::WrongSlot)?;
        let done = ring.take(now, header, elements, &self.members, rank);
        if matches!(done, Done::Taken(_)) {
            self.stats.waiting_for.clear();
        }
        self.notice(header, &bits, source, done)?;
        match self.answer(header, &bits, source, done)? {
            None => Ok(Reason::Added),
            Some((reason, header, body, to)) => {
                outbox.push_back(Pending { header, shard, body, to });
                Ok(reason)
            }
        }
    }

    /// Notes the path of the workers' packets; returns the reason for which a packet had no effect.
    fn notice(&mut self, header: &Header, bits: &Bits, source: Source, done: Done) -> Result<(), Reason> {
        let refused = match done {
            Done::Left(Action::Ignore(reason)) => Some(reason),
            Done::NoRoom => Some(Reason::Busy),
            _ => None,
        };
        let is_duplicate = refused == Some(Reason::Duplicate);
        self.stats.duplicates += u64::from(is_duplicate);
        // A copy that the network had kept does not tell where its worker is now.
        if refused.is_none() || is_duplicate && header.has(flag::RESEND) {
            self.members.heard(bits, source);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Returns the packet to send after the chunk's action, if any.
    fn answer(
        &mut self,
        header: &Header,
        bits: &Bits,
        source: Source,
        done: Done,
    ) -> Result<Option<(Reason, Header, Body, To)>, Reason> {
        let (world, slots) = (self.members.world(), if self.is_linear { 0 } else { self.terms.slots });
        let ring = ring(&mut self.rings, header).ok_or(Reason::WrongSlot)?;
        let begun = if slots == 0 { 0 } else { ring.begun_after(header.seq) };
        let chunk = ring.get_mut(header.seq).ok_or(Reason::Stale)?;
        if done == Done::Taken(Outcome::Complete) {
            chunk.next_passes = self.members.are_split();
        }
        match done {
            Done::Taken(Outcome::Complete | Outcome::AskRaw) => chunk.answered(),
            Done::Left(Action::Reply | Action::AskRaw) if !chunk.is_to_answer(bits, source) => {
                self.stats.duplicates += 1;
                return Err(Reason::Duplicate);
            }
            _ => {}
        }
        let (meta, stats, all) = (&chunk.meta, &mut self.stats, self.members.all());
        let left_out = meta.is_partial(all).then(|| self.members.rank_bits(&meta.missing(all))).flatten();
        let sum = || {
            let result = match left_out {
                Some(left_out) => meta.partial_result(header, world, left_out),
                None => meta.result(header, world, slots),
            };
            let past_slots = if chunk.next_passes { flag::RESEND } else { 0 };
            let exponent = chunk.exponent.unwrap_or(result.exponent);
            Header { flags: result.flags | past_slots, bitmap_1: begun, exponent, ..result }
        };
        Ok(match done {
            Done::Taken(Outcome::Wait) => None,
            Done::Taken(Outcome::Complete) => {
                stats.completed += 1;
                stats.partial += u64::from(left_out.is_some());
                stats.raw += u64::from(meta.is_raw());
                Some((Reason::Completed, sum(), Body::Sum, To::All(0)))
            }
            Done::Left(Action::Reply) => {
                stats.replies += 1;
                Some((Reason::Replied, sum(), Body::Sum, To::One(source)))
            }
            Done::Taken(Outcome::AskRaw) | Done::Left(Action::AskRaw) => {
                stats.asked_raw += 1;
                let to = if matches!(done, Done::Taken(_)) { To::All(0) } else { To::One(source) };
                Some((Reason::AskedRaw, meta.ask(header, world), Body::Zeros, to))
            }
            Done::Left(Action::Refuse) => {
                Some((Reason::Mismatch, meta.refusal(header), Body::Zeros, To::One(source)))
            }
            Done::Left(Action::Store | Action::Add | Action::Ignore(_)) | Done::NoRoom => {
                return Err(Reason::Internal);
            }
        })
    }

    fn count(&mut self, header: &Header, bits: &Bits) {
        let stats = &mut self.stats;
        match count(bits) {
            1 => stats.contributions += 1,
            some if some == u32::from(self.members.world()) => stats.full_sums += 1,
            _ => stats.partial_sums += 1,
        }
        stats.collisions += u64::from(header.has(flag::COLLISION));
        stats.marked += u64::from(header.has(flag::ECN_ECHO));
    }

    /// Writes a pending packet for its next receiver; `None`: none is left, or its chunk is gone.
    fn write(&mut self, pending: &mut Pending, out: &mut [u8]) -> Option<Sending> {
        let Pending { header, shard, body, ref mut to } = *pending;
        // Of before the job was renewed.
        if header.epoch != self.terms.epoch {
            return None;
        }
        let (source, is_first) = match to {
            To::One(source) => (*source, false),
            To::All(next) => {
                let (source, after) = self.members.way(*next)?;
                *next = after;
                (source, true)
            }
        };
        let len = payload_len(header.elements);
        let (head, elements) = out.get_mut(..len)?.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&Header { token: self.result_token, ..header }.to_bytes());
        match body {
            Body::Zeros => elements.fill(0),
            Body::Sum => {
                let chunk = ring(&mut self.rings, &header)?.get(header.seq)?;
                chunk.write(elements);
            }
        }
        self.stats.sent += 1;
        self.stats.bytes_out += len as u64;
        let class = header.lane / self.terms.shards;
        Some(Sending {
            job: header.job,
            len,
            to: self.members.address(source, shard)?,
            // It gets no answers by which to choose: all paths in turn.
            path: (header.seq % u32::from(DEFAULT_PATHS)) as u16,
            // Repeated results and answers to probes are not ECN-capable (RFC 3168, section 6.1.5).
            dscp_ecn: match () {
                () if header.kind == Kind::Report as u8 => tos::CONTROL,
                () if is_first && self.terms.congestion_control => dscp(class) | tos::ECT_0,
                () => dscp(class),
            },
            checksum: self.terms.checksum,
        })
    }
}

fn ring<'a>(rings: &'a mut [Option<Ring>], header: &Header) -> Option<&'a mut Ring> {
    rings.get_mut(usize::from(header.lane)).and_then(Option::as_mut)
}

/// The DSCP of a class: that of the least of its priorities, 0 or 4.
fn dscp(class: u16) -> u8 {
    tos::class_selector(class.min(1) as u8 * 4)
}
