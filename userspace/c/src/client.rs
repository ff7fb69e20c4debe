//! Connections to the daemon, and memory registered on them.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ::sumac_client::{Client, Location, Memory};

use crate::error::{Error, call};
use crate::input::{call_into, required, text};
use crate::state::{CLIENTS, ClientState, JOBS, REQUESTS};
use crate::types::{sumac_client, sumac_job, sumac_status};
use crate::version;

/// The daemon's socket unless its configuration has another.
const DEFAULT_SOCKET: &str = "/run/sumac/sumac.sock";

impl ClientState {
    /// Keeps memory until it is freed. Returns its address.
    fn keep(&self, memory: Memory) -> *mut c_void {
        let address = memory.address();
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(address, memory);
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// The registered memory that has these bytes.
    pub(crate) fn locate(&self, pointer: *const c_void, bytes: usize, name: &str) -> Result<Location, Error> {
        let address = pointer.addr();
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let below = memory.range(..=address).next_back();
        let found = below.map(|(start, memory)| (address - start, memory));
        match found
            .filter(|(offset, memory)| offset.checked_add(bytes).is_some_and(|end| end <= memory.len()))
        {
            Some((offset, memory)) => Ok(Location { memory: memory.clone(), offset }),
            None => {
                let message = format!(
                    "{name}: the {bytes} bytes at {pointer:p} do not lie in one block of sumac_alloc"
                );
                Err(Error::new(sumac_status::SUMAC_ERR_NOT_REGISTERED, message)
                    .hint("allocate tensors with sumac_alloc on the client of the job"))
            }
        }
    }
}

/// Connects to the daemon of this host. `socket` is the path of its socket; with NULL it is the environment
/// variable SUMAC_SOCKET, or else "/run/sumac/sumac.sock". `abi_version` is `SUMAC_ABI_VERSION`: a library
/// with another ABI refuses the program with `SUMAC_ERR_ABI_VERSION`. The client belongs to this process: a
/// child made by fork connects anew.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_connect(
    socket: *const c_char,
    abi_version: u32,
    client: *mut *mut sumac_client,
) -> sumac_status {
    call(|| {
        version::check(abi_version)?;
        let out = required(client, "client")?;
        // SAFETY: a string or NULL, as the header asks for.
        let named = unsafe { text(socket, "socket") }?;
        let variable = std::env::var_os("SUMAC_SOCKET").filter(|_| named.is_none());
        let client = match &variable {
            Some(path) => Client::connect(path)?,
            None => Client::connect(named.unwrap_or(DEFAULT_SOCKET))?,
        };
        let state = Arc::new(ClientState { client, memory: Mutex::default() });
        // SAFETY: not NULL, so it has room for a pointer, as the header asks for.
        unsafe { out.write(CLIENTS.insert(state)) };
        Ok(())
    })
}

/// Closes a client, with its jobs, requests and memory: their handles and addresses are invalid after it. A
/// job that was opened and not closed fails on the other workers.
///
/// Thread safety: any thread; no other thread may use the client, or what belongs to it, at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_close(client: *mut sumac_client) -> sumac_status {
    call(|| {
        let state = CLIENTS.remove(client)?;
        REQUESTS.remove_all(|request| Arc::ptr_eq(&request.job.client, &state));
        JOBS.remove_all(|job| Arc::ptr_eq(&job.client, &state));
        Ok(())
    })
}

/// Allocates `size` zeroed bytes that the daemon maps too, aligned to a page. Tensors lie in such memory; one
/// block can have many, at offsets that are multiples of their elements' size (64 is best). Each block is a
/// mapping and a registration, so few large ones are cheaper.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_alloc(
    client: *mut sumac_client,
    size: usize,
    memory: *mut *mut c_void,
) -> sumac_status {
    let allocate = || {
        let state = CLIENTS.get(client)?;
        Ok(state.keep(state.client.memory(size)?))
    };
    // SAFETY: NULL or room for a pointer, as the header asks for.
    unsafe { call_into(memory, "memory", allocate) }
}

/// Returns `size` zeroed bytes for results, which all ranks of the job on this host read and none can write:
/// a store to them raises SIGSEGV. The daemon writes a result once for all of them. They are `recv` of
/// `sumac_allreduce` and `sumac_allgather`, and never `send` of the same operation. All ranks of the host ask
/// for the same sizes in the same order, and give the same place as `recv` of an operation; the next one
/// overwrites the result once all have submitted it. `sumac_free` frees them.
///
/// Thread safety: any thread, at any time; several threads agree on the order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_alloc_shared(
    job: *mut sumac_job,
    size: usize,
    memory: *mut *mut c_void,
) -> sumac_status {
    let allocate = || {
        let state = JOBS.get(job)?;
        Ok(state.client.keep(state.job.shared_memory(size)?))
    };
    // SAFETY: NULL or room for a pointer, as the header asks for.
    unsafe { call_into(memory, "memory", allocate) }
}

/// Frees memory of `sumac_alloc` or `sumac_alloc_shared`; NULL is allowed. Fails with
/// `SUMAC_ERR_REGION_BUSY` while requests use it.
///
/// Thread safety: any thread; no other thread may use the memory at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sumac_free(client: *mut sumac_client, memory: *mut c_void) -> sumac_status {
    call(|| {
        let state = CLIENTS.get(client)?;
        if memory.is_null() {
            return Ok(());
        }
        let mut blocks = state.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(block) = blocks.get(&memory.addr()) else {
            let message = format!("{memory:p} is not the begin of a block of sumac_alloc on this client");
            return Err(Error::new(sumac_status::SUMAC_ERR_NOT_REGISTERED, message));
        };
        // Operations clone it under this lock, in `locate`.
        if block.is_shared() {
            let message = format!("requests use the memory at {memory:p}; wait for them first");
            return Err(Error::new(sumac_status::SUMAC_ERR_REGION_BUSY, message));
        }
        let block = blocks.remove(&memory.addr());
        drop(blocks);
        drop(block);
        Ok(())
    })
}
