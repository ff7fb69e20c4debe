//! Two 16-bit integers in a word, so that adding words adds both.
//!
//! A word is `high * 2^16 + low` with both of them signed: a negative low half has borrowed one from the
//! upper 16 bits. Sums of words are the same sum of the halves' sums, as long as these fit 16 bits.

pub(super) fn word(high: i32, low: i32) -> i32 {
    (high << 16).wrapping_add(low)
}

pub(super) fn halves(word: i32) -> (i32, i32) {
    let low = i32::from(word as i16);
    (word.wrapping_sub(low) >> 16, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_words_hold_the_sums_of_both_halves() {
        let most = i32::from(i16::MAX);
        for (high, low) in [(0, 0), (0, -1), (-1, 0), (-1, -1), (most, most), (-most, -most), (most, -most)] {
            assert_eq!(halves(word(high, low)), (high, low));
            for (other_high, other_low) in
                [(0, 0), (-high, 0), (0, -low), (-high, -low), (high / -2, low / -2)]
            {
                let sum = word(high, low).wrapping_add(word(other_high, other_low));
                assert_eq!(halves(sum), (high + other_high, low + other_low));
            }
        }
    }
}
