//! Regions and offsets of an operation's input and result.

use sumac_api::DType;

/// The bytes of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The input's region.
    pub(crate) region: u64,
    pub(crate) dtype: DType,
    /// The offset of the tensor, or of this worker's input, in bytes.
    pub(crate) offset: u64,
    /// Elements of the whole tensor.
    pub(crate) count: u64,
    /// Region and offset of the result, if it is not in place.
    pub(crate) output: Option<(u64, u64)>,
    /// The offset of the completion word.
    pub(crate) word: Option<u64>,
}
