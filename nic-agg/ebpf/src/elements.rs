//! The passes over a packet's elements.
//!
//! Each goes over them once, sixteen at a time with one comparison against their end, then over what is left.
//! Sums are the checksum's, over the payload as it stood (or, in [`Elements::write`], as it was left), in
//! memory order.

use core::arch::asm;

use sumac_agg_layout::TAIL_ELEMENTS;
use sumac_wire::{PAGE_ELEMENTS, Reason};

/// Elements per comparison.
pub const STRIDE: usize = 16;

const _: () = assert!(PAGE_ELEMENTS.is_multiple_of(STRIDE) && TAIL_ELEMENTS.is_multiple_of(STRIDE));

/// The summand of a shifted value. Of a sum of such a value and a signed number of 64 bits the higher 32 are
/// zero exactly when the sum did not leave 32 bits: one operation finds out, where values as they are take
/// six.
const SHIFT: u32 = 1 << 31;

/// Elements of one packet, and what can be done with them.
pub trait Elements: Copy {
    /// Calls `visit` with each element's index and place.
    fn each(self, visit: impl FnMut(usize, *mut u32)) -> Result<(), Reason>;

    /// Sums the payload and leaves everything as it is.
    #[inline(always)]
    fn sum(self) -> Result<u64, Reason> {
        let mut sum = 0;
        self.each(|_, element| {
            // SAFETY: `each` yields pointers to elements only.
            sum = counted(sum, unsafe { *element });
        })?;
        Ok(sum)
    }

    /// Replaces the values by the elements.
    #[inline(always)]
    fn store(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: `each` yields pointers to elements, and indices of values.
            unsafe { *values.add(i) = u32::from_be(*element) };
        })
    }

    /// Replaces values that are smaller than their elements, as signed numbers.
    #[inline(always)]
    fn maximum(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe { *values.add(i) = larger(u32::from_be(*element), *values.add(i)) };
        })
    }

    #[inline(always)]
    fn add(self, values: *mut u32) -> Result<u64, Reason> {
        let mut sum = 0;
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe {
                let raw = *element;
                *values.add(i) = (*values.add(i)).wrapping_add(u32::from_be(raw));
                sum = counted(sum, raw);
            }
        })?;
        Ok(sum)
    }

    /// [`Elements::store`] of shifted values.
    #[inline(always)]
    fn store_shifted(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe { *values.add(i) = u32::from_be(*element) ^ SHIFT };
        })
    }

    /// [`Elements::maximum`] of shifted values, which as unsigned numbers are in the same order.
    #[inline(always)]
    fn maximum_shifted(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe {
                let (value, element) = (*values.add(i), u32::from_be(*element) ^ SHIFT);
                let is_smaller = sign(i64::from(element) - i64::from(value));
                *values.add(i) = element ^ (element ^ value) & is_smaller as u32;
            }
        })
    }

    /// Adds the elements to shifted values, and tells as well whether a sum left the numbers of 32 bits: then
    /// it wrapped, and [`Elements::clamp_shifted`] is to follow.
    #[inline(always)]
    fn add_shifted(self, values: *mut u32) -> Result<(u64, bool), Reason> {
        let (mut sum, mut all) = (0, 0);
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe {
                let raw = *element;
                let total = u64::from(*values.add(i)).wrapping_add(signed(raw) as u64);
                *values.add(i) = total as u32;
                all = collected(all, total);
                sum = counted(sum, raw);
            }
        })?;
        Ok((sum, all >> 32 != 0))
    }

    /// Makes of sums that wrapped in [`Elements::add_shifted`] the nearest number of 32 bits.
    #[inline(always)]
    fn clamp_shifted(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe {
                let element = signed(*element);
                let value = (*values.add(i)).wrapping_sub(element as u32);
                let total = i64::from(value) + element;
                let (below, above) = (sign(total), sign(i64::from(u32::MAX) - total));
                *values.add(i) = ((total | above) & !below) as u32;
            }
        })
    }

    /// [`Elements::write`] of shifted values.
    #[inline(always)]
    fn write_shifted(self, values: *const u32) -> Result<u64, Reason> {
        let mut sum = 0;
        self.each(|i, element| {
            // SAFETY: as in `write`.
            unsafe {
                let raw = (*values.add(i) ^ SHIFT).to_be();
                *element = raw;
                sum = counted(sum, raw);
            }
        })?;
        Ok(sum)
    }

    /// Takes back what [`Elements::add`] did: wrapping addition is exactly invertible.
    #[inline(always)]
    fn subtract(self, values: *mut u32) -> Result<(), Reason> {
        self.each(|i, element| {
            // SAFETY: as in `store`.
            unsafe { *values.add(i) = (*values.add(i)).wrapping_sub(u32::from_be(*element)) };
        })
    }

    #[inline(always)]
    fn write(self, values: *const u32) -> Result<u64, Reason> {
        let mut sum = 0;
        self.each(|i, element| {
            // SAFETY: as in `store`; the frame is this program's alone.
            unsafe {
                let raw = (*values.add(i)).to_be();
                *element = raw;
                sum = counted(sum, raw);
            }
        })?;
        Ok(sum)
    }
}

/// `sum` and one element more.
///
/// Written out, or LLVM adds up a stride of elements at once, and has to keep them all until then, on the
/// stack.
#[inline(always)]
fn counted(mut sum: u64, element: u32) -> u64 {
    // SAFETY: one addition of registers.
    unsafe { asm!("{0} += {1}", inout(reg) sum, in(reg) u64::from(element), options(pure, nomem, nostack)) };
    sum
}

/// `all` and the bits of one element more; written out as in [`counted`].
#[inline(always)]
fn collected(mut all: u64, bits: u64) -> u64 {
    // SAFETY: one operation on registers.
    unsafe { asm!("{0} |= {1}", inout(reg) all, in(reg) bits, options(pure, nomem, nostack)) };
    all
}

/// An element as a signed number of 64 bits; written out, or LLVM swaps 32 of them and needs two shifts more.
#[inline(always)]
fn signed(raw: u32) -> i64 {
    let mut element = i64::from(raw);
    // SAFETY: the lower bytes become the upper ones in network order, and their sign all bits above.
    unsafe { asm!("{0} = be64 {0}", "{0} s>>= 32", inout(reg) element, options(pure, nomem, nostack)) };
    element
}

/// All ones of a negative number, else zero. Written out, since LLVM would make of the shift the branch that
/// it stands for.
#[inline(always)]
fn sign(mut number: i64) -> i64 {
    // SAFETY: all bits become the sign.
    unsafe { asm!("{0} s>>= 63", inout(reg) number, options(pure, nomem, nostack)) };
    number
}

/// The larger of two as signed numbers, without a branch: a branch for every element would be two ways for
/// the verifier each time.
#[inline(always)]
fn larger(a: u32, b: u32) -> u32 {
    let is_smaller = sign(i64::from(a as i32) - i64::from(b as i32));
    a ^ (a ^ b) & is_smaller as u32
}
