//! Tensors from seeds, and their sums by an arithmetic of their own.

/// What floats are multiplied with unless a test says otherwise; the daemon's default.
pub const SCALE: f32 = 1_048_576.0;

/// Magnitudes stay below this. Sums of four need more digits than a float has, so that rounding is tested too.
const MAGNITUDE: f32 = 64.0;

/// The value of worker `rank` at `index`: between -64 and 64, with more digits than the scale keeps.
#[must_use]
pub fn value(seed: u64, rank: u16, index: usize) -> f32 {
    let bits = mix(seed ^ u64::from(rank) << 48 ^ index as u64);
    // 24 bits are a float's digits, half of them negative.
    ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0) * MAGNITUDE
}

/// The value of worker `rank` at `index` for sums of integers.
#[must_use]
pub fn integer(seed: u64, rank: u16, index: usize) -> i32 {
    // A sixteenth of the range: the most that each of sixteen workers may bring.
    mix(seed ^ u64::from(rank) << 48 ^ index as u64) as i32 / 16
}

/// What `world` workers' [`value`]s add up to: each scaled and rounded half to even, the integers added, the sum
/// scaled back.
#[must_use]
pub fn sum(seed: u64, world: u16, index: usize) -> f32 {
    let fixed = |rank| f64::from(value(seed, rank, index)) * f64::from(SCALE);
    let total: f64 = (0..world).map(|rank| fixed(rank).round_ties_even()).sum();
    // Exact up to here: a double holds every sum of 32-bit integers. Here the float is rounded, once.
    total as f32 / SCALE
}

/// What `world` workers' [`integer`]s add up to.
#[must_use]
pub fn integer_sum(seed: u64, world: u16, index: usize) -> i32 {
    (0..world).map(|rank| integer(seed, rank, index)).sum()
}

/// Asserts that every worker has the exact sums, to the bit.
///
/// # Panics
/// At the first element that differs.
pub fn assert_sums(what: &str, seed: u64, sums: &[Vec<f32>]) {
    let world = sums.len() as u16;
    for (rank, got) in sums.iter().enumerate() {
        for (index, got) in got.iter().enumerate() {
            let expected = sum(seed, world, index);
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{what}: element {index} on rank {rank} is {got}, not {expected}"
            );
        }
    }
}

/// The finalizer of splitmix64.
fn mix(state: u64) -> u64 {
    let mut bits = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
