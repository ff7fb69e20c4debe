//! Checks of a packet: its job and incarnation, and the address of its sender.

use crate::{
    Header, Reason,
    tables::{WorkerEntry, job_flag},
};

/// Checks whose packet it is: the job's, in this incarnation.
#[inline(always)]
pub(super) fn identity(header: &Header, flags: u16, token: u64, epoch: u16) -> Result<(), Reason> {
    if flags & job_flag::ACTIVE == 0 {
        return Err(Reason::UnknownJob);
    }
    if header.token != token {
        return Err(Reason::BadToken);
    }
    if header.epoch != epoch {
        return Err(Reason::WrongEpoch);
    }
    Ok(())
}

/// Checks that a packet comes from the address bound to its worker.
#[inline(always)]
pub fn source(src_ip: u32, worker: &WorkerEntry) -> Result<(), Reason> {
    if worker.ip == src_ip { Ok(()) } else { Err(Reason::WrongSource) }
}
