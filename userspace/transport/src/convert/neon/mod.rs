//! Sums and means of floats, four words at a time with NEON, which every 64-bit processor of Arm has. The
//! scalar reference converts all others and the remainder, and every slice with a value that is not finite or
//! does not fit; the compiler makes vector code of most of it.
#![allow(unsafe_code, reason = "vector loads and stores, and calls into code for NEON")]

mod scaled;

use super::{
    conversion::{Decoding, Encoded, Encoding},
    real::with_float,
    run::Run,
    scalar,
};
use scaled::BLOCK;

pub(super) fn encode(encoding: Encoding, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let Encoding::Scaled { float, scale, packed } = encoding else {
        return scalar::encode(encoding, tensor, wire);
    };
    let Some(run) = Run::of::<BLOCK>(encoding.shape(), tensor.len(), wire.len()) else {
        return scalar::encode(encoding, tensor, wire);
    };
    let (from, to) = (&tensor[..run.tensor], &mut wire[..run.wire]);
    // SAFETY: every processor of this architecture has NEON.
    let is_clean = unsafe { with_float!(float, R => scaled::encode::<R>(scale, packed, from, to)) };
    if !is_clean {
        // Rare: the reference finds the value.
        return scalar::encode(encoding, tensor, wire);
    }
    run.then(scalar::encode(encoding, &tensor[run.tensor..], &mut wire[run.wire..]))
}

pub(super) fn decode(decoding: Decoding, wire: &[u8], tensor: &mut [u8]) {
    let Decoding::Scaled { float, scale, packed } = decoding else {
        return scalar::decode(decoding, wire, tensor);
    };
    let Some(run) = Run::of::<BLOCK>(decoding.shape(), tensor.len(), wire.len()) else {
        return scalar::decode(decoding, wire, tensor);
    };
    let (from, to) = (&wire[..run.wire], &mut tensor[..run.tensor]);
    // SAFETY: every processor of this architecture has NEON.
    unsafe { with_float!(float, R => scaled::decode::<R>(scale, packed, from, to)) }
    scalar::decode(decoding, &wire[run.wire..], &mut tensor[run.tensor..]);
}
