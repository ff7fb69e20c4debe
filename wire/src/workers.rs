//! Bitmaps of a job's workers.

/// The bitmap of a job's workers.
#[inline(always)]
pub const fn all_workers(world: u16) -> u32 {
    if world >= 32 { u32::MAX } else { (1 << world) - 1 }
}

/// The rank in a one-hot bitmap of a job with `world` workers.
#[inline(always)]
pub const fn rank(bitmap: u32, world: u16) -> Option<u16> {
    if bitmap == 0 || bitmap & (bitmap - 1) != 0 || bitmap & !all_workers(world) != 0 {
        return None;
    }
    // trailing_zeros without the instruction that eBPF lacks.
    let mut rank = 0;
    if bitmap & 0xffff_0000 != 0 {
        rank += 16;
    }
    if bitmap & 0xff00_ff00 != 0 {
        rank += 8;
    }
    if bitmap & 0xf0f0_f0f0 != 0 {
        rank += 4;
    }
    if bitmap & 0xcccc_cccc != 0 {
        rank += 2;
    }
    if bitmap & 0xaaaa_aaaa != 0 {
        rank += 1;
    }
    Some(rank)
}
