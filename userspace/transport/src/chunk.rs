//! The conversion of one chunk of an operation: from the tensor to a packet, and from a result to the tensor.
//!
//! An operation has a range of values that this worker contributes and one whose results it takes. Other
//! values travel as zeros, and their results are not written. Both ranges may begin and end anywhere in a
//! chunk.

use std::ops::Range;

use half::{bf16, f16};
use sumac_job::{DType, NonFinitePolicy, Scale};
use sumac_wire::{
    Header, Reason,
    header::{Format, exponent, flag},
};

use crate::{
    convert::{Arithmetic, Codec, Encoded, ExactSum, fill_nan, raw},
    error::OpError,
    operation::Operation,
    params::JobParams,
    words::Words,
};

/// The values of a chunk in their operation, and their words in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: usize,
    pub values: usize,
    pub words: usize,
}

impl Span {
    pub fn overlap(&self, range: &Range<usize>) -> Range<usize> {
        let first = self.first.max(range.start);
        first..(self.first + self.values).min(range.end).max(first)
    }
}

/// The form of the values in a chunk's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Words that aggregators add, scaled by this exponent where the operation has one.
    Scaled(i8),
    /// The values as floats of 32 bits, which the parameter host adds (ATP section 3.8); where two values
    /// share a word, as integers of 16 bits at each packet's own exponent.
    Floats,
}

impl Form {
    /// The exponent as packets carry it.
    pub fn exponent(self) -> i8 {
        match self {
            Form::Scaled(exponent) => exponent,
            Form::Floats => exponent::NONE,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkCodec {
    pub codec: Codec,
    /// Whether sums are clamped where they overflow, and travel again as floats (dynamic jobs).
    clamped: bool,
    pub scaling: Scale,
    pub not_finite: NonFinitePolicy,
    world: u16,
    pub words: usize,
}

#[derive(Debug, Default)]
pub(crate) struct ConvertedChunk {
    /// Flags of the packet for values that did not fit.
    pub flags: u16,
    pub fault: Option<OpError>,
    pub values: usize,
    /// The packet's own exponent.
    pub exponent: Option<i8>,
}

impl ChunkCodec {
    /// A codec to be replaced by that of a job's parameters.
    pub fn unset() -> ChunkCodec {
        ChunkCodec::new(&JobParams::new(1, 1, 1, 1))
    }

    pub fn new(params: &JobParams) -> ChunkCodec {
        let JobParams { scaling, not_finite, elements, world, .. } = *params;
        let clamped = params.dynamic.is_some();
        let codec = params.codec();
        ChunkCodec {
            codec: if not_finite == NonFinitePolicy::Raw { codec.keeping_infinity() } else { codec },
            clamped,
            scaling,
            not_finite,
            world,
            words: usize::from(elements),
        }
    }

    /// The same codec for results that hold the values of so many workers, which are scaled up to those of
    /// all.
    pub fn of_contributors(self, contributors: u16) -> ChunkCodec {
        ChunkCodec { codec: self.codec.of_contributors(contributors), ..self }
    }

    /// Values in a whole chunk of an operation.
    pub fn chunk(&self, operation: &Operation) -> usize {
        self.words * self.codec.values_per_word(operation.dtype, operation.arithmetic)
    }

    /// The chunk of an operation that begins with value `first`.
    pub fn span(&self, operation: &Operation, first: usize) -> Span {
        let per_word = self.codec.values_per_word(operation.dtype, operation.arithmetic);
        let values = (self.words * per_word).min(operation.count - first);
        let words = match self.exact(operation) {
            Some(exact) => values * exact.words_per_value(),
            None => values.div_ceil(per_word),
        };
        Span { first, values, words }
    }

    /// Whether the chunks of an operation are scaled by an exponent that the workers agree on.
    pub fn needs_exponent(&self, operation: &Operation) -> bool {
        self.codec.needs_exponent(operation.dtype, operation.arithmetic) && self.exact(operation).is_none()
    }

    /// The form of an operation's only chunk where that is an exact sum.
    fn exact(&self, operation: &Operation) -> Option<ExactSum> {
        let Operation { dtype, arithmetic, count, base, loss_bound, .. } = *operation;
        // A parameter host takes the floats themselves, a sum of some workers is scaled, and a part of a
        // tensor has the form of the others.
        if self.clamped || count > self.words || loss_bound > 0.0 || base > 0 {
            return None;
        }
        self.codec.exact(dtype, arithmetic, count, self.words)
    }

    /// Whether two values share a word.
    fn is_packed(&self, operation: &Operation) -> bool {
        self.codec.values_per_word(operation.dtype, operation.arithmetic) > 1
    }

    pub fn format(&self, operation: &Operation) -> Format {
        match operation.arithmetic {
            Arithmetic::Bits => Format::Raw,
            _ if self.exact(operation).is_some() => Format::Int32,
            _ if self.is_packed(operation) => Format::Int16,
            _ => Format::Int32,
        }
    }

    /// Whether the values of an operation can be added as floats where their integers do not fit.
    fn has_floats(&self, operation: &Operation) -> bool {
        let is_sum = matches!(operation.arithmetic, Arithmetic::Sum | Arithmetic::Mean);
        self.clamped && is_sum && operation.dtype != DType::Int32
    }

    /// Whether a sum of an operation may not fit although each value does.
    pub fn may_overflow(&self, operation: &Operation) -> bool {
        let is_sum = matches!(operation.arithmetic, Arithmetic::Sum | Arithmetic::Mean);
        self.clamped && is_sum && operation.dtype == DType::Int32
    }

    /// Whether the chunks of a sum may go as floats: `NaN`, infinity, and small values beside large ones.
    fn keeps_floats(&self, operation: &Operation) -> bool {
        let is_sum = matches!(operation.arithmetic, Arithmetic::Sum | Arithmetic::Mean);
        let is_whole = operation.loss_bound == 0.0;
        self.not_finite == NonFinitePolicy::Raw && is_sum && is_whole && operation.dtype != DType::Int32
    }

    /// Whether the clients sum the chunks of an operation whose results have the flag `overflow`: static jobs
    /// have no parameter host that does.
    pub fn leaves_floats(&self, operation: &Operation) -> bool {
        self.keeps_floats(operation) && !self.clamped
    }

    /// Whether the values of a chunk that are not finite become NaN, with all others of it.
    pub fn carries(&self, operation: &Operation) -> bool {
        match self.not_finite {
            NonFinitePolicy::Error => false,
            NonFinitePolicy::Carry => true,
            NonFinitePolicy::Raw => !self.keeps_floats(operation),
        }
    }

    /// Checks that a result is of these values, in the form in which they were sent.
    pub fn check(
        &self,
        operation: &Operation,
        span: Span,
        form: Form,
        header: &Header,
    ) -> Result<(), Reason> {
        if header.format != self.format(operation) as u8 {
            return Err(Reason::BadFormat);
        }
        if usize::from(header.elements) != span.words {
            return Err(Reason::WrongElements);
        }
        let offset = operation.base.wrapping_add(span.first as u32);
        let is_scaled_alike = match form {
            Form::Scaled(exponent) => !self.needs_exponent(operation) || header.exponent == exponent,
            // For integers, which have no floats, the result is only the end of the chunk.
            Form::Floats => self.has_floats(operation) || header.has(flag::OVERFLOW),
        };
        if header.tensor != operation.signature || header.offset != offset || !is_scaled_alike {
            return Err(Reason::WrongPlace);
        }
        Ok(())
    }

    /// Returns the number of values of a chunk that this worker contributes.
    pub fn contributed(operation: &Operation, span: Span) -> usize {
        span.overlap(&operation.gives).len()
    }

    /// The exponent of this worker's values of a chunk, in one pass over them.
    pub fn exponent(&self, operation: &mut Operation, span: Span) -> i8 {
        let given = span.overlap(&operation.gives);
        if given.is_empty() || !self.needs_exponent(operation) {
            return exponent::NONE;
        }
        operation.prepare(&given);
        let input = whole(operation.input(&given), operation.dtype.size());
        self.codec.exponent(operation.dtype, operation.arithmetic, input)
    }

    /// Converts this worker's values of a chunk into its packet, in one pass over them.
    pub fn encode(
        &self,
        operation: &mut Operation,
        span: Span,
        form: Form,
        wire: &mut [u8],
    ) -> ConvertedChunk {
        if form == Form::Floats && !self.has_floats(operation) {
            // Integers have no form that fits better: the flag reaches all workers, and ends the chunk.
            wire.fill(0);
            return ConvertedChunk { flags: flag::OVERFLOW, ..ConvertedChunk::default() };
        }
        let given = span.overlap(&operation.gives);
        if given.is_empty() {
            wire.fill(0);
            return ConvertedChunk::default();
        }
        let size = operation.dtype.size();
        operation.prepare(&given);
        let operation = &*operation;
        let input = whole(operation.input(&given), size);
        let at = given.start - span.first;
        let met = match form {
            Form::Scaled(exponent) => self.words(operation, exponent).encode(at, input, wire),
            Form::Floats => {
                let (dtype, keeps) = (operation.dtype, self.keeps_floats(operation));
                if self.is_packed(operation) {
                    let (met, exponent) = raw::encode_halves(dtype, keeps, at, input, wire);
                    let exponent = Some(exponent);
                    return ConvertedChunk { exponent, ..self.encoded(operation, &given, input, met) };
                }
                raw::encode(dtype, keeps, at, input, wire)
            }
        };
        match form {
            Form::Scaled(exponent) if self.keeps_floats(operation) => {
                let fits = met == Encoded::default() && !self.loses(operation, exponent, input);
                // As floats they have no fault.
                let outcome = self.encoded(operation, &given, input, Encoded::default());
                ConvertedChunk { flags: outcome.flags | if fits { 0 } else { flag::OVERFLOW }, ..outcome }
            }
            _ => self.encoded(operation, &given, input, met),
        }
    }

    /// Whether a value is too small for its chunk's exponent. Integers of 16 bits are asked for where
    /// precision does not count.
    fn loses(&self, operation: &Operation, exponent: i8, input: &[u8]) -> bool {
        let Operation { dtype, arithmetic, .. } = *operation;
        self.needs_exponent(operation)
            && !self.is_packed(operation)
            && self.codec.loses(dtype, arithmetic, exponent, input)
    }

    /// The outcome of encoding the values `given`, of which the buffer had `input`.
    fn encoded(
        &self,
        operation: &Operation,
        given: &Range<usize>,
        input: &[u8],
        met: Encoded,
    ) -> ConvertedChunk {
        let size = operation.dtype.size();
        let values = input.len() / size;
        let mut outcome = ConvertedChunk { values, ..ConvertedChunk::default() };
        if met == Encoded::default() && values == given.len() {
            return outcome;
        }
        let index = |at: usize| operation.base as usize + given.start + at;
        let value = |at: usize| number(operation.dtype, &input[at * size..]);
        let not_finite = met.not_finite.map(|at| {
            outcome.flags |= flag::NOT_FINITE;
            (at, OpError::NotFinite { index: index(at), value: value(at) as f32 })
        });
        let not_finite = not_finite.filter(|_| !self.carries(operation));
        let saturated = met.saturated.map(|at| {
            outcome.flags |= flag::OVERFLOW;
            (at, self.saturated(operation, index(at), value(at)))
        });
        // It fits as a float.
        let saturated = saturated.filter(|_| !self.has_floats(operation));
        let short = (values < given.len()).then(|| {
            outcome.flags |= flag::OVERFLOW;
            (values, OpError::ShortBuffer { index: index(values) })
        });
        // The first in the tensor is kept.
        let faults = [not_finite, saturated, short].into_iter().flatten();
        outcome.fault = faults.min_by_key(|(at, _)| *at).map(|(_, fault)| fault);
        outcome
    }

    fn words(&self, operation: &Operation, exponent: i8) -> Words {
        let Operation { dtype, arithmetic, .. } = *operation;
        Words { codec: self.codec, dtype, arithmetic, exponent, exact: self.exact(operation) }
    }

    fn saturated(&self, operation: &Operation, index: usize, value: f64) -> OpError {
        let limit = self.codec.limit(operation.dtype, operation.arithmetic);
        match self.scaling {
            _ if operation.dtype == DType::Int32 => {
                OpError::IntegerTooLarge { index, value: value as i32, limit }
            }
            Scale::Fixed(scale) => OpError::Saturated { index, value, scale, limit },
            Scale::Block => OpError::Saturated { index, value, scale: 1.0, limit },
        }
    }

    /// Converts a chunk's result with this exponent into the tensor, in one pass over the values that this
    /// worker takes. With `carries` all of them become NaN.
    pub fn decode(
        &self,
        operation: &mut Operation,
        span: Span,
        form: Form,
        (own_exponent, wire): (i8, &[u8]),
        carries: bool,
    ) -> ConvertedChunk {
        let taken = span.overlap(&operation.takes);
        if taken.is_empty() {
            return ConvertedChunk::default();
        }
        let codec = match form {
            Form::Floats if !self.has_floats(operation) => return ConvertedChunk::default(),
            Form::Floats => None,
            Form::Scaled(exponent) => Some(self.words(operation, exponent)),
        };
        let is_packed = self.is_packed(operation);
        let Operation { dtype, arithmetic, .. } = *operation;
        let divisor = if arithmetic == Arithmetic::Mean { self.world } else { 1 };
        let size = dtype.size();
        let output = operation.buffer.output(taken.start * size, taken.len() * size);
        let values = output.len() / size;
        let output = &mut output[..values * size];
        if carries {
            fill_nan(dtype, output);
        } else {
            let at = taken.start - span.first;
            match codec {
                Some(words) => words.decode(at, wire, output),
                None => {
                    let quotient = raw::quotient(divisor, self.codec.part());
                    if is_packed {
                        raw::decode_halves(dtype, own_exponent, quotient, at, wire, output);
                    } else {
                        raw::decode(dtype, quotient, at, wire, output);
                    }
                }
            }
        }
        operation.buffer.written(taken.start * size, values * size);
        let index = operation.base as usize + taken.start + values;
        let fault = (values < taken.len()).then_some(OpError::ShortBuffer { index });
        ConvertedChunk { fault, values, ..ConvertedChunk::default() }
    }
}

/// The whole values of `size` bytes.
fn whole(bytes: &[u8], size: usize) -> &[u8] {
    &bytes[..bytes.len() / size * size]
}

/// The first value of `bytes`, for a message.
pub(crate) fn number(dtype: DType, bytes: &[u8]) -> f64 {
    let word = bytes.first_chunk().copied().unwrap_or_default();
    let half = bytes.first_chunk().copied().unwrap_or_default();
    match dtype {
        DType::Float32 => f64::from(f32::from_ne_bytes(word)),
        DType::Float16 => f16::from_ne_bytes(half).to_f64(),
        DType::Bfloat16 => bf16::from_ne_bytes(half).to_f64(),
        DType::Int32 => f64::from(i32::from_ne_bytes(word)),
    }
}
