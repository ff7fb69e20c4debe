//! The file of vectors: lines of JSON. Each part has a [`Setup`], and then a [`Step`] a line.

mod spent;

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use sumac_wire::{
    dynamic,
    slot::{SlotMeta, Version},
    tables::{JobEntry, WorkerEntry, job_flag},
};

pub use spent::{LaneSpent, Spent};

/// The version of the format.
pub const FORMAT: u32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot read vectors: {0}")]
    Read(#[from] io::Error),
    #[error("line {line} is no record of vectors: {source}")]
    Line { line: usize, source: serde_json::Error },
    #[error("the first line has no jobs: it begins with `{{\"format\"`")]
    NoJobs,
    #[error("the vectors have format {0}, and this build reads format {FORMAT}: generate them anew")]
    Format(u32),
}

/// The aggregator and its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub format: u32,
    pub name: String,
    /// The seed of packets that were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The UDP port of shard 0.
    pub base_port: u16,
    pub shards: u16,
    /// Slots of the pool of static jobs.
    pub slots: u32,
    /// Slots of each shard that dynamic jobs share.
    pub dynamic_slots: u32,
    pub jobs: Vec<Job>,
}

/// A job as an aggregator's control plane installs it. The fields are those of [`JobEntry`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub job: u16,
    pub epoch: u16,
    /// Hexadecimal, as all tokens here: JSON's numbers end at 53 bits.
    #[serde(with = "hex_number")]
    pub token: u64,
    #[serde(with = "hex_number")]
    pub result_token: u64,
    /// Most elements of a chunk.
    pub elements: u16,
    pub mode: Mode,
    pub slot_base: u32,
    /// Slots of all lanes together; of a dynamic job those of each shard that its chunks may take.
    pub slots: u32,
    pub lane_slots_log2: u16,
    pub shards: u16,
    /// Workers of the whole job.
    pub contributors: u16,
    pub rack: u16,
    pub racks: u16,
    /// Whether the job's packets carry a UDP checksum that is verified.
    pub checksum: bool,
    /// Whether a completed slot takes the lane's next chunk, and not the one after two rounds.
    pub reassigns: bool,
    /// Whether all sums of static jobs hold all workers: no flushes, and `received` is not kept.
    #[serde(default, skip_serializing_if = "is_false")]
    pub whole: bool,
    /// Whether it is a static job of a switch with a budget for each lane.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bounded: bool,
    pub level: Level,
    /// By worker, the job's ranks below it as bits; of a static job of several levels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    pub workers: Vec<Host>,
    pub parents: Vec<Host>,
}

/// The use that a job makes of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// SwitchML.
    #[default]
    Static,
    /// ATP.
    Dynamic,
}

/// The aggregator's place in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    #[default]
    Only,
    Rack,
    Root,
}

/// A worker, a rack or a parent, with the aggregator's address on its side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub ip: std::net::Ipv4Addr,
    pub port: u16,
    #[serde(with = "hex_bytes")]
    pub mac: Vec<u8>,
    pub aggregator_ip: std::net::Ipv4Addr,
    #[serde(with = "hex_bytes")]
    pub aggregator_mac: Vec<u8>,
    /// The port of the aggregator that it is behind, from 0.
    pub interface: u32,
}

impl Job {
    /// Whether the pool's slot with this index is one of this static job's.
    pub fn has_slot(&self, index: u32) -> bool {
        self.mode == Mode::Static && (self.slot_base..self.slot_base + self.slots).contains(&index)
    }

    /// Whether it keeps to the profile of a switch.
    pub fn is_of_switch(&self) -> bool {
        self.whole || self.bounded
    }

    /// Returns the entries of the workers. `first_ifindex` is that of interface 0.
    pub fn worker_entries(&self, first_ifindex: u32) -> Vec<WorkerEntry> {
        let ranks = self.ranks.iter().copied().chain(std::iter::repeat(0));
        let workers = self.workers.iter().map(|host| host.entry(first_ifindex)).zip(ranks);
        workers.map(|(entry, ranks)| WorkerEntry { ranks, ..entry }).collect()
    }

    /// Returns the job's ranks of the workers with these bits.
    pub fn ranks_of(&self, workers: u32) -> u32 {
        let ranks = self.ranks.iter().enumerate();
        ranks.filter(|(rank, _)| workers >> rank & 1 == 1).fold(0, |all, (_, ranks)| all | ranks)
    }

    /// Returns the entry of the aggregator's table.
    pub fn entry(&self) -> JobEntry {
        let level = match self.level {
            Level::Only => 0,
            Level::Rack => job_flag::CHILD,
            Level::Root => job_flag::ROOT,
        };
        let given = [
            (job_flag::CHECKSUM, self.checksum),
            (job_flag::STEALING, self.reassigns),
            (job_flag::WHOLE, self.whole),
            (job_flag::LANE_BUDGET, self.bounded),
            (job_flag::DYNAMIC, self.mode == Mode::Dynamic),
        ];
        let flags = given.iter().filter(|(_, is_set)| *is_set).fold(level, |flags, (flag, _)| flags | flag);
        JobEntry {
            token: self.token,
            result_token: self.result_token,
            slot_base: self.slot_base,
            slots: self.slots,
            epoch: self.epoch,
            world: self.workers.len() as u16,
            elements: self.elements,
            flags: flags | job_flag::ACTIVE,
            contributors: self.contributors,
            shards: self.shards,
            lane_slots_log2: self.lane_slots_log2,
            rack: self.rack,
            racks: self.racks,
            hosts: self.parents.len() as u16,
            ..JobEntry::default()
        }
    }
}

impl Host {
    /// Returns the entry of the aggregator's table. `first_ifindex` is that of interface 0.
    pub fn entry(&self, first_ifindex: u32) -> WorkerEntry {
        let mac = |bytes: &[u8]| bytes.try_into().unwrap_or_default();
        WorkerEntry {
            ip: self.ip.to_bits(),
            aggregator_ip: self.aggregator_ip.to_bits(),
            ifindex: first_ifindex + self.interface,
            port: self.port,
            mac: mac(&self.mac),
            aggregator_mac: mac(&self.aggregator_mac),
            ..WorkerEntry::default()
        }
    }
}

/// A packet, and the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The case, of a table of cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// The aggregator's interface at which the frame arrives.
    pub interface: u32,
    /// The whole frame, from the Ethernet header on.
    #[serde(with = "hex_bytes")]
    pub frame: Vec<u8>,
    /// The name of the counter ([`sumac_wire::Reason`]).
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// The slot that the packet names, of a static job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Transition>,
    /// The same of a dynamic job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedTransition>,
}

/// The packet that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub to: To,
    /// IPv4's DSCP and ECN.
    pub tos: u8,
    /// Sumac's header and elements. Addresses and checksums of the frames around it follow from the
    /// destinations.
    #[serde(with = "hex_bytes")]
    pub payload: Vec<u8>,
}

/// The destination of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum To {
    /// A copy for each worker of the job.
    All,
    Worker(u16),
    /// By its number: a rack's root, or a dynamic job's parameter host for the shard.
    Parent(u16),
}

/// A slot before and after a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// The pool's index.
    pub index: u32,
    pub before: Slot,
    pub after: Slot,
}

/// A slot, and what its lane keeps for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Job and epoch, 16 bits each.
    pub owner: u32,
    pub versions: [SlotVersion; 2],
    /// The chunk that the lane's next completed slot takes.
    pub lane_next: u32,
    /// Bounded loss: the operations whose terms were stated, and by worker the chunks of one that it was left
    /// out of.
    #[serde(default, skip_serializing_if = "Spent::is_none")]
    pub spent: Spent,
    /// The same of a lane that has one budget for all its workers.
    #[serde(default, skip_serializing_if = "LaneSpent::is_none")]
    pub lane_spent: LaneSpent,
}

/// One version of a slot: the fields of [`Version`], and the values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotVersion {
    pub seq: u32,
    pub seen: u32,
    pub received: u32,
    pub next: u32,
    pub tensor: u32,
    pub flags: u16,
    pub exponent: i8,
    pub next_exponent: i8,
    pub state: u8,
    pub values: Vec<i32>,
}

impl SlotVersion {
    fn of(version: &Version, values: &[i32]) -> SlotVersion {
        SlotVersion {
            seq: version.seq,
            seen: version.seen,
            received: version.received,
            next: version.next,
            tensor: version.tensor,
            flags: version.flags,
            exponent: version.exponent,
            next_exponent: version.next_exponent,
            state: version.state,
            values: values.iter().take(usize::from(version.elements)).copied().collect(),
        }
    }

    fn version(&self) -> Version {
        Version {
            seq: self.seq,
            seen: self.seen,
            received: self.received,
            next: self.next,
            tensor: self.tensor,
            elements: self.values.len() as u16,
            flags: self.flags,
            exponent: self.exponent,
            next_exponent: self.next_exponent,
            state: self.state,
            reserved: 0,
        }
    }
}

impl Slot {
    /// Returns the record of a slot, `lane_next` and the budget of its lane, which counts for each worker.
    pub fn of(meta: &SlotMeta, values: [&[i32]; 2], lane_next: u32, spent: Spent) -> Slot {
        let [first, second] = values;
        let versions =
            [SlotVersion::of(&meta.versions[0], first), SlotVersion::of(&meta.versions[1], second)];
        Slot { owner: meta.owner, versions, lane_next, spent, lane_spent: LaneSpent::default() }
    }

    pub fn meta(&self) -> SlotMeta {
        SlotMeta { owner: self.owner, versions: self.versions.each_ref().map(SlotVersion::version) }
    }
}

/// A slot of a dynamic job before and after a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedTransition {
    pub shard: u16,
    /// The slot's number in its shard.
    pub slot: u32,
    pub before: SharedSlot,
    pub after: SharedSlot,
}

/// A slot of the pool that dynamic jobs share: the fields of [`dynamic::SlotMeta`] but the time, and the
/// values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedSlot {
    /// Lane, job and epoch (`sumac_wire::dynamic::owner`); zero: the slot is free.
    pub owner: u32,
    pub seq: u32,
    pub bitmap: u32,
    pub tensor: u32,
    pub flags: u16,
    pub exponent: i8,
    pub next_exponent: i8,
    pub received: u32,
    pub refused_owner: u32,
    pub refused_seq: u32,
    /// Whether the sum has left to the parameter host, so that another chunk may take the slot.
    pub summed: bool,
    pub values: Vec<i32>,
}

impl SharedSlot {
    pub fn of(meta: &dynamic::SlotMeta, values: &[i32]) -> SharedSlot {
        SharedSlot {
            owner: meta.owner,
            seq: meta.seq,
            bitmap: meta.bitmap,
            tensor: meta.tensor,
            flags: meta.flags,
            exponent: meta.exponent,
            next_exponent: meta.next_exponent,
            received: meta.received,
            refused_owner: meta.refused_owner,
            refused_seq: meta.refused_seq,
            summed: meta.summed != 0,
            values: values.iter().take(usize::from(meta.elements)).copied().collect(),
        }
    }

    pub fn meta(&self) -> dynamic::SlotMeta {
        dynamic::SlotMeta {
            owner: self.owner,
            seq: self.seq,
            bitmap: self.bitmap,
            tensor: self.tensor,
            elements: self.values.len() as u16,
            flags: self.flags,
            exponent: self.exponent,
            next_exponent: self.next_exponent,
            received: self.received,
            refused_owner: self.refused_owner,
            refused_seq: self.refused_seq,
            summed: self.summed.into(),
            ..dynamic::SlotMeta::default()
        }
    }
}

/// Writes vectors: the line of the jobs, then one for each packet. A file may have several such parts.
pub fn write(out: &mut impl Write, setup: &Setup, steps: &[Step]) -> io::Result<()> {
    serde_json::to_writer(&mut *out, setup)?;
    out.write_all(b"\n")?;
    for step in steps {
        serde_json::to_writer(&mut *out, step)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads a file of vectors: its parts, each with an aggregator that begins empty.
pub fn read(file: impl BufRead) -> Result<Vec<(Setup, Vec<Step>)>, RecordError> {
    let mut parts: Vec<(Setup, Vec<Step>)> = Vec::new();
    for (text, line) in file.lines().zip(1..) {
        let text = text?;
        let wrong = |source| RecordError::Line { line, source };
        // A part's first line is told by its first field.
        if text.starts_with("{\"format\"") {
            let setup: Setup = serde_json::from_str(&text).map_err(wrong)?;
            if setup.format != FORMAT {
                return Err(RecordError::Format(setup.format));
            }
            parts.push((setup, Vec::new()));
        } else {
            let (_, steps) = parts.last_mut().ok_or(RecordError::NoJobs)?;
            steps.push(serde_json::from_str(&text).map_err(wrong)?);
        }
    }
    if parts.is_empty() { Err(RecordError::NoJobs) } else { Ok(parts) }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

mod hex_bytes {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(D::Error::custom("not pairs of hexadecimal digits"));
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(D::Error::custom);
        (0..text.len()).step_by(2).map(byte).collect()
    }
}

mod hex_number {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub fn serialize<S: Serializer>(number: &u64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{number:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
    }
}
