//! Collective operations: each waits for its result, or returns a request.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use ::sumac_client::{
    CollectiveKind, DType, Location, OpOptions, Operand, Operation, OperationOrder, Reduction,
};

use crate::arguments::{Elements, Options};
use crate::error::{Error, call};
use crate::input::{call_into, choose, initialize, short};
use crate::state::{JOBS, JobState, REQUESTS, RequestState};
use crate::types::{sumac_dtype, sumac_job, sumac_op_options, sumac_reduction, sumac_request, sumac_status};

const REDUCTIONS: &[(sumac_reduction, Reduction)] = &[
    (sumac_reduction::SUMAC_SUM, Reduction::Sum),
    (sumac_reduction::SUMAC_MEAN, Reduction::Mean),
    (sumac_reduction::SUMAC_MIN, Reduction::Min),
    (sumac_reduction::SUMAC_MAX, Reduction::Max),
];

/// The arguments of a call that all kinds share.
struct Call<'a> {
    job: Arc<JobState>,
    kind: CollectiveKind,
    root: Option<u16>,
    reduction: Reduction,
    options: Options<'a>,
}

impl Call<'_> {
    /// # Safety
    /// As [`Options::read`].
    unsafe fn new<'a>(
        job: *mut sumac_job,
        kind: CollectiveKind,
        options: *const sumac_op_options,
    ) -> Result<Call<'a>, Error> {
        // SAFETY: as the caller warrants.
        let options = unsafe { Options::read(options) }?;
        Ok(Call { job: JOBS.get(job)?, kind, root: None, reduction: Reduction::Sum, options })
    }

    fn reduction(mut self, reduction: MaybeUninit<sumac_reduction>) -> Result<Self, Error> {
        self.reduction = choose(reduction, "sumac_reduction", REDUCTIONS)?;
        Ok(self)
    }

    fn root(mut self, root: u32) -> Result<Self, Error> {
        self.root = Some(short(root, "root")?);
        Ok(self)
    }

    fn rank(&self) -> usize {
        self.job.job.opened().rank.into()
    }

    /// The number of a tensor's blocks: one for each server, or else for each worker.
    fn block_count(&self) -> usize {
        self.job.job.opened().blocks().into()
    }

    fn locate(&self, pointer: *const c_void, bytes: usize, name: &str) -> Result<Location, Error> {
        self.job.client.locate(pointer, bytes, name)
    }

    /// Submits the operation on `elements` in `input`, with its result in `output` or in place.
    fn submit(self, elements: Elements, input: Location, output: Option<Location>) -> Result<Begun, Error> {
        let options = OpOptions {
            reduction: self.reduction,
            name: self.options.name,
            priority: self.options.priority,
            importance: self.options.importance,
            loss_bound: self.options.loss_bound,
            ..OpOptions::default()
        };
        let operand = Operand { dtype: elements.dtype, count: elements.count as u64, input, output };
        let operation = self.job.job.submit_collective(self.kind, self.root, operand, options)?;
        Ok(Begun { job: self.job, operation })
    }

    /// An operation on the same number of elements in `send` and `recv`; in place if they are the same
    /// address.
    fn same(self, send: *const c_void, recv: *mut c_void, elements: Elements) -> Result<Begun, Error> {
        let input = self.locate(send, elements.bytes, "send")?;
        let is_apart = send != recv.cast_const();
        let output = is_apart.then(|| self.locate(recv, elements.bytes, "recv")).transpose()?;
        self.submit(elements, input, output)
    }

    /// A tensor of blocks in `all`, of which this worker's is at `block`; in place if that is its address in
    /// `all`, or the worker has none. Returns the tensor's elements and whether it is in place.
    fn blocks(
        &self,
        all: *const c_void,
        block: *const c_void,
        each: Elements,
    ) -> Result<(Elements, bool), Error> {
        let (blocks, own) = (self.block_count(), all.addr().wrapping_add(self.rank() * each.bytes));
        Ok((each.times(blocks)?, self.rank() >= blocks || block.addr() == own))
    }
}

/// A submitted operation, with its job.
pub(crate) struct Begun {
    pub(crate) job: Arc<JobState>,
    pub(crate) operation: Operation,
}

impl Begun {
    /// Waits for the result.
    fn wait(mut self) -> Result<(), Error> {
        self.operation.wait(None)?;
        Ok(())
    }

    /// Returns the operation's handle.
    pub(crate) fn give(self) -> *mut sumac_request {
        REQUESTS.insert(Arc::new(RequestState { job: self.job, operation: Mutex::new(self.operation) }))
    }
}

/// Begins an operation by the form of a call that returns a request, and waits for its result.
fn blocking(begin: impl FnOnce(*mut *mut sumac_request) -> sumac_status) -> sumac_status {
    let mut request = null_mut();
    match begin(&raw mut request) {
        sumac_status::SUMAC_OK => call(|| {
            let state = REQUESTS.remove(request)?;
            state.operation.lock().unwrap_or_else(PoisonError::into_inner).wait(None)?;
            Ok(())
        }),
        refused => refused,
    }
}

/// Sets the options of an operation to their defaults. `size` is `sizeof(sumac_op_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_op_options_init(options: *mut sumac_op_options, size: usize) -> sumac_status {
    // SAFETY: NULL or of this size, as the header asks for.
    call(|| unsafe { initialize(options, size, "options") })
}

/// Reduces `count` elements at `send` over all workers into `recv`, on all of them; in place if `recv` is
/// `send`. All workers submit the same operations, in the same order unless the job's order is by name. Both
/// lie in memory of `sumac_alloc`, and overlap not at all or entirely. `options` may be NULL. Returns when
/// the result is there.
///
/// Thread safety: any thread, at any time; operations of several threads on one job are matched in the order
/// in which the daemon receives them, so either one thread submits or operations have names
/// (`SUMAC_ORDER_NAME`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_allreduce(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    options: *const sumac_op_options,
) -> sumac_status {
    // SAFETY: as the header asks for.
    blocking(|request| unsafe {
        sumac_allreduce_async(job, send, recv, count, dtype, reduction, options, request)
    })
}

/// As `sumac_allreduce`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_allreduce_async(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    // SAFETY: as the header asks for.
    unsafe {
        call_into(request, "request", || {
            let call = Call::new(job, CollectiveKind::Allreduce, options)?.reduction(reduction)?;
            Ok(call.same(send, recv, Elements::new(count, dtype)?)?.give())
        })
    }
}

/// Copies `count` elements at `buffer` of the worker `root` to `buffer` of all workers, bit for bit.
/// `options` may be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_broadcast(
    job: *mut sumac_job,
    buffer: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    root: u32,
    options: *const sumac_op_options,
) -> sumac_status {
    // SAFETY: as the header asks for.
    blocking(|request| unsafe { sumac_broadcast_async(job, buffer, count, dtype, root, options, request) })
}

/// As `sumac_broadcast`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_broadcast`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_broadcast_async(
    job: *mut sumac_job,
    buffer: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    root: u32,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    // SAFETY: as the header asks for.
    unsafe {
        call_into(request, "request", || {
            let call = Call::new(job, CollectiveKind::Broadcast, options)?.root(root)?;
            Ok(call.same(buffer, buffer, Elements::new(count, dtype)?)?.give())
        })
    }
}

/// Reduces `count` elements at `send` over all workers into `recv` of the worker `root`; in place if `recv`
/// is `send`. On other workers `recv` is ignored, and may be NULL. `options` may be NULL. Returns when the
/// result is there.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_reduce(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    root: u32,
    options: *const sumac_op_options,
) -> sumac_status {
    // SAFETY: as the header asks for.
    blocking(|request| unsafe {
        sumac_reduce_async(job, send, recv, count, dtype, reduction, root, options, request)
    })
}

/// As `sumac_reduce`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_reduce_async(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    root: u32,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    // SAFETY: as the header asks for.
    unsafe {
        call_into(request, "request", || {
            let call = Call::new(job, CollectiveKind::Reduce, options)?.reduction(reduction)?.root(root)?;
            let recv = if call.rank() == root as usize { recv } else { send.cast_mut() };
            Ok(call.same(send, recv, Elements::new(count, dtype)?)?.give())
        })
    }
}

/// Reduces a tensor of a block of `recv_count` elements for each worker, at `send`, over all workers; each
/// receives its own block of the result, at `recv`. In place if `recv` is `send` plus the worker's rank times
/// the block: the other blocks are unchanged. In a job with servers the blocks are theirs, and `recv` of
/// other ranks is not used. `options` may be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_reduce_scatter(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    options: *const sumac_op_options,
) -> sumac_status {
    // SAFETY: as the header asks for.
    blocking(|request| unsafe {
        sumac_reduce_scatter_async(job, send, recv, recv_count, dtype, reduction, options, request)
    })
}

/// As `sumac_reduce_scatter`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_reduce_scatter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_reduce_scatter_async(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    recv_count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    reduction: MaybeUninit<sumac_reduction>,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    // SAFETY: as the header asks for.
    unsafe {
        call_into(request, "request", || {
            let call = Call::new(job, CollectiveKind::ReduceScatter, options)?.reduction(reduction)?;
            let each = Elements::new(recv_count, dtype)?;
            let (elements, is_in_place) = call.blocks(send, recv, each)?;
            let input = call.locate(send, elements.bytes, "send")?;
            let output = (!is_in_place).then(|| call.locate(recv, each.bytes, "recv")).transpose()?;
            Ok(call.submit(elements, input, output)?.give())
        })
    }
}

/// Collects the blocks of all workers, `send_count` elements each at `send`, at `recv` of all of them, in the
/// order of ranks, bit for bit. In place if `send` is `recv` plus the worker's rank times the block. In a job
/// with servers the blocks are theirs, other ranks receive them, and their `send` is not used. `options` may
/// be NULL. Returns when the result is there.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_allgather(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    options: *const sumac_op_options,
) -> sumac_status {
    // SAFETY: as the header asks for.
    blocking(|request| unsafe { sumac_allgather_async(job, send, recv, send_count, dtype, options, request) })
}

/// As `sumac_allgather`, but returns a request at once, for `sumac_wait` or `sumac_test`.
///
/// Thread safety: as `sumac_allgather`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_allgather_async(
    job: *mut sumac_job,
    send: *const c_void,
    recv: *mut c_void,
    send_count: usize,
    dtype: MaybeUninit<sumac_dtype>,
    options: *const sumac_op_options,
    request: *mut *mut sumac_request,
) -> sumac_status {
    // SAFETY: as the header asks for.
    unsafe {
        call_into(request, "request", || {
            let call = Call::new(job, CollectiveKind::Allgather, options)?;
            let each = Elements::new(send_count, dtype)?;
            let (elements, is_in_place) = call.blocks(recv, send, each)?;
            let all = call.locate(recv, elements.bytes, "recv")?;
            let (input, output) = match is_in_place {
                true => (all, None),
                false => (call.locate(send, each.bytes, "send")?, Some(all)),
            };
            Ok(call.submit(elements, input, output)?.give())
        })
    }
}

/// Returns when all workers have called it. It is an operation like others: those that a worker submitted
/// before may still be outstanding after it.
///
/// Thread safety: as `sumac_allreduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_barrier(job: *mut sumac_job) -> sumac_status {
    call(|| {
        // SAFETY: NULL is allowed.
        let call = unsafe { Call::new(job, CollectiveKind::Allreduce, std::ptr::null()) }?;
        let job = call.job.clone();
        let mut barrier = job.barrier.lock().unwrap_or_else(PoisonError::into_inner);
        // Without elements it waits for servers too.
        let elements = Elements { dtype: DType::Int32, count: 0, bytes: 0 };
        let memory = match &barrier.0 {
            Some(memory) => memory.clone(),
            None => barrier.0.insert(job.client.client.memory(DType::Int32.size())?).clone(),
        };
        barrier.1 += 1;
        let name = format!("sumac barrier {}", barrier.1);
        let is_named = job.job.opened().order == OperationOrder::Name;
        let options = Options { name: is_named.then_some(&name), ..call.options };
        Call { options, ..call }.submit(elements, Location { memory, offset: 0 }, None)?.wait()
    })
}
