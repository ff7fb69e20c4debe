//! Passes over a chunk's elements: network order on the wire, host order in memory.
//!
//! Static mode's addition wraps, like the eBPF aggregator's; senders limit their values so that it does not.
//! Dynamic mode's addition saturates and reports it (ATP section 3.8).
#![deny(unsafe_code)]

pub mod block;

/// Replaces the first values by the elements of `payload`.
pub fn store(values: &mut [i32], payload: &[u8]) {
    dispatch(Pass::Store, values, payload);
}

/// Adds the elements of `payload` to the first values.
pub fn add(values: &mut [i32], payload: &[u8]) {
    dispatch(Pass::Add, values, payload);
}

/// Adds the elements of `payload` to the first values and clamps sums that do not fit. Returns whether one
/// did not.
#[must_use]
pub fn add_saturating(values: &mut [i32], payload: &[u8]) -> bool {
    dispatch(Pass::AddSaturating, values, payload)
}

/// Replaces the first values by the larger ones of them and the elements of `payload`, as signed numbers.
pub fn maximum(values: &mut [i32], payload: &[u8]) {
    dispatch(Pass::Maximum, values, payload);
}

/// Replaces the elements of `payload` by the first values.
pub fn write(payload: &mut [u8], values: &[i32]) {
    let (elements, _) = payload.as_chunks_mut::<4>();
    for (element, value) in elements.iter_mut().zip(values) {
        *element = value.to_be_bytes();
    }
}

#[derive(Clone, Copy)]
enum Pass {
    Store,
    Add,
    AddSaturating,
    Maximum,
}

/// Runs a pass with the widest vectors of the machine. Both variants have the same source and the same
/// results.
fn dispatch(pass: Pass, values: &mut [i32], payload: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2, the function's only requirement.
        #[expect(unsafe_code, reason = "calls a function for AVX2 machines on one")]
        return unsafe { pass_avx2(pass, values, payload) };
    }
    pass_portable(pass, values, payload)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pass_avx2(pass: Pass, values: &mut [i32], payload: &[u8]) -> bool {
    pass_portable(pass, values, payload)
}

/// Returns whether a sum was clamped.
#[inline(always)]
fn pass_portable(pass: Pass, values: &mut [i32], payload: &[u8]) -> bool {
    let (elements, _) = payload.as_chunks::<4>();
    let pairs = values.iter_mut().zip(elements).map(|(value, element)| (value, i32::from_be_bytes(*element)));
    match pass {
        Pass::Store => pairs.for_each(|(value, element)| *value = element),
        Pass::Add => pairs.for_each(|(value, element)| *value = value.wrapping_add(element)),
        Pass::AddSaturating => return pairs.fold(0, add_one) < 0,
        Pass::Maximum => pairs.for_each(|(value, element)| *value = (*value).max(element)),
    }
    false
}

/// Adds to one value. The sign of the result shows whether any value was clamped so far. It has no branch, so
/// that it is vectorised.
#[inline(always)]
fn add_one(clamped: i32, (value, element): (&mut i32, i32)) -> i32 {
    let sum = value.wrapping_add(element);
    // Both terms have another sign than their sum.
    let is_out = (*value ^ sum) & (element ^ sum);
    let limit = (*value >> 31) ^ i32::MAX;
    *value = if is_out < 0 { limit } else { sum };
    clamped | is_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(elements: &[i32]) -> Vec<u8> {
        elements.iter().flat_map(|element| element.to_be_bytes()).collect()
    }

    proptest! {
        #[test]
        fn all_variants_have_the_same_results(pairs in prop::collection::vec(any::<(i32, i32)>(), 0..900)) {
            let (values, elements): (Vec<i32>, Vec<i32>) = pairs.into_iter().unzip();
            let payload = bytes(&elements);
            let oracle: Vec<i32> = values.iter().zip(&elements).map(|(a, b)| a.wrapping_add(*b)).collect();
            let (mut fast, mut plain) = (values.clone(), values.clone());
            add(&mut fast, &payload);
            pass_portable(Pass::Add, &mut plain, &payload);
            prop_assert_eq!(&fast, &oracle);
            prop_assert_eq!(&plain, &oracle);
            let larger: Vec<i32> =
                values.iter().zip(&elements).map(|(a, b)| if a > b { *a } else { *b }).collect();
            let mut largest = values.clone();
            maximum(&mut largest, &payload);
            prop_assert_eq!(&largest, &larger);
            let mut stored = values;
            store(&mut stored, &payload);
            prop_assert_eq!(&stored, &elements);
            let mut written = vec![0; payload.len()];
            write(&mut written, &oracle);
            prop_assert_eq!(written, oracle.iter().flat_map(|sum| sum.to_be_bytes()).collect::<Vec<u8>>());
        }

        #[test]
        fn clamped_sums_are_reported(
            pairs in prop::collection::vec((any::<i32>(), any::<i32>(), 0..31u32), 0..900),
        ) {
            // Mostly small ones, so that many chunks fit.
            let (values, elements): (Vec<i32>, Vec<i32>) =
                pairs.into_iter().map(|(a, b, shift)| (a >> shift, b >> shift)).unzip();
            let payload = bytes(&elements);
            let wide = |(a, b): (&i32, &i32)| i64::from(*a) + i64::from(*b);
            let sums: Vec<i64> = values.iter().zip(&elements).map(wide).collect();
            let limit = |sum: &i64| (*sum).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
            let oracle: Vec<i32> = sums.iter().map(limit).collect();
            let is_clamped = sums.iter().zip(&oracle).any(|(sum, limited)| *sum != i64::from(*limited));
            let (mut fast, mut plain) = (values.clone(), values);
            prop_assert_eq!(add_saturating(&mut fast, &payload), is_clamped);
            prop_assert_eq!(pass_portable(Pass::AddSaturating, &mut plain, &payload), is_clamped);
            prop_assert_eq!(&fast, &oracle);
            prop_assert_eq!(&plain, &oracle);
        }
    }

    #[test]
    fn sums_at_the_limits_are_not_clamped() {
        let table = [
            (i32::MAX, 0, i32::MAX, false),
            (i32::MAX, 1, i32::MAX, true),
            (i32::MIN, 0, i32::MIN, false),
            (i32::MIN, -1, i32::MIN, true),
            (i32::MIN, i32::MIN, i32::MIN, true),
            (i32::MAX, i32::MIN, -1, false),
        ];
        for (value, element, sum, is_clamped) in table {
            let mut values = [value];
            assert_eq!(add_saturating(&mut values, &bytes(&[element])), is_clamped, "{value} + {element}");
            assert_eq!(values, [sum], "{value} + {element}");
        }
    }
}
