//! The report of a run: one JSON object, or a few lines for people.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use sumac_client::{CollectiveKind, DType, Scale};
use sumac_wire::header::HEADER_LEN;

use super::counters::{Drops, Frames, Modes, PacketsPerMessage, RoundTrips};
use super::dynamic::{Dynamic, HostReport};
use super::jobs::JobReport;
use super::loss::LossReport;
use super::measured::{Counted, Measured};
use super::options::{Operation, RunOptions};
use super::reference_sum::ReferenceSum;
use crate::cable::CableCounters;
use crate::capture::Captured;
use crate::clock::{Times, seconds};
use crate::cpu::{CpuTime, MachineTime};
use crate::deployment::Deployment;
use crate::shaper::BURST_BYTES;
use crate::spec::Topology;
use crate::trace::Trace;

/// Ethernet, IPv4 and UDP headers of a frame.
const FRAME_HEADERS: usize = 14 + 20 + 8;

/// The report of a run. Times are of the measured iterations, counters of the whole job.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub workers: u16,
    /// Workers of each rack; none with one level.
    pub workers_per_rack: Option<u16>,
    #[serde(flatten)]
    pub operation: Operation,
    /// `allreduce`, or of a direct job also `allgather` or `reduce_scatter`.
    pub collective: CollectiveKind,
    /// The factor for floats: a number, or `block`.
    pub scale: Scale,
    /// 32-bit words per packet.
    pub chunk: u16,
    /// `xdp` or `udp`.
    pub backend: &'static str,
    /// The kind of the aggregators: `ebpf`, `host`, `bmv2`, or `none`.
    pub aggregator: &'static str,
    /// The modes as bound.
    pub modes: Modes,
    /// Of UDP sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets_per_message: Option<PacketsPerMessage>,
    /// Seconds to aggregate: from the first worker's start to the last worker's sum, of all jobs.
    pub tat_s: Times,
    /// Aggregated elements of all jobs per second per worker, by the median.
    pub ate_per_s: f64,
    /// Bits of tensor per second per worker and direction, by the median.
    pub goodput_bits_per_s: f64,
    /// The time that all frames of one direction take at the cable's rate, headers included, as part of the
    /// median, less what an idle cable lets pass at once; none without a rate.
    pub link_efficiency: Option<f64>,
    /// Each job: one, or as many as were to sum at the same time.
    pub jobs: Vec<JobReport>,
    /// Whether every element of every worker has the bits of the reference.
    pub verified: bool,
    pub wrong_elements: u64,
    /// Largest distance to the sum in double precision without rounding.
    pub max_abs_error: f64,
    /// Chunks sent again by all workers.
    pub retransmits: u64,
    /// Frames by kind.
    pub frames: Frames,
    /// Frames that were not taken, by whom and why.
    pub drops: Drops,
    /// CPU seconds of daemons and aggregator process during the measured allreduces.
    pub cpu_s: CpuTime,
    /// CPU seconds of the whole machine meanwhile: XDP programs, veths and bridges run in interrupts, which
    /// belong to no process.
    pub machine_cpu_s: MachineTime,
    /// Slots of each of the job's lanes.
    pub slots: u32,
    pub slots_reason: String,
    /// Shards, each with its queue of every interface.
    pub shards: u16,
    /// Round trips of chunks that were sent once.
    pub rtt_s: Option<RoundTrips>,
    /// Measured allreduces.
    pub iterations: u32,
    /// The seed of the tensors' values. The cables' faults are not repeatable: nftables takes no seed.
    pub seed: u64,
    /// The topology of workers and aggregator.
    pub topology: Topology,
    /// MTU of every interface.
    pub mtu: u32,
    /// Bits per second of each cable.
    pub rate: Option<u64>,
    /// The cables' faults, all together.
    pub injected: CableCounters,
    /// The missing contributions, of operations with a loss bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossReport>,
    /// The part that only dynamic jobs have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<Dynamic>,
    /// The frames that worker 0 sent in each 10 ms, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// The files of captured frames, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub captured: Vec<Captured>,
}

impl Report {
    pub(super) fn new(
        deployment: &Deployment<'_>,
        options: &RunOptions,
        measured: &Measured,
        counted: &Counted,
    ) -> Report {
        let Counted { opened, stats, jobs, parameter_hosts, aggregators, injected } = counted;
        let spec = deployment.lab().spec();
        let times = Times::of_spans(&measured.spans);
        let Operation { elements, dtype, reduction, .. } = options.operation;
        let summed = elements * usize::from(options.jobs);
        let of_a_job =
            wire_bytes(elements, ReferenceSum::of(opened, reduction, options.operation.loss_bound), dtype);
        let bits = of_a_job as f64 * f64::from(options.jobs) * 8.0;
        let at_once = BURST_BYTES as f64 * 8.0;
        let frames = Frames::of(stats, aggregators);
        Report {
            workers: spec.workers,
            workers_per_rack: spec.rack_size(),
            operation: options.operation,
            collective: options.sumac.collective(),
            scale: opened.scale,
            chunk: opened.elements,
            backend: options.sumac.backend.name(),
            aggregator: options.sumac.aggregator().name(),
            modes: Modes::of(options.sumac.aggregator(), stats, aggregators),
            packets_per_message: PacketsPerMessage::of(stats, aggregators),
            tat_s: times,
            ate_per_s: summed as f64 / times.median,
            goodput_bits_per_s: (summed * dtype.size()) as f64 * 8.0 / times.median,
            link_efficiency: spec.rate.map(|rate| (bits - at_once).max(0.0) / rate.0 as f64 / times.median),
            jobs: jobs.clone(),
            verified: measured.comparison.wrong == 0,
            wrong_elements: measured.comparison.wrong,
            max_abs_error: measured.comparison.max_abs_error,
            retransmits: frames.resent,
            frames,
            drops: Drops::of(stats, aggregators),
            cpu_s: measured.cpu,
            machine_cpu_s: measured.machine,
            slots: opened.slots,
            slots_reason: opened.slots_reason.clone(),
            shards: opened.shards,
            rtt_s: RoundTrips::of(stats),
            iterations: options.iterations,
            seed: options.seed,
            topology: spec.topology,
            mtu: spec.mtu,
            rate: spec.rate.map(|rate| rate.0),
            injected: *injected,
            loss: LossReport::of(&measured.losses),
            dynamic: Dynamic::of(opened, options.sumac.dynamic, stats, parameter_hosts),
            trace: measured.trace.clone(),
            captured: Vec::new(),
        }
    }
}

/// Bytes that a tensor takes on a cable in one direction, with all headers.
fn wire_bytes(elements: usize, reference: ReferenceSum, dtype: DType) -> usize {
    let words = elements.div_ceil(reference.values_per_word(dtype));
    words * 4 + words.div_ceil(reference.words.max(1)) * (FRAME_HEADERS + HEADER_LEN)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { median, min, max, .. } = self.tat_s;
        let [median, min, max] = [median, min, max].map(seconds);
        let join = |modes: &BTreeSet<String>| modes.iter().cloned().collect::<Vec<_>>().join("; ");
        let Operation { elements, dtype, ranks_per_host, .. } = self.operation;
        let (workers, chunk, dtype) = (self.workers, self.chunk, dtype.name());
        let kind = self.collective.name();
        let of_ranks = if ranks_per_host > 1 { format!(" of {ranks_per_host} ranks") } else { String::new() };
        write!(f, "{workers} workers{of_ranks}, ")?;
        writeln!(f, "{kind} of {elements} {dtype} elements, packets of {chunk} words")?;
        writeln!(f, "  workers       {}", join(&self.modes.workers))?;
        writeln!(f, "  aggregator    {}", join(&self.modes.aggregator))?;
        if let Some(run) = self.packets_per_message {
            let (out, back) = (run.workers_sent, run.aggregator_sent);
            writeln!(
                f,
                "  messages      of {out:.1} packets from workers, {back:.1} from aggregators, on average"
            )?;
        }
        writeln!(f, "  time          {median} s median of {} ({min} to {max})", self.iterations)?;
        writeln!(f, "  elements      {:.2} million/s per worker", self.ate_per_s / 1e6)?;
        if let Some(efficiency) = self.link_efficiency {
            writeln!(f, "  link          {:.1} % of its rate", efficiency * 100.0)?;
        }
        for job in self.jobs.iter().filter(|_| self.jobs.len() > 1) {
            let JobReport { name, tat_s, share, resent, collisions, .. } = job;
            let median = seconds(tat_s.median);
            writeln!(
                f,
                "  {name:<13} {median} s median, {:.1} % of all; {resent} chunks sent again, {collisions} \
                collisions",
                share * 100.0
            )?;
        }
        writeln!(f, "  retransmits   {} of {} chunks", self.retransmits, self.frames.contributions)?;
        if let Some(LossReport { spent, budget, by_worker }) = &self.loss {
            let percent = |part: &f64| format!("{:.2} %", part * 100.0);
            let each: Vec<String> = by_worker.iter().map(percent).collect();
            let (spent, budget, each) = (percent(spent), percent(budget), each.join(", "));
            writeln!(f, "  left out      {spent} of at most {budget}; by worker {each}")?;
        }
        match &self.dynamic {
            Some(dynamic) => write_dynamic(f, dynamic, self.shards)?,
            None => writeln!(
                f,
                "  slots         {} for each of {} shards: {}",
                self.slots, self.shards, self.slots_reason
            )?,
        }
        if let Some(RoundTrips { p50, p99 }) = self.rtt_s {
            writeln!(f, "  round trips   {:.3} ms median, {:.3} ms of 99 %", p50 * 1e3, p99 * 1e3)?;
        }
        if !self.captured.is_empty() {
            let sum = |count: fn(&Captured) -> u64| self.captured.iter().map(count).sum::<u64>();
            let (packets, dropped) = (sum(|file| file.packets), sum(|file| file.dropped));
            let files = self.captured.len();
            writeln!(f, "  captured      {packets} packets in {files} files; {dropped} not")?;
        }
        let CpuTime { user, system } = self.cpu_s;
        let machine = self.machine_cpu_s.total();
        writeln!(f, "  CPU           {user:.2} s user, {system:.2} s system, {machine:.2} s of the machine")?;
        let verdict = if self.verified { "every element of every worker" } else { "FAILED" };
        write!(f, "  verified      {verdict}; largest rounding error {:.1e}", self.max_abs_error)?;
        if !self.verified {
            write!(f, "; {} elements wrong", self.wrong_elements)?;
        }
        Ok(())
    }
}

fn write_dynamic(f: &mut fmt::Formatter<'_>, dynamic: &Dynamic, shards: u16) -> fmt::Result {
    let Dynamic { shared_slots, window, collisions, remapped, raw_chunks, direct, .. } = *dynamic;
    let Dynamic { halvings, marked, cwnd, .. } = *dynamic;
    writeln!(
        f,
        "  slots         {shared_slots} of each of {shards} shards, shared; {collisions} collisions, \
        {remapped} moved"
    )?;
    writeln!(
        f,
        "  window        {window}; {cwnd} allowed at the end, halved {halvings} times, {marked} results \
        marked"
    )?;
    writeln!(
        f,
        "  floats        {raw_chunks} chunks asked for; {direct} lanes without an aggregator at the end"
    )?;
    for (number, host) in dynamic.parameter_hosts.iter().enumerate() {
        let HostReport { contributions, partial_sums, full_sums, completed, bytes_in, .. } = *host;
        writeln!(
            f,
            "  host {number}        {completed} chunks of {full_sums} full sums, {partial_sums} partial \
            sums, {contributions} contributions; {:.1} MB in",
            bytes_in as f64 / 1e6
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sumac_client::{Reduction, WireFormat};

    use super::*;

    #[test]
    fn headers_count_on_the_wire() {
        let words = |words| ReferenceSum {
            ranks_per_host: 1,
            scale: None,
            wire: WireFormat::Int32,
            words,
            reduction: Reduction::Sum,
            direct: None,
            has_servers: false,
            dynamic: false,
        };
        assert_eq!(wire_bytes(256, words(256), DType::Float32), 256 * 4 + 106);
        assert_eq!(wire_bytes(257, words(256), DType::Float16), 257 * 4 + 2 * 106);
        let halves = ReferenceSum { wire: WireFormat::Int16, ..words(256) };
        assert_eq!(wire_bytes(513, halves, DType::Float32), 257 * 4 + 2 * 106);
    }
}
