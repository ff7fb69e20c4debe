//! The passes of vector code over sums and means of floats, for vectors of any width.

/// Defines `encode` and `decode` for a module that has `LANES` values in `BLOCK` bytes of wire, `load`,
/// `store`, `swap`, `pack`, `unpack`, `ToIntegers` and `to_values`.
macro_rules! scaled_passes {
    ($features:tt, $vector:ty, $inverse:ident) => {
        /// Writes one block of wire for each vector of values, or for two when `packed`. Returns whether all
        /// values are finite and fit; otherwise the output is of no use.
        #[target_feature(enable = $features)]
        pub(super) fn encode<T: Floats<$vector>>(
            quantizer: Quantizer,
            packed: bool,
            tensor: &[u8],
            wire: &mut [u8],
        ) -> bool {
            let mut to_integers = ToIntegers::new(quantizer);
            let blocks = wire.as_chunks_mut::<BLOCK>().0.iter_mut();
            if packed {
                for (from, to) in tensor.chunks_exact(2 * LANES * T::SIZE).zip(blocks) {
                    let (first, second) = from.split_at(LANES * T::SIZE);
                    will_read(first.as_ptr(), LANES * T::SIZE);
                    will_read(second.as_ptr(), LANES * T::SIZE);
                    // SAFETY: both halves have a vector's values.
                    let (first, second) = unsafe { (T::load(first.as_ptr()), T::load(second.as_ptr())) };
                    let (first, second) = (to_integers.convert(first), to_integers.convert(second));
                    store(to, swap(pack(first, second)));
                }
            } else {
                for (from, to) in tensor.chunks_exact(LANES * T::SIZE).zip(blocks) {
                    will_read(from.as_ptr(), LANES * T::SIZE);
                    // SAFETY: the chunk has a vector's values.
                    let values = unsafe { T::load(from.as_ptr()) };
                    store(to, swap(to_integers.convert(values)));
                }
            }
            quantizer.all_fit(to_integers.largest())
        }

        /// Reads one block of wire for each vector of values, or for two when `packed`.
        #[target_feature(enable = $features)]
        pub(super) fn decode<T: Floats<$vector>>(
            dequantizer: Dequantizer,
            packed: bool,
            wire: &[u8],
            tensor: &mut [u8],
        ) {
            let inverse = $inverse(dequantizer.inverse);
            let blocks = wire.as_chunks::<BLOCK>().0.iter();
            if packed {
                for (from, to) in blocks.zip(tensor.chunks_exact_mut(2 * LANES * T::SIZE)) {
                    let (first, second) = unpack(swap(load(from)));
                    let (to_first, to_second) = to.split_at_mut(LANES * T::SIZE);
                    will_write(to_first.as_ptr(), LANES * T::SIZE);
                    will_write(to_second.as_ptr(), LANES * T::SIZE);
                    // SAFETY: both halves have room for a vector's values.
                    unsafe {
                        T::store(to_first.as_mut_ptr(), to_values(first, inverse));
                        T::store(to_second.as_mut_ptr(), to_values(second, inverse));
                    }
                }
            } else {
                for (from, to) in blocks.zip(tensor.chunks_exact_mut(LANES * T::SIZE)) {
                    will_write(to.as_ptr(), LANES * T::SIZE);
                    let values = to_values(swap(load(from)), inverse);
                    // SAFETY: the chunk has room for a vector's values.
                    unsafe { T::store(to.as_mut_ptr(), values) };
                }
            }
        }
    };
}
pub(super) use scaled_passes;
