//! The enums and structures of the header, as their bytes are read.

use std::mem::MaybeUninit;

use crate::types::{
    sumac_choice, sumac_completion, sumac_dtype, sumac_importance, sumac_job_options, sumac_missing,
    sumac_mode, sumac_not_finite, sumac_op_options, sumac_order, sumac_recv_options, sumac_reduction,
    sumac_status, sumac_topology, sumac_wire,
};

/// An enum of the header. In arguments it is inside `MaybeUninit`, since a program may pass any number.
///
/// # Safety
/// The type is `repr(C)` and has no fields, so that it is a C `int`.
pub(crate) unsafe trait Enum: Copy {}

/// A structure of the header whose first member, `size`, is the structure's size as the program was compiled.
///
/// # Safety
/// The type is `repr(C)`, and every bit pattern is a value of it.
pub(crate) unsafe trait Structure: Copy {}

macro_rules! implement {
    ($trait:ident for $($type:ty),*) => {
        $(
            // SAFETY: it is repr(C), and as `types.rs` and `status.rs` define it, as the trait asks for.
            unsafe impl $trait for $type {}
        )*
    };
}

implement!(Enum for sumac_choice, sumac_dtype, sumac_importance, sumac_missing, sumac_mode, sumac_not_finite,
    sumac_order,
    sumac_reduction, sumac_status, sumac_topology, sumac_wire);
implement!(Structure for sumac_completion, sumac_job_options, sumac_op_options, sumac_recv_options);

/// The number that a program has passed for an enum.
pub(crate) fn number<E: Enum>(value: MaybeUninit<E>) -> u32 {
    const { assert!(size_of::<E>() == size_of::<u32>()) };
    // SAFETY: of this size, and initialized: a C caller passes an `int`.
    unsafe { value.as_ptr().cast::<u32>().read() }
}
