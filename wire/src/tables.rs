//! The values of the programs' maps, written by their loaders. Host order, fixed layout, no
//! padding that is not named, so that user space can hand them over as plain bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{MAX_HOSTS, MAX_WORKERS};

/// Bits of [`JobEntry::flags`] and [`HostJobEntry::flags`].
pub mod job_flag {
    /// The entry is in use.
    pub const ACTIVE: u16 = 1 << 0;
    /// Contributions and results carry a UDP checksum, and it is verified.
    pub const CHECKSUM: u16 = 1 << 1;
    /// Results go to [`super::JobEntry::group_ip`] once, not to each worker.
    pub const MULTICAST: u16 = 1 << 2;
    /// A completed slot takes whatever chunk of its lane comes next, not every `lane_slots`-th.
    pub const STEALING: u16 = 1 << 3;
    /// Sums go up to a parent, whose results go down to the workers (SwitchML section 7).
    pub const CHILD: u16 = 1 << 4;
    /// The job's workers are aggregators that have this one as their parent. With [`CHILD`] in the middle of
    /// a tree: static jobs only.
    pub const ROOT: u16 = 1 << 5;
    /// The job's chunks take slots of the pool that jobs share, and its sums go to parameter hosts (ATP).
    pub const DYNAMIC: u16 = 1 << 6;
    /// At a host: it is one of the job's parameter hosts, so that contributions may come in.
    pub const PARAMETER: u16 = 1 << 7;
    /// At a host: the job's workers send to each other (MLT).
    pub const DIRECT: u16 = 1 << 8;
    /// All sums hold all workers: a flush is a contribution like others, and static slots do not note how far
    /// workers have received. A switch's program has no room for either.
    pub const WHOLE: u16 = 1 << 9;
    /// At a host: the kernel's UDP sockets take the job's packets, not AF_XDP.
    pub const OVER_UDP: u16 = 1 << 10;
    /// A static job of one level on a switch, whose operations may have loss bounds: a lane has one count of
    /// flushed chunks ([`crate::lane_budget`]), and packets that are ignored note their sender too. Never
    /// with [`WHOLE`], [`CHILD`] or [`ROOT`].
    pub const LANE_BUDGET: u16 = 1 << 11;
}

/// One job at an aggregator; the entry's index is the job's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct JobEntry {
    /// Of contributions and probes: random, known to the job's members only.
    pub token: u64,
    /// Of results and reports: made from `token`, which cannot be told from it, since everybody in a flooded
    /// network sees what goes to a multicast group.
    pub result_token: u64,
    /// The pool's index of the job's slot 0.
    pub slot_base: u32,
    /// Slots of the job, all lanes together. Of a [`job_flag::DYNAMIC`] one: slots of each shard that its
    /// chunks may take.
    pub slots: u32,
    /// The multicast group of [`job_flag::MULTICAST`].
    pub group_ip: u32,
    /// The incarnation.
    pub epoch: u16,
    /// Workers below this aggregator, 1 to [`MAX_WORKERS`]; racks where the job is [`job_flag::ROOT`].
    pub world: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// [`job_flag`] bits.
    pub flags: u16,
    /// Workers of the whole job, which a result's `contributors` says.
    pub contributors: u16,
    /// Shards: a lane's is its number modulo this.
    pub shards: u16,
    /// Logarithm to base 2 of the slots of one lane.
    pub lane_slots_log2: u16,
    /// The job's rack below its parent, of a [`job_flag::CHILD`].
    pub rack: u16,
    /// The job's racks below its parent, of a [`job_flag::CHILD`].
    pub racks: u16,
    /// Parameter hosts of a [`job_flag::DYNAMIC`] job, 1 to [`MAX_HOSTS`]; 0 and 1 are the same to all
    /// others.
    pub hosts: u16,
}

/// Index in the table of parents: where the sums of a job's shard go.
#[inline(always)]
pub const fn parent_index(job: u16, shard: u16, hosts: u16) -> u32 {
    let hosts = if hosts == 0 { 1 } else { hosts };
    job as u32 * MAX_HOSTS as u32 + (shard % hosts) as u32 % MAX_HOSTS as u32
}

impl JobEntry {
    /// Slots of one lane.
    #[inline(always)]
    pub const fn lane_slots(&self) -> u32 {
        // The table is the loader's; the mask is for a reader that cannot know.
        1 << (self.lane_slots_log2 & 31)
    }

    /// Returns the workers' bitmap of a complete slot.
    #[inline(always)]
    pub const fn all(&self) -> u32 {
        crate::workers::all_workers(self.world)
    }
}

/// Index of a lane's counter in the table of lanes: the number of the chunk that is drawn next.
#[inline(always)]
pub const fn lane_index(job: u16, lane: u16) -> u32 {
    job as u32 * crate::MAX_LANES as u32 + lane as u32
}

/// One worker of a job at an aggregator; its index is [`worker_index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WorkerEntry {
    /// The worker's address: contributions must come from it.
    pub ip: u32,
    /// The aggregator's address on the worker's side: where its results come from.
    pub aggregator_ip: u32,
    /// The interface behind which the worker is.
    pub ifindex: u32,
    /// The worker's UDP port for shard 0's results.
    pub port: u16,
    /// The worker's MAC address, or its router's.
    pub mac: [u8; 6],
    /// The MAC address of the aggregator's interface.
    pub aggregator_mac: [u8; 6],
    /// The paths of results for it ([`crate::result_paths`]), up to [`crate::result_paths::RESULT_PATHS`]. 0
    /// and 1: the aggregator's own port alone.
    pub paths: u16,
    /// The ranks below it, as bits, where the job has several levels and no more workers than bits: a rack's
    /// workers, or the worker's own. Sums without some workers name those by it.
    pub ranks: u32,
}

/// Finds the worker of a job behind a port of the aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EgressKey {
    /// The job.
    pub job: u32,
    /// The interface.
    pub ifindex: u32,
}

/// An aggregator's counters of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WorkerCounters {
    /// Contributions that were added.
    pub added: u64,
    /// Of these, how many completed their slot: the worker was last.
    pub last: u64,
    /// Contributions that had been added before.
    pub duplicates: u64,
    /// Results that were sent to it again.
    pub replies: u64,
}

/// Index of a worker in the tables of workers.
#[inline(always)]
pub const fn worker_index(job: u16, rank: u16) -> u32 {
    job as u32 * MAX_WORKERS as u32 + rank as u32
}

/// Jobs with one number that a host may have at once. Control planes assign numbers without knowledge of each
/// other, so the jobs of several have the same ones. They differ in their tokens, which are random.
pub const HOST_JOB_WAYS: usize = 4;

/// Index of a job in the host program's table. `way` is below [`HOST_JOB_WAYS`], `job` below
/// [`crate::MAX_JOBS`].
#[inline(always)]
pub const fn host_job_index(job: u16, way: usize) -> u32 {
    (way * crate::MAX_JOBS + job as usize) as u32
}

/// One job at a worker's host: which results its program lets in. The key is the job's number and token
/// ([`host_job_index`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostJobEntry {
    /// Of contributions and probes, as in [`JobEntry`].
    pub token: u64,
    /// Of results and reports.
    pub result_token: u64,
    /// This host's address, which packets must be sent to.
    pub ip: u32,
    /// The multicast group that results are sent to as well; zero: none.
    pub group_ip: u32,
    /// Results must come from this address, or from one of `host_ips`; zero: there is no aggregator.
    pub aggregator_ip: u32,
    /// The parameter hosts of a [`job_flag::DYNAMIC`] job; zero: none.
    pub host_ips: [u32; MAX_HOSTS],
    /// The incarnation.
    pub epoch: u16,
    /// Most elements in a chunk.
    pub elements: u16,
    /// Workers.
    pub world: u16,
    /// [`job_flag`] bits.
    pub flags: u16,
    /// Zero.
    pub reserved: u32,
}

/// Most receive queues of an interface that the host program steers.
pub const MAX_QUEUES: usize = 256;

/// The settings of the host program's attachment: the only entry of its table. Every attachment has a
/// table of its own, so that replacing a program replaces its settings in the same instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostConfig {
    /// UDP destination port of shard 0.
    pub base_port: u16,
    /// Shards, each with a port of its own.
    pub shards: u16,
    /// The mode that was asked for, by its place in the command line's list; the program does not read it.
    pub mode: u32,
    /// A bit for each queue that sockets shall be opened on, from queue 0 up; the program does not read it.
    pub queues: [u64; MAX_QUEUES / 64],
}

/// The frames that arrived on one receive queue of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueCounters {
    /// The kernel's: not of a job of this host.
    pub foreign: u64,
    /// Handed to the queue's socket.
    pub steered: u64,
    /// Ours and valid, without a socket on this queue.
    pub no_socket: u64,
    /// Ours by its port, and refused.
    pub refused: u64,
}
