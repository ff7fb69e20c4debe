//! Four at a time with NEON.

use std::arch::aarch64::{
    float32x4_t, vaddq_u32, vandq_u32, vdupq_n_u32, vld1_u16, vld1q_f32, vmovl_u16, vmovn_u32,
    vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshlq_n_u32, vshrq_n_u32, vst1_u16, vst1q_f32,
};

use half::{bf16, f16};

use super::{Floats, floats};
use crate::convert::real::Real;

floats!("neon", float32x4_t, f32, |from| vld1q_f32(from.cast()), |to, values| vst1q_f32(to.cast(), values));
// Value by value: vectors of halves are an extension of the processor.
floats!(
    "neon",
    float32x4_t,
    f16,
    |from| {
        let halves = from.cast::<[u8; 8]>().read();
        let values = [0, 2, 4, 6].map(|at| f16::read(&halves[at..]).to_f32());
        vld1q_f32(values.as_ptr())
    },
    |to, values| {
        let mut singles = [0.0; 4];
        vst1q_f32(singles.as_mut_ptr(), values);
        let halves = singles.map(|single| f16::from_f32(single).to_ne_bytes());
        to.cast::<[[u8; 2]; 4]>().write(halves);
    }
);
floats!(
    "neon",
    float32x4_t,
    bf16,
    |from| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(from.cast())))),
    |to, values| {
        let bits = vreinterpretq_u32_f32(values);
        let upper_is_odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        // Carries into the upper half above one half, and at one half if the upper half is odd.
        let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), upper_is_odd);
        vst1_u16(to.cast(), vmovn_u32(vshrq_n_u32::<16>(rounded)));
    }
);
