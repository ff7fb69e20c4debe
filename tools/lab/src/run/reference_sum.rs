//! The arithmetic of sums as the documentation defines it (docs/protocol.md, Numbers), with nothing of
//! Sumac's code: what the results of every worker are held to, bit by bit.
//!
//! Values are gone through packet by packet, since by block floating point a packet's largest value decides
//! the factor of all of them.

use sumac_client::{DType, Element, Mode, OpenReply, Reduction, Scale, WireFormat, bf16, f16};

/// The least exponent that a packet can carry.
const LEAST_EXPONENT: i32 = -125;

/// A type of elements that the lab can make and check.
pub trait Value: Element + Send + Sync + PartialEq + std::fmt::Debug {
    /// The most that rounding a number to this type is off, for numbers of up to 1.
    const HALF_STEP: f64;

    /// A value from 24 random bits and a magnitude of 2^-shift, at most 1; integers at most a sixteenth of
    /// their range, which is what sixteen workers can add.
    fn of(random: i32, shift: u32) -> Self;
    /// The same number in double precision, which holds every value of every type.
    fn exact(self) -> f64;
    fn nearest(number: f64) -> Self;
    /// Whether both are the same bits.
    fn same(self, other: Self) -> bool;
}

impl Value for f32 {
    const HALF_STEP: f64 = 1.0 / 33_554_432.0;

    fn of(random: i32, shift: u32) -> f32 {
        (random as f32 / 8_388_608.0) * (1.0 / (1u32 << shift) as f32)
    }

    fn exact(self) -> f64 {
        f64::from(self)
    }

    fn nearest(number: f64) -> f32 {
        number as f32
    }

    fn same(self, other: f32) -> bool {
        self.to_bits() == other.to_bits()
    }
}

macro_rules! half_precision {
    ($($float:ty: $half_step:expr;)*) => {$(
        impl Value for $float {
            const HALF_STEP: f64 = $half_step;

            fn of(random: i32, shift: u32) -> $float {
                <$float>::from_f32(f32::of(random, shift))
            }

            fn exact(self) -> f64 {
                self.to_f64()
            }

            fn nearest(number: f64) -> $float {
                // Sums become floats of single precision first.
                <$float>::from_f32(number as f32)
            }

            fn same(self, other: $float) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
    )*};
}

half_precision! { f16: 1.0 / 4096.0; bf16: 1.0 / 512.0; }

impl Value for i32 {
    const HALF_STEP: f64 = 0.0;

    fn of(random: i32, shift: u32) -> i32 {
        (random << 4) >> shift
    }

    fn exact(self) -> f64 {
        f64::from(self)
    }

    fn nearest(number: f64) -> i32 {
        number as i32
    }

    fn same(self, other: i32) -> bool {
        self == other
    }
}

/// The arithmetic of a job's sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceSum {
    /// Ranks of each worker, which contributes their sum, rounded to the tensor's type.
    pub ranks_per_host: usize,
    /// The factor for floats; none: block floating point.
    pub scale: Option<f32>,
    /// The wire format of floats.
    pub wire: WireFormat,
    /// 32-bit words of a packet.
    pub words: usize,
    /// The reduction of the workers' values.
    pub reduction: Reduction,
    /// Whether the job is dynamic: a packet whose integers saturate is summed as floats.
    pub dynamic: bool,
    /// The loss bound of a direct job, whose values are added as floats in any order.
    pub direct: Option<f32>,
    /// Whether its owners contribute nothing: within a loss bound a sum may have no value at all.
    pub has_servers: bool,
}

/// The reduced values of a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced<T> {
    pub values: Vec<T>,
    /// In a dynamic job, where the sum of only some workers leaves the range of the integers: the results by
    /// way of floats. Who meets whom first decides which ones all workers get.
    pub or_floats: Option<Vec<T>>,
}

/// Whether a sum of integers leaves their range on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Saturation {
    /// However the workers meet.
    Never,
    /// In some orders.
    Maybe,
    Surely,
}

/// One packet's factor.
#[derive(Clone, Copy, Debug)]
struct Factor {
    up: f64,
    down: f64,
    limit: f64,
}

impl ReferenceSum {
    /// Returns the arithmetic of an open job.
    pub fn of(opened: &OpenReply, reduction: Reduction, loss_bound: f32) -> ReferenceSum {
        let scale = match opened.scale {
            Scale::Fixed(scale) => Some(scale),
            Scale::Block => None,
        };
        let (wire, words) = (opened.wire, usize::from(opened.elements));
        let direct = (opened.mode == Mode::Direct).then_some(loss_bound);
        let dynamic = opened.dynamic.is_some();
        let has_servers = opened.servers > 0;
        ReferenceSum { ranks_per_host: 1, scale, wire, words, reduction, dynamic, direct, has_servers }
    }

    pub fn packet<T: Value>(self) -> usize {
        self.words * self.values_per_word(T::DTYPE)
    }

    /// Values that share a word: two where floats are summed as 16-bit integers.
    pub fn values_per_word(self, dtype: DType) -> usize {
        if self.wire == WireFormat::Int16 && self.is_scaled(dtype) { 2 } else { 1 }
    }

    /// Sums up a packet's values of these workers (by index) only, scaled to the sum of all, as bounded loss
    /// does. Of floats.
    pub fn reduce_some<T: Value>(self, workers: &[Vec<T>], contributors: &[usize]) -> Vec<T> {
        let largest = workers.iter().flatten().map(|value| value.exact().abs()).fold(0.0, f64::max);
        let factor = self.factor(workers.len() as f64, largest);
        let down = factor.down * workers.len() as f64 / contributors.len() as f64;
        let factor = Factor { down, ..factor };
        let length = workers.first().map_or(0, Vec::len);
        let column = |index: usize| contributors.iter().map(move |rank| workers[*rank][index].exact());
        (0..length).map(|index| T::nearest(factor.sum(column(index)))).collect()
    }

    /// The same without rounding.
    pub fn exact_some(self, values: impl ExactSizeIterator<Item = f64>, workers: usize) -> f64 {
        let scaled =
            if self.reduction == Reduction::Sum { workers as f64 / values.len() as f64 } else { 1.0 };
        self.exact(values) * scaled
    }

    /// The contributions of workers with several ranks: the sums, or means, of floats. Integers, maxima and
    /// minima are the same however they are grouped.
    pub fn contributions<T: Value>(self, ranks: Vec<Vec<T>>) -> Vec<Vec<T>> {
        if self.ranks_per_host < 2 || !self.is_scaled(T::DTYPE) {
            return ranks;
        }
        let sum =
            |of_host: &[Vec<T>], index: usize| self.exact(of_host.iter().map(|values| values[index].exact()));
        let contribution = |of_host: &[Vec<T>]| {
            let length = of_host.first().map_or(0, Vec::len);
            (0..length).map(|index| T::nearest(sum(of_host, index))).collect()
        };
        ranks.chunks(self.ranks_per_host).map(contribution).collect()
    }

    /// Whether sums of a tensor of `elements` values of so many ranks are exact: in a static job, of floats
    /// that fit in one packet as fixed-point numbers of their type's whole range.
    pub fn is_exact<T: Value>(self, ranks: usize, elements: usize) -> bool {
        let range: u32 = match T::DTYPE {
            DType::Float32 => 277,
            DType::Float16 => 40,
            DType::Bfloat16 => 261,
            DType::Int32 => return false,
        };
        let workers = ranks / self.ranks_per_host.max(1);
        let limb = i32::MAX.ilog2() + 1 - workers.next_power_of_two().ilog2();
        let is_block_scaled = self.scale.is_none() && self.is_scaled(T::DTYPE);
        let is_static = !self.dynamic && self.direct.is_none();
        is_block_scaled && is_static && elements * range.div_ceil(limb) as usize <= self.words
    }

    /// Reduces contributions to an exact sum: values of this crate are so near each other that doubles hold
    /// it.
    pub fn reduce_exactly<T: Value>(self, workers: &[Vec<T>]) -> Reduced<T> {
        let length = workers.first().map_or(0, Vec::len);
        let sum = |index: usize| self.exact(workers.iter().map(|values| values[index].exact()));
        Reduced { values: (0..length).map(|index| T::nearest(sum(index))).collect(), or_floats: None }
    }

    /// Reduces a packet's contributions; all have the same length.
    pub fn reduce<T: Value>(self, workers: &[Vec<T>]) -> Reduced<T> {
        let length = workers.first().map_or(0, Vec::len);
        let column = |index: usize| workers.iter().map(move |values| values[index].exact());
        let each = |one: &dyn Fn(usize) -> f64| (0..length).map(|index| T::nearest(one(index))).collect();
        let only = |values| Reduced { values, or_floats: None };
        match self.reduction {
            Reduction::Min => only(each(&|i| column(i).fold(f64::INFINITY, f64::min))),
            Reduction::Max => only(each(&|i| column(i).fold(f64::NEG_INFINITY, f64::max))),
            // Sums of integers are exact in double precision; the mean of integers is rounded half to even.
            Reduction::Sum | Reduction::Mean if !self.is_scaled(T::DTYPE) => {
                only(each(&|i| self.exact(column(i)).round_ties_even()))
            }
            Reduction::Sum | Reduction::Mean => {
                let largest = workers.iter().flatten().map(|value| value.exact().abs()).fold(0.0, f64::max);
                let factor = self.factor(workers.len() as f64, largest);
                let is_packed = self.values_per_word(T::DTYPE) > 1;
                // Chunks whose exponent is not known are sums of floats.
                let least = if self.scale.is_none() { Saturation::Maybe } else { Saturation::Never };
                let saturation =
                    (0..length).map(|i| factor.saturation(is_packed, column(i))).chain([least]).max();
                // In double precision in the order of the ranks, rounded once.
                let floats = || match is_packed {
                    true => self.sum_of_halves(workers),
                    false => each(&|i| self.exact(column(i))),
                };
                let integers = || each(&|i| factor.sum(column(i)));
                match saturation.filter(|_| self.dynamic) {
                    Some(Saturation::Surely) => only(floats()),
                    Some(Saturation::Maybe) => Reduced { values: integers(), or_floats: Some(floats()) },
                    Some(Saturation::Never) | None => only(integers()),
                }
            }
        }
    }

    /// The sum of floats as 16-bit integers of each packet's own exponent, as is the result.
    fn sum_of_halves<T: Value>(self, workers: &[Vec<T>]) -> Vec<T> {
        let own = |values: &Vec<T>| halves(&values.iter().map(|value| value.exact()).collect::<Vec<_>>());
        let workers: Vec<Vec<f64>> = workers.iter().map(own).collect();
        let length = workers.first().map_or(0, Vec::len);
        let sum = |index: usize| f64::from(workers.iter().map(|values| values[index]).sum::<f64>() as f32);
        let divisor = if self.reduction == Reduction::Mean { workers.len() as f64 } else { 1.0 };
        let sums = halves(&(0..length).map(sum).collect::<Vec<_>>());
        sums.into_iter().map(|sum| T::nearest(sum / divisor)).collect()
    }

    /// Whether a value may be the result of a direct job: that of all workers' values, up to the rounding of
    /// each addition; within a loss bound that of some of them, or `own` as if all had the same.
    pub fn is_near(self, got: f64, values: &[f64], own: f64, half_step: f64) -> bool {
        let workers = values.len() as f64;
        let near = |expected: f64| (got - expected).abs() <= 4.0 * workers * workers * half_step;
        if near(self.exact(values.iter().copied())) {
            return true;
        }
        let divisor = if self.reduction == Reduction::Mean { workers } else { 1.0 };
        let part = |set: u32| {
            (0..).zip(values).filter(move |(rank, _)| set >> rank & 1 == 1).map(|(_, value)| value)
        };
        let of_some = |set: u32| {
            let (sum, held) = (part(set).sum::<f64>(), f64::from(set.count_ones()));
            near(sum / divisor) || near(sum * workers / held / divisor)
        };
        let least = u32::from(!self.has_servers);
        self.direct.is_some_and(|bound| bound > 0.0)
            && (near(own * workers / divisor) || (least..1 << values.len().min(16)).any(of_some))
    }

    /// The same without rounding anything on the way.
    pub fn exact(self, values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let workers = values.len() as f64;
        match self.reduction {
            Reduction::Sum => values.sum(),
            Reduction::Mean => values.sum::<f64>() / workers,
            Reduction::Min => values.fold(f64::INFINITY, f64::min),
            Reduction::Max => values.fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn is_scaled(self, dtype: DType) -> bool {
        dtype != DType::Int32 && matches!(self.reduction, Reduction::Sum | Reduction::Mean)
    }

    fn factor(self, workers: f64, largest: f64) -> Factor {
        let full = match self.wire {
            WireFormat::Int16 => f64::from(i16::MAX),
            WireFormat::Int32 | WireFormat::Auto => f64::from(i32::MAX),
        };
        let (up, down) = match self.scale {
            Some(scale) => (f64::from(scale), 1.0 / f64::from(scale)),
            None => {
                let power = power_above(largest);
                (full / (workers * power), workers * power / full)
            }
        };
        let divisor = if self.reduction == Reduction::Mean { workers } else { 1.0 };
        // Each worker has its part of the range, unless sums that saturate are noticed.
        let is_noticed = self.dynamic && self.wire != WireFormat::Int16;
        let limit = if is_noticed { full } else { (full / workers).floor() };
        Factor { up, down: down / divisor, limit }
    }
}

impl Factor {
    fn sum(self, values: impl Iterator<Item = f64>) -> f64 {
        let integer = |value: f64| (value * self.up).clamp(-self.limit, self.limit).round_ties_even() as i64;
        values.map(integer).sum::<i64>() as f64 * self.down
    }

    /// Whether one of the values, their sum, or the sum of some of them is beyond the range of the integers.
    /// Sums of two values a word are within it, if each value is.
    fn saturation(self, is_packed: bool, mut values: impl Iterator<Item = f64>) -> Saturation {
        if is_packed {
            let is_beyond = values.any(|value| (value * self.up).abs() >= self.limit + 1.0);
            return if is_beyond { Saturation::Surely } else { Saturation::Never };
        }
        let (mut above, mut below, mut largest) = (0.0, 0.0, 0f64);
        for integer in values.map(|value| (value * self.up).round_ties_even()) {
            *(if integer > 0.0 { &mut above } else { &mut below }) += integer;
            largest = largest.max(integer.abs());
        }
        if largest > self.limit || f64::abs(above + below) > self.limit {
            Saturation::Surely
        } else if above > self.limit || below < -self.limit {
            Saturation::Maybe
        } else {
            Saturation::Never
        }
    }
}

/// Values as multiples of a 32,766th of the power of two above them, without negative zeros.
fn halves(values: &[f64]) -> Vec<f64> {
    let power = power_above(values.iter().fold(0.0, |largest, value| value.abs().max(largest)));
    let kept = |value: &f64| (value / power * 32_766.0).round_ties_even() / 32_766.0 * power + 0.0;
    values.iter().map(kept).collect()
}

/// The smallest power of two that is not below a number, and that a packet can carry.
fn power_above(largest: f64) -> f64 {
    let mut exponent = LEAST_EXPONENT;
    while f64::exp2(f64::from(exponent)) < largest {
        exponent += 1;
    }
    f64::exp2(f64::from(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: ReferenceSum = ReferenceSum {
        ranks_per_host: 1,
        scale: None,
        wire: WireFormat::Int32,
        words: 4,
        reduction: Reduction::Sum,
        direct: None,
        has_servers: false,
        dynamic: false,
    };

    #[test]
    fn only_servers_may_have_no_value_of_a_sum() {
        let bounded = ReferenceSum { direct: Some(0.1), ..BLOCK };
        let of_servers = ReferenceSum { has_servers: true, ..bounded };
        let near = |reference: ReferenceSum, got| reference.is_near(got, &[1.0, 2.5], 1.0, 1e-7);
        assert!(near(bounded, 3.5) && near(bounded, 2.0) && near(of_servers, 2.5));
        assert!(near(of_servers, 0.0) && !near(bounded, 0.0));
        assert!(!near(ReferenceSum { direct: Some(0.0), ..of_servers }, 0.0));
    }

    #[test]
    fn the_largest_value_decides_the_factor_of_all() {
        let workers = [vec![1.0f32, 1e-9, -1.0], vec![1.0, 1e-9, 1.0]];
        let sums = BLOCK.reduce(&workers).values;
        // f = (2^31 - 1) / 2: 1e-9 is 1.07 steps, which is one step of each worker.
        assert_eq!(sums, [2.0, (4.0 / f64::from(i32::MAX)) as f32, 0.0]);
        let fixed = ReferenceSum { scale: Some(1024.0), ..BLOCK };
        assert_eq!(fixed.reduce(&workers).values, [2.0, 0.0, 0.0]);
    }

    #[test]
    fn a_dynamic_packet_that_saturates_is_summed_as_floats() {
        let dynamic = ReferenceSum { scale: Some(1e9), dynamic: true, ..BLOCK };
        // 2.5e9 is beyond 2^31; its packet's small values keep what integers would lose.
        let workers = [vec![1.25f32, 1e-12], vec![1.25, 1e-12]];
        let only = |values: &[f32]| Reduced { values: values.to_vec(), or_floats: None };
        assert_eq!(dynamic.reduce(&workers), only(&[2.5, 2e-12]));
        let within = [vec![1.0f32, 1e-12], vec![1.0, 1e-12]];
        assert_eq!(dynamic.reduce(&within), only(&[2.0, 0.0]));
        assert_eq!(dynamic.reduce(&[vec![3.0f32], vec![-3.0]]), only(&[0.0]));
    }

    #[test]
    fn where_a_part_of_a_sum_saturates_both_forms_are_right() {
        let dynamic = ReferenceSum { scale: Some(1e9), dynamic: true, ..BLOCK };
        // The first two are beyond 2^31 together, all three are not.
        let workers = [vec![1.25f32, 1e-12], vec![1.25, 1e-12], vec![-1.0, 1e-12]];
        let reduced = dynamic.reduce(&workers);
        assert_eq!(reduced, Reduced { values: vec![1.5, 0.0], or_floats: Some(vec![1.5, 3e-12]) });
        let negative = workers.map(|values| values.iter().map(|value| -value).collect::<Vec<_>>());
        assert_eq!(dynamic.reduce(&negative).or_floats, Some(vec![-1.5, -3e-12]));
    }

    #[test]
    fn sums_of_some_are_scaled_to_those_of_all() {
        let workers = [vec![1.0f32, -0.5], vec![0.25, 0.5], vec![1.0, 1.0]];
        let near = |got: Vec<f32>, expected: [f64; 2]| {
            assert!(
                got.iter().zip(expected).all(|(got, one)| (f64::from(*got) - one).abs() < 1e-6),
                "{got:?}"
            );
        };
        near(BLOCK.reduce_some(&workers, &[0, 2]), [3.0, 0.75]);
        near(ReferenceSum { reduction: Reduction::Mean, ..BLOCK }.reduce_some(&workers, &[1]), [0.25, 0.5]);
        assert_eq!(BLOCK.exact_some([1.0, 1.0].into_iter(), 3), 3.0);
        assert_eq!(BLOCK.reduce_some(&workers, &[0, 1, 2]), BLOCK.reduce(&workers).values);
    }

    #[test]
    fn ranks_of_a_host_are_added_before_they_are_scaled() {
        let of_two = ReferenceSum { scale: Some(1.0), ranks_per_host: 2, ..BLOCK };
        // Each value by itself would be nothing.
        let ranks = [vec![0.5f32], vec![0.75], vec![-0.5], vec![2.0]];
        let reduce = |sum: ReferenceSum| sum.reduce(&sum.contributions(ranks.to_vec())).values;
        assert_eq!(reduce(of_two), [3.0]);
        assert_eq!(reduce(ReferenceSum { reduction: Reduction::Mean, ..of_two }), [1.0]);
        assert_eq!(of_two.contributions(vec![vec![3], vec![1]]), [vec![3], vec![1]]);
    }

    #[test]
    fn few_floats_are_summed_exactly() {
        let packet = ReferenceSum { words: 352, ..BLOCK };
        assert!(packet.is_exact::<f32>(8, 35) && !packet.is_exact::<f32>(8, 36));
        assert!(packet.is_exact::<f16>(8, 176) && !packet.is_exact::<f16>(8, 177));
        assert!(packet.is_exact::<bf16>(2, 39) && !packet.is_exact::<bf16>(2, 40));
        let others = [
            ReferenceSum { scale: Some(1.0), ..packet },
            ReferenceSum { dynamic: true, ..packet },
            ReferenceSum { direct: Some(0.0), ..packet },
            ReferenceSum { reduction: Reduction::Max, ..packet },
        ];
        assert!(others.iter().all(|other| !other.is_exact::<f32>(8, 1)));
        assert!(!packet.is_exact::<i32>(8, 1));
        let workers = [vec![1.0f32, 1e-9], vec![1.0, 1e-9]];
        assert_eq!(packet.reduce_exactly(&workers).values, [2.0, 2e-9]);
    }

    #[test]
    fn means_and_extremes() {
        let integers = [vec![1, -7, 3], vec![2, 9, 4]];
        let reduce = |reduction| ReferenceSum { reduction, ..BLOCK }.reduce(&integers).values;
        assert_eq!(reduce(Reduction::Sum), [3, 2, 7]);
        assert_eq!(reduce(Reduction::Mean), [2, 1, 4]);
        assert_eq!(reduce(Reduction::Min), [1, -7, 3]);
        assert_eq!(reduce(Reduction::Max), [2, 9, 4]);
    }

    #[test]
    fn two_halves_share_a_word_where_floats_are_summed() {
        let int16 = ReferenceSum { wire: WireFormat::Int16, ..BLOCK };
        assert_eq!((int16.packet::<f32>(), int16.packet::<i32>(), BLOCK.packet::<f16>()), (8, 4, 4));
        let max = ReferenceSum { reduction: Reduction::Max, ..int16 };
        assert_eq!(max.packet::<f32>(), 4);
    }

    #[test]
    fn powers_of_two_are_their_own() {
        assert_eq!([0.5, 0.75, 1.0, 1.5].map(power_above), [0.5, 1.0, 1.0, 2.0]);
        assert_eq!(power_above(0.0), f64::exp2(-125.0));
    }
}
