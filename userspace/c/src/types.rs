//! The types of the header: numbers with names, options that may grow, and results.
#![expect(non_camel_case_types, reason = "the names of the header")]

use std::ffi::c_char;
use std::mem::MaybeUninit;

pub use crate::status::sumac_status;

/// The type of a tensor's elements, in the host's byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_dtype {
    /// IEEE 754 single precision, `float`.
    SUMAC_FLOAT32 = 1,
    /// IEEE 754 half precision.
    SUMAC_FLOAT16 = 2,
    /// The upper half of single precision.
    SUMAC_BFLOAT16 = 3,
    /// `int32_t`.
    SUMAC_INT32 = 4,
}

/// The reduction of a collective operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_reduction {
    /// The sum over all workers.
    SUMAC_SUM = 1,
    /// The sum divided by the number of workers.
    SUMAC_MEAN = 2,
    /// The least value.
    SUMAC_MIN = 3,
    /// The greatest value.
    SUMAC_MAX = 4,
}

/// The use of the aggregators' slots by a job.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_mode {
    /// The default: static.
    SUMAC_MODE_DEFAULT = 0,
    /// SwitchML: slots of the job's own.
    SUMAC_MODE_STATIC = 1,
    /// ATP: slots shared by all dynamic jobs, with parameter hosts.
    SUMAC_MODE_DYNAMIC = 2,
    /// MLT: without aggregator, from worker to worker; needed for `sumac_post_send` and `sumac_post_recv`.
    SUMAC_MODE_DIRECT = 3,
}

/// The way of a direct job's values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_topology {
    /// The default: by owners.
    SUMAC_TOPOLOGY_DEFAULT = 0,
    /// Each block of a tensor has a worker that reduces and distributes it.
    SUMAC_TOPOLOGY_OWNERS = 1,
    /// Around the ring of workers.
    SUMAC_TOPOLOGY_RING = 2,
}

/// The format of floats in packets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_wire {
    /// The daemon's default.
    SUMAC_WIRE_DEFAULT = 0,
    /// 32-bit integers.
    SUMAC_WIRE_INT32 = 1,
    /// 16-bit integers: half the bytes, less precision. In direct jobs of float32 alone.
    SUMAC_WIRE_INT16 = 2,
    /// 16 bits for float16 and bfloat16 where few workers sum them, else 32.
    SUMAC_WIRE_AUTO = 3,
}

/// The policy for NaN and infinity.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_not_finite {
    /// The default: an error.
    SUMAC_NOT_FINITE_DEFAULT = 0,
    /// The operation fails with `SUMAC_ERR_SATURATED`.
    SUMAC_NOT_FINITE_ERROR = 1,
    /// All elements of the packet are NaN.
    SUMAC_NOT_FINITE_CARRY = 2,
}

/// The rule by which the workers' operations are matched.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_order {
    /// The default: by submission.
    SUMAC_ORDER_DEFAULT = 0,
    /// The n-th operation of one worker belongs to the n-th of each other.
    SUMAC_ORDER_SUBMISSION = 1,
    /// Operations of the same name belong together; each needs one.
    SUMAC_ORDER_NAME = 2,
}

/// A choice with a default.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_choice {
    /// The default.
    SUMAC_DEFAULT = 0,
    /// Yes.
    SUMAC_YES = 1,
    /// No.
    SUMAC_NO = 2,
}

/// The way in which an operation's packets are told apart by importance, so that routers drop unimportant
/// ones first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_importance {
    /// Not at all.
    SUMAC_IMPORTANCE_NONE = 0,
    /// By the packets' values.
    SUMAC_IMPORTANCE_MAGNITUDE = 1,
    /// The whole tensor is important.
    SUMAC_IMPORTANCE_HIGH = 2,
    /// The whole tensor is unimportant.
    SUMAC_IMPORTANCE_LOW = 3,
}

/// The values of a received tensor's elements that are missing.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_missing {
    /// Zero, for gradients.
    SUMAC_MISSING_ZERO = 0,
    /// The values that the memory had before, for parameters.
    SUMAC_MISSING_KEEP = 1,
}

/// `scale` of `sumac_job_options` for block floating point: each packet has the largest scale that its values
/// allow.
pub const SUMAC_SCALE_BLOCK: f32 = -1.0;

/// `timeout_ms` of `sumac_wait` for no timeout.
pub const SUMAC_NO_TIMEOUT: i64 = -1;

/// `index` and `index_end` of `sumac_error` where the elements are not known.
pub const SUMAC_NO_INDEX: u64 = 0xffff_ffff_ffff_ffff;

/// A connection to the host's daemon.
pub struct sumac_client {
    _opaque: [u8; 0],
}

/// A job with this process as a worker.
pub struct sumac_job {
    _opaque: [u8; 0],
}

/// A submitted operation.
pub struct sumac_request {
    _opaque: [u8; 0],
}

/// An error, as `sumac_last_error` returns it. Later versions add members at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sumac_error {
    /// The status that the call returned.
    pub code: sumac_status,
    /// The action, its object, and the reason.
    pub message: *const c_char,
    /// The next step, or NULL.
    pub hint: *const c_char,
    /// The ranks that are missing or at fault: `rank_count` numbers, or NULL.
    pub ranks: *const u32,
    /// The number of ranks.
    pub rank_count: usize,
    /// The tensor at fault, by its operation's name or `#` and number; or NULL.
    pub tensor: *const c_char,
    /// The first element at fault, or `SUMAC_NO_INDEX`.
    pub index: u64,
    /// One past the last element that may be at fault, or `SUMAC_NO_INDEX`.
    pub index_end: u64,
}

/// The options of a job. `sumac_job_options_init` sets all to their defaults, which are zeros but for `size`.
/// Later versions add members at the end; `size` tells the library which of them the program knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sumac_job_options {
    /// The size of this structure in bytes, as the program was compiled.
    pub size: usize,
    /// The join token or job secret; NULL for the daemon's.
    pub secret: *const c_char,
    /// The aggregator's control plane, by its name in the daemon's configuration; NULL for its default one.
    pub aggregator: *const c_char,
    /// The time to wait for the other workers, in milliseconds; 0 for the daemon's.
    pub timeout_ms: u64,
    /// The use of the aggregators' slots.
    pub mode: MaybeUninit<sumac_mode>,
    /// The way of a direct job's values.
    pub topology: MaybeUninit<sumac_topology>,
    /// The format of floats in packets.
    pub wire: MaybeUninit<sumac_wire>,
    /// The policy for NaN and infinity.
    pub not_finite: MaybeUninit<sumac_not_finite>,
    /// The rule by which operations are matched.
    pub order: MaybeUninit<sumac_order>,
    /// Whether a static or dynamic job uses a congestion window.
    pub congestion_control: MaybeUninit<sumac_choice>,
    /// The factor for floats; 0 for the daemon's, or `SUMAC_SCALE_BLOCK`.
    pub scale: f32,
    /// 32-bit words in a packet; 0 for the path's maximum.
    pub elements: u32,
    /// Slots of each lane of a static job; 0 for the measured number.
    pub slots: u32,
    /// The maximum of shared slots of a dynamic job; 0 for all.
    pub dynamic_slots: u32,
    /// Packets in flight of a dynamic or direct job; 0 for the default.
    pub window: u32,
    /// Shards for a tensor; 0 for as many as there are.
    pub shards: u32,
    /// Workers that own blocks in a direct job; 0 for all.
    pub owners: u32,
    /// Parameter hosts of a dynamic job; 0 for as many as there are.
    pub parameter_hosts: u32,
    /// The job's ranks on this host, at this daemon; 0 for one.
    pub local_world: u32,
    /// Zero. Programs of ABI 0.3 have padding here.
    pub reserved: u32,
    /// Ranks of a direct job, from rank 0 on, that are parameter servers: they own all blocks, and contribute
    /// nothing; 0 for none.
    pub servers: u32,
}

/// The options of an operation. `sumac_op_options_init` sets all to their defaults, which are zeros but for
/// `size`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sumac_op_options {
    /// The size of this structure in bytes, as the program was compiled.
    pub size: usize,
    /// The operation's name, the same on all workers, or NULL; required with `SUMAC_ORDER_NAME`. Not for
    /// `sumac_post_send`.
    pub name: *const c_char,
    /// 0 (lowest) to 7; from 4 on a collective operation overtakes those below.
    pub priority: u32,
    /// The way in which packets are told apart by importance.
    pub importance: MaybeUninit<sumac_importance>,
    /// The fraction of its elements that each worker may be left out with; 0 for exact results. Not for
    /// `sumac_post_send`.
    pub loss_bound: f32,
}

/// The options of `sumac_post_recv`. `sumac_recv_options_init` sets all to their defaults, which are zeros
/// but for `size`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sumac_recv_options {
    /// The size of this structure in bytes, as the program was compiled.
    pub size: usize,
    /// The fraction of the tensor that may be missing, below 1; 0 for all of it.
    pub loss_bound: f32,
    /// The values of elements that are missing.
    pub missing: MaybeUninit<sumac_missing>,
}

/// The outcome of an operation that has ended. The program sets `size`; the library writes the members within
/// it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sumac_completion {
    /// The size of this structure in bytes, as the program was compiled.
    pub size: usize,
    /// From submission to the arrival of the last element, in nanoseconds, by the daemon's clock.
    pub duration_ns: u64,
    /// The elements that are missing, added up over all workers; 0 without a loss bound.
    pub missing: u64,
    /// The fraction of all workers' elements that is missing.
    pub missing_fraction: f64,
}
