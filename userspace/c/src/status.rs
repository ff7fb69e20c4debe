//! The statuses of the header: fixed numbers, of the library and of the daemon.
#![expect(non_camel_case_types, reason = "the names of the header")]

use std::ffi::CStr;

use ::sumac_client::Code;

/// The outcome of a call. The numbers are fixed; later versions add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum sumac_status {
    /// Success.
    SUMAC_OK = 0,
    /// An argument is NULL, out of range, or does not fit the others.
    SUMAC_ERR_INVALID_ARGUMENT = 1,
    /// A handle is NULL, closed, or of no object.
    SUMAC_ERR_INVALID_HANDLE = 2,
    /// The program was compiled for another ABI of libsumac.
    SUMAC_ERR_ABI_VERSION = 3,
    /// A tensor does not lie in memory of sumac_alloc.
    SUMAC_ERR_NOT_REGISTERED = 4,
    /// Memory could not be allocated.
    SUMAC_ERR_MEMORY = 5,
    /// The connection to the daemon failed, or is lost.
    SUMAC_ERR_CONNECTION = 6,
    /// The daemon sent a message that this version does not know.
    SUMAC_ERR_PROTOCOL = 7,
    /// A fault of the library.
    SUMAC_ERR_LIBRARY = 8,
    /// The daemon could not read a message.
    SUMAC_ERR_BAD_MESSAGE = 101,
    /// A message is too long.
    SUMAC_ERR_TOO_LARGE = 102,
    /// The daemon does not know a command.
    SUMAC_ERR_UNKNOWN_COMMAND = 103,
    /// A parameter has a value that is not allowed.
    SUMAC_ERR_BAD_FIELD = 104,
    /// The connection did not begin with a greeting.
    SUMAC_ERR_HELLO_FIRST = 105,
    /// The daemon has another version of the local API.
    SUMAC_ERR_VERSION = 106,
    /// This user may not do this.
    SUMAC_ERR_DENIED = 107,
    /// A limit of the connection, the user or the daemon is reached.
    SUMAC_ERR_LIMIT = 108,
    /// A file descriptor is missing.
    SUMAC_ERR_MISSING_FD = 109,
    /// A file descriptor was not expected.
    SUMAC_ERR_UNEXPECTED_FD = 110,
    /// The daemon refuses the memory.
    SUMAC_ERR_BAD_REGION = 111,
    /// The memory is not registered on this connection.
    SUMAC_ERR_UNKNOWN_REGION = 112,
    /// Requests use the memory.
    SUMAC_ERR_REGION_BUSY = 113,
    /// No such job.
    SUMAC_ERR_UNKNOWN_JOB = 114,
    /// Requests of the job have not been waited for.
    SUMAC_ERR_JOB_BUSY = 115,
    /// No such operation.
    SUMAC_ERR_UNKNOWN_OP = 116,
    /// A tensor lies outside its memory, or input and output overlap in part.
    SUMAC_ERR_OUT_OF_RANGE = 117,
    /// A tensor's address is not a multiple of its element's size.
    SUMAC_ERR_MISALIGNED = 118,
    /// Another request uses the tensor's memory.
    SUMAC_ERR_RANGE_BUSY = 119,
    /// Not supported, or not by this job.
    SUMAC_ERR_UNSUPPORTED = 120,
    /// The rank is taken: the job is open on this host already, or the rank on another.
    SUMAC_ERR_RANK_TAKEN = 121,
    /// Not all ranks joined in time; `ranks` names the missing.
    SUMAC_ERR_RANKS_MISSING = 122,
    /// The coordinator refuses the job.
    SUMAC_ERR_REFUSED = 123,
    /// The aggregator does not answer.
    SUMAC_ERR_UNREACHABLE = 124,
    /// Packets do not reach the aggregator or do not return.
    SUMAC_ERR_HANDSHAKE = 125,
    /// This host's data path could not be set up.
    SUMAC_ERR_DATAPATH = 126,
    /// The job has ended on all workers; `ranks` names the worker at fault.
    SUMAC_ERR_JOB_FAILED = 127,
    /// The workers' operations differ; `ranks` names those that differ.
    SUMAC_ERR_MISMATCH = 128,
    /// The operation was cancelled, and its job with it.
    SUMAC_ERR_CANCELLED = 129,
    /// A value is out of range, or not finite; `tensor` and `index` name it.
    SUMAC_ERR_SATURATED = 130,
    /// The time is over; the request continues.
    SUMAC_ERR_TIMEOUT = 131,
    /// The daemon is stopping.
    SUMAC_ERR_SHUTTING_DOWN = 132,
    /// A fault of the daemon.
    SUMAC_ERR_INTERNAL = 133,
    /// A failure with a code of a later version.
    SUMAC_ERR_UNKNOWN = 199,
}

/// Lists statuses with the daemon's code, if it has one, and their meaning.
macro_rules! statuses {
    (@code) => { None };
    (@code $code:ident) => { Some(Code::$code) };
    ($($status:ident $($code:ident)?: $text:literal,)*) => {
        &[$((sumac_status::$status, statuses!(@code $($code)?), $text)),*]
    };
}

impl sumac_status {
    /// Every status, with the daemon's code and its meaning.
    pub(crate) const ALL: &[(sumac_status, Option<Code>, &CStr)] = statuses! {
        SUMAC_OK: c"success",
        SUMAC_ERR_INVALID_ARGUMENT: c"an argument is NULL, out of range, or does not fit the others",
        SUMAC_ERR_INVALID_HANDLE: c"a handle is NULL, closed, or of no object",
        SUMAC_ERR_ABI_VERSION: c"the program was compiled for another ABI of libsumac",
        SUMAC_ERR_NOT_REGISTERED: c"a tensor does not lie in memory of sumac_alloc",
        SUMAC_ERR_MEMORY: c"memory could not be allocated",
        SUMAC_ERR_CONNECTION: c"the connection to the daemon failed, or is lost",
        SUMAC_ERR_PROTOCOL: c"the daemon sent a message that this version does not know",
        SUMAC_ERR_LIBRARY: c"a fault of the library",
        SUMAC_ERR_UNKNOWN: c"a failure with a code of a later version",
        SUMAC_ERR_BAD_MESSAGE BadMessage: c"the daemon could not read a message",
        SUMAC_ERR_TOO_LARGE TooLarge: c"a message is too long",
        SUMAC_ERR_UNKNOWN_COMMAND UnknownCommand: c"the daemon does not know a command",
        SUMAC_ERR_BAD_FIELD BadField: c"a parameter has a value that is not allowed",
        SUMAC_ERR_HELLO_FIRST HelloFirst: c"the connection did not begin with a greeting",
        SUMAC_ERR_VERSION Version: c"the daemon has another version of the local API",
        SUMAC_ERR_DENIED Denied: c"this user may not do this",
        SUMAC_ERR_LIMIT Limit: c"a limit of the connection, the user or the daemon is reached",
        SUMAC_ERR_MISSING_FD MissingFd: c"a file descriptor is missing",
        SUMAC_ERR_UNEXPECTED_FD UnexpectedFd: c"a file descriptor was not expected",
        SUMAC_ERR_BAD_REGION BadRegion: c"the daemon refuses the memory",
        SUMAC_ERR_UNKNOWN_REGION UnknownRegion: c"the memory is not registered on this connection",
        SUMAC_ERR_REGION_BUSY RegionBusy: c"requests use the memory",
        SUMAC_ERR_UNKNOWN_JOB UnknownJob: c"no such job",
        SUMAC_ERR_JOB_BUSY JobBusy: c"requests of the job have not been waited for",
        SUMAC_ERR_UNKNOWN_OP UnknownOp: c"no such operation",
        SUMAC_ERR_OUT_OF_RANGE OutOfRange:
            c"a tensor lies outside its memory, or input and output overlap in part",
        SUMAC_ERR_MISALIGNED Misaligned: c"a tensor's address is not a multiple of its element's size",
        SUMAC_ERR_RANGE_BUSY RangeBusy: c"another request uses the tensor's memory",
        SUMAC_ERR_UNSUPPORTED Unsupported: c"not supported, or not by this job",
        SUMAC_ERR_RANK_TAKEN RankTaken:
            c"the rank is taken: the job is open on this host already, or the rank on another",
        SUMAC_ERR_RANKS_MISSING RanksMissing: c"not all ranks joined in time; `ranks` names the missing",
        SUMAC_ERR_REFUSED Refused: c"the coordinator refuses the job",
        SUMAC_ERR_UNREACHABLE Unreachable: c"the aggregator does not answer",
        SUMAC_ERR_HANDSHAKE Handshake: c"packets do not reach the aggregator or do not return",
        SUMAC_ERR_DATAPATH Datapath: c"this host's data path could not be set up",
        SUMAC_ERR_JOB_FAILED JobFailed:
            c"the job has ended on all workers; `ranks` names the worker at fault",
        SUMAC_ERR_MISMATCH Mismatch: c"the workers' operations differ; `ranks` names those that differ",
        SUMAC_ERR_CANCELLED Cancelled: c"the operation was cancelled, and its job with it",
        SUMAC_ERR_SATURATED Saturated:
            c"a value is out of range, or not finite; `tensor` and `index` name it",
        SUMAC_ERR_TIMEOUT Timeout: c"the time is over; the request continues",
        SUMAC_ERR_SHUTTING_DOWN ShuttingDown: c"the daemon is stopping",
        SUMAC_ERR_INTERNAL Internal: c"a fault of the daemon",
    };
}
