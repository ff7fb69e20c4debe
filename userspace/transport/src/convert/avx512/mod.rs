//! Sums and means of floats, sixteen words at a time with AVX-512. AVX2 converts all others and the
//! remainder; the scalar reference converts every slice with a value that is not finite or does not fit.
//!
//! It is called only after [`super::Codec`] has found the features at run time.
#![allow(unsafe_code, reason = "vector loads and stores, and calls into code for AVX-512")]

mod scaled;

use super::{
    avx2,
    conversion::{Decoding, Encoded, Encoding},
    real::with_float,
    run::Run,
    scalar,
};
use scaled::BLOCK;

pub(super) fn encode(encoding: Encoding, tensor: &[u8], wire: &mut [u8]) -> Encoded {
    let Encoding::Scaled { float, scale, packed } = encoding else {
        return avx2::encode(encoding, tensor, wire);
    };
    let Some(run) = Run::of::<BLOCK>(encoding.shape(), tensor.len(), wire.len()) else {
        return avx2::encode(encoding, tensor, wire);
    };
    let (from, to) = (&tensor[..run.tensor], &mut wire[..run.wire]);
    // SAFETY: callers have found the features.
    let is_clean = unsafe { with_float!(float, R => scaled::encode::<R>(scale, packed, from, to)) };
    if !is_clean {
        // Rare: the reference finds the value.
        return scalar::encode(encoding, tensor, wire);
    }
    run.then(avx2::encode(encoding, &tensor[run.tensor..], &mut wire[run.wire..]))
}

pub(super) fn decode(decoding: Decoding, wire: &[u8], tensor: &mut [u8]) {
    let Decoding::Scaled { float, scale, packed } = decoding else {
        return avx2::decode(decoding, wire, tensor);
    };
    let Some(run) = Run::of::<BLOCK>(decoding.shape(), tensor.len(), wire.len()) else {
        return avx2::decode(decoding, wire, tensor);
    };
    let (from, to) = (&wire[..run.wire], &mut tensor[..run.tensor]);
    // SAFETY: callers have found the features.
    unsafe { with_float!(float, R => scaled::decode::<R>(scale, packed, from, to)) }
    avx2::decode(decoding, &wire[run.wire..], &mut tensor[run.tensor..]);
}
