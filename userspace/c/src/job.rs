//! Jobs.

use std::ffi::c_char;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::sumac_client::{
    Client, ClientError, Job, JobOptions, JobSpec, Mode, NonFinitePolicy, OperationOrder, Scale, Topology,
    WireFormat,
};

use crate::error::{Error, call};
use crate::input::{call_into, choose_or_default, initialize, short, structure, text};
use crate::state::{CLIENTS, ClientState, JOBS, JobState, REQUESTS};
use crate::types::{
    SUMAC_SCALE_BLOCK, sumac_choice, sumac_client, sumac_job, sumac_job_options, sumac_mode,
    sumac_not_finite, sumac_order, sumac_status, sumac_topology, sumac_wire,
};

const MODES: &[(sumac_mode, Mode)] = &[
    (sumac_mode::SUMAC_MODE_STATIC, Mode::Static),
    (sumac_mode::SUMAC_MODE_DYNAMIC, Mode::Dynamic),
    (sumac_mode::SUMAC_MODE_DIRECT, Mode::Direct),
];
const TOPOLOGIES: &[(sumac_topology, Topology)] = &[
    (sumac_topology::SUMAC_TOPOLOGY_OWNERS, Topology::Owners),
    (sumac_topology::SUMAC_TOPOLOGY_RING, Topology::Ring),
];
const WIRES: &[(sumac_wire, WireFormat)] = &[
    (sumac_wire::SUMAC_WIRE_INT32, WireFormat::Int32),
    (sumac_wire::SUMAC_WIRE_INT16, WireFormat::Int16),
    (sumac_wire::SUMAC_WIRE_AUTO, WireFormat::Auto),
];
const POLICIES: &[(sumac_not_finite, NonFinitePolicy)] = &[
    (sumac_not_finite::SUMAC_NOT_FINITE_ERROR, NonFinitePolicy::Error),
    (sumac_not_finite::SUMAC_NOT_FINITE_CARRY, NonFinitePolicy::Carry),
];
const ORDERS: &[(sumac_order, OperationOrder)] = &[
    (sumac_order::SUMAC_ORDER_SUBMISSION, OperationOrder::Submission),
    (sumac_order::SUMAC_ORDER_NAME, OperationOrder::Name),
];
const CHOICES: &[(sumac_choice, bool)] = &[(sumac_choice::SUMAC_YES, true), (sumac_choice::SUMAC_NO, false)];

/// A number whose zero is the default.
fn given(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

fn given_short(number: u32, name: &str) -> Result<Option<u16>, Error> {
    given(number).map(|number| short(number, name)).transpose()
}

fn scale(scale: f32) -> Option<Scale> {
    if scale == 0.0 {
        None
    } else if scale == SUMAC_SCALE_BLOCK {
        Some(Scale::Block)
    } else {
        Some(Scale::Fixed(scale))
    }
}

fn spec(name: &str, rank: u32, world: u32, options: &sumac_job_options) -> Result<JobSpec, Error> {
    if !options.scale.is_finite() {
        return Err(Error::argument("scale is not finite"));
    }
    let timeout = given_milliseconds(options.timeout_ms);
    Ok(JobSpec {
        local_world: given_short(options.local_world, "local_world")?,
        elements: given_short(options.elements, "elements")?,
        slots: given(options.slots),
        mode: choose_or_default(options.mode, "sumac_mode", MODES)?,
        window: given(options.window),
        dynamic_slots: given(options.dynamic_slots),
        parameter_hosts: given_short(options.parameter_hosts, "parameter_hosts")?,
        topology: choose_or_default(options.topology, "sumac_topology", TOPOLOGIES)?,
        owners: given_short(options.owners, "owners")?,
        servers: given_short(options.servers, "servers")?,
        congestion_control: choose_or_default(options.congestion_control, "sumac_choice", CHOICES)?,
        scale: scale(options.scale),
        wire: choose_or_default(options.wire, "sumac_wire", WIRES)?,
        not_finite: choose_or_default(options.not_finite, "sumac_not_finite", POLICIES)?,
        order: choose_or_default(options.order, "sumac_order", ORDERS)?,
        shards: given_short(options.shards, "shards")?,
        timeout_s: timeout.map(|timeout| timeout.as_secs_f64()),
        ..JobSpec::new(name, short(rank, "rank")?, short(world, "world")?)
    })
}

fn given_milliseconds(milliseconds: u64) -> Option<Duration> {
    (milliseconds != 0).then(|| Duration::from_millis(milliseconds))
}

fn insert(client: Arc<ClientState>, job: Job) -> *mut sumac_job {
    JOBS.insert(Arc::new(JobState { client, job, barrier: Mutex::default() }))
}

/// Sets the options of a job to their defaults. `size` is `sizeof(sumac_job_options)`.
///
/// Thread safety: any thread; the structure is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_job_options_init(
    options: *mut sumac_job_options,
    size: usize,
) -> sumac_status {
    // SAFETY: NULL or of this size, as the header asks for.
    call(|| unsafe { initialize(options, size, "options") })
}

/// Joins the job `name` as the worker `rank` of `world`, and returns when all of them have joined. `options`
/// may be NULL. `SUMAC_ERR_RANKS_MISSING` has the ranks that did not join in time. A job in mode direct has
/// no aggregator but its coordinator.
///
/// Thread safety: any thread, at any time; other calls on the client go on meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_open(
    client: *mut sumac_client,
    name: *const c_char,
    rank: u32,
    world: u32,
    options: *const sumac_job_options,
    job: *mut *mut sumac_job,
) -> sumac_status {
    let open = || {
        let state = CLIENTS.get(client)?;
        // SAFETY: a string or NULL, as the header asks for.
        let name = unsafe { text(name, "name") }?.ok_or_else(|| Error::argument("name is NULL"))?;
        // SAFETY: NULL or a structure with its size, as the header asks for.
        let options = unsafe { structure(options, "options") }?;
        let mut request = JobOptions::from(spec(name, rank, world, &options)?);
        // SAFETY: strings or NULL, as the header asks for.
        let (secret, aggregator) =
            unsafe { (text(options.secret, "secret")?, text(options.aggregator, "aggregator")?) };
        if let Some(secret) = secret {
            request = request.secret(secret);
        }
        if let Some(aggregator) = aggregator {
            request = request.aggregator(aggregator);
        }
        let job = state.client.open(&request)?;
        Ok(insert(state, job))
    };
    // SAFETY: NULL or room for a pointer, as the header asks for.
    unsafe { call_into(job, "job", open) }
}

/// Attaches to a job that another connection of this host has opened, to submit operations too. `secret` may
/// be NULL for the user who opened it.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_attach(
    client: *mut sumac_client,
    name: *const c_char,
    secret: *const c_char,
    job: *mut *mut sumac_job,
) -> sumac_status {
    // SAFETY: the arguments are the caller's.
    unsafe { call_into(job, "job", || attach(client, name, secret, Client::attach)) }
}

/// Attaches to a job as its rank `rank`, as `sumac_attach`: where this host has several of its ranks.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_attach_rank(
    client: *mut sumac_client,
    name: *const c_char,
    rank: u32,
    secret: *const c_char,
    job: *mut *mut sumac_job,
) -> sumac_status {
    // SAFETY: the arguments are the caller's.
    unsafe {
        call_into(job, "job", || {
            let rank = u16::try_from(rank).map_err(|_| Error::argument("rank is above 65535"))?;
            attach(client, name, secret, |client, name, secret| client.attach_rank(name, rank, secret))
        })
    }
}

/// # Safety
/// `name` and `secret` are strings or NULL.
unsafe fn attach(
    client: *mut sumac_client,
    name: *const c_char,
    secret: *const c_char,
    enter: impl FnOnce(&Client, String, Option<String>) -> Result<Job, ClientError>,
) -> Result<*mut sumac_job, Error> {
    let state = CLIENTS.get(client)?;
    // SAFETY: strings or NULL, as required.
    let (name, secret) = unsafe { (text(name, "name")?, text(secret, "secret")?) };
    let name = name.ok_or_else(|| Error::argument("name is NULL"))?;
    let job = enter(&state.client, name.to_owned(), secret.map(str::to_owned))?;
    Ok(insert(state, job))
}

/// Closes a job after its last operation. Fails with `SUMAC_ERR_JOB_BUSY`, and the job stays open, while
/// requests have not been waited for. After any other outcome the handle is invalid; if the job has failed,
/// its error is returned.
///
/// Thread safety: any thread; no other thread may use the job at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_job_close(job: *mut sumac_job) -> sumac_status {
    call(|| {
        let busy = |message: &str| Err(Error::new(sumac_status::SUMAC_ERR_JOB_BUSY, message));
        let state = JOBS.remove_if(job, |state| {
            if REQUESTS.any(|request| Arc::ptr_eq(&request.job, state)) {
                return busy("requests of the job have not been waited for");
            }
            if Arc::strong_count(state) > 1 {
                return busy("another thread uses the job");
            }
            Ok(())
        })?;
        // No other reference is left, nor can be made without the handle.
        let Some(state) = Arc::into_inner(state) else { return busy("another thread uses the job") };
        Ok(state.job.close()?)
    })
}

/// Returns this worker's rank in the job, from 0 on.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_rank(job: *const sumac_job, rank: *mut u32) -> sumac_status {
    // SAFETY: NULL or room for the number, as the header asks for.
    unsafe { call_into(rank, "rank", || Ok(JOBS.get(job)?.job.opened().rank.into())) }
}

/// Returns the number of the job's workers.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_world(job: *const sumac_job, world: *mut u32) -> sumac_status {
    // SAFETY: NULL or room for the number, as the header asks for.
    unsafe { call_into(world, "world", || Ok(JOBS.get(job)?.job.opened().world.into())) }
}

/// Returns an eventfd that counts the job's ended operations, for the program's event loop: once it is
/// readable, `sumac_test` finds the request. It belongs to the job; do not close it.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_event_fd(job: *const sumac_job, fd: *mut i32) -> sumac_status {
    // SAFETY: NULL or room for the number, as the header asks for.
    unsafe { call_into(fd, "fd", || Ok(JOBS.get(job)?.job.completion_event().as_raw_fd())) }
}
