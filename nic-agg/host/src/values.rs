//! The passes over a chunk's elements: network order on the wire, host order in slots. Addition wraps,
//! like the eBPF aggregator's; senders limit their values so that it never does.

/// Replaces the first values by the elements of `payload`.
pub fn store(values: &mut [i32], payload: &[u8]) {
    dispatch(Pass::Store, values, payload);
}

/// Adds the elements of `payload` to the first values.
pub fn add(values: &mut [i32], payload: &[u8]) {
    dispatch(Pass::Add, values, payload);
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
    Maximum,
}

/// Takes the widest vectors that the machine has. Both ways are the same source and give the same bits.
fn dispatch(pass: Pass, values: &mut [i32], payload: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has AVX2, the function's only requirement.
        #[expect(unsafe_code, reason = "calls a function for AVX2 machines on one")]
        return unsafe { pass_avx2(pass, values, payload) };
    }
    pass_portable(pass, values, payload);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pass_avx2(pass: Pass, values: &mut [i32], payload: &[u8]) {
    pass_portable(pass, values, payload);
}

#[inline(always)]
fn pass_portable(pass: Pass, values: &mut [i32], payload: &[u8]) {
    let (elements, _) = payload.as_chunks::<4>();
    let pairs = values.iter_mut().zip(elements);
    match pass {
        Pass::Store => pairs.for_each(|(value, element)| *value = i32::from_be_bytes(*element)),
        Pass::Add => {
            pairs.for_each(|(value, element)| *value = value.wrapping_add(i32::from_be_bytes(*element)));
        }
        Pass::Maximum => {
            pairs.for_each(|(value, element)| *value = (*value).max(i32::from_be_bytes(*element)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_ways_give_the_same_bits(pairs in prop::collection::vec(any::<(i32, i32)>(), 0..900)) {
            let (values, elements): (Vec<i32>, Vec<i32>) = pairs.into_iter().unzip();
            let payload: Vec<u8> = elements.iter().flat_map(|element| element.to_be_bytes()).collect();
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
    }
}
