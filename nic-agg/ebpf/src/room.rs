//! Room for a result in a frame without values: the last contribution to a chunk gets its zeros here, where
//! the driver's buffer is as long, and is not asked for them.

use aya_ebpf::{helpers::generated::bpf_xdp_adjust_tail, programs::XdpContext};
use sumac_agg_layout::INGRESS_ENTRY;
use sumac_wire::{
    Reason,
    bytes::Load as _,
    frame::{ETH_LEN, Frame},
    header::{HEADER_LEN, flag},
    slot::Version,
};

use crate::{
    answer,
    maps::{JOBS, MODES, SLOTS},
    packet::{Headers, Packet},
    work::Work,
};

/// Makes the frame the contribution of zeros that it stands for, if it would complete its chunk, and begins
/// anew with it. Returns where it would not, or where the buffer has no room; all pointers into the frame are
/// then taken back.
///
/// The slot is read without its lock: whatever it holds by the time of the contribution, zeros are right.
#[inline(always)]
pub fn make(
    ctx: &XdpContext,
    packet: Packet,
    headers: Headers,
    frame: &Frame,
    work: &Work,
) -> Result<(), Reason> {
    if work.is_parents != 0 || work.contribution.flags & flag::EMPTY == 0 {
        return Ok(());
    }
    // Bytes behind the headers would become values.
    let elements = lacking(headers, work)?;
    if elements == 0 || packet.size() != frame.payload() + HEADER_LEN {
        return Ok(());
    }
    // SAFETY: the context is this run's. The kernel clears what it adds.
    if unsafe { bpf_xdp_adjust_tail(ctx.ctx, i32::from(elements) * size_of::<u32>() as i32) } != 0 {
        return Ok(());
    }
    let packet = packet.again(ctx);
    if packet.writable(ETH_LEN).is_none() {
        return Err(Reason::Internal);
    }
    answer::fill_with_zeros(packet.headers().ok_or(Reason::Internal)?, elements);
    // SAFETY: the entry is the loader's, this program itself; nothing here is dropped.
    unsafe { MODES.tail_call(ctx, INGRESS_ENTRY) };
    Err(Reason::Internal)
}

#[inline(always)]
fn lacking(headers: Headers, work: &Work) -> Result<u16, Reason> {
    let job = JOBS.get(u32::from(headers.job())).ok_or(Reason::Internal)?;
    let slot = SLOTS.get_ptr_mut(job.slot_base.wrapping_add(headers.slot())).ok_or(Reason::Internal)?;
    let c = &work.contribution;
    let first = c.version == 0;
    // SAFETY: `slot` is a value of the map, from a lookup in this run. Another CPU may write to it meanwhile.
    let (owner, version) = unsafe {
        let meta = &raw const (*slot).meta;
        let versions = (&raw const (*meta).versions).cast::<Version>();
        (
            (&raw const (*meta).owner).read_volatile(),
            if first { read(versions) } else { read(versions.add(1)) },
        )
    };
    Ok(if owner == c.owner { version.lacking(c) } else { 0 })
}

/// Reads the fields that [`Version::lacking`] looks at.
///
/// # Safety
/// `version` may be read.
#[inline(always)]
unsafe fn read(version: *const Version) -> Version {
    // SAFETY: by the caller's promise.
    unsafe {
        Version {
            seq: (&raw const (*version).seq).read_volatile(),
            tensor: (&raw const (*version).tensor).read_volatile(),
            seen: (&raw const (*version).seen).read_volatile(),
            elements: (&raw const (*version).elements).read_volatile(),
            flags: (&raw const (*version).flags).read_volatile(),
            state: (&raw const (*version).state).read_volatile(),
            ..Version::default()
        }
    }
}
