//! The arguments that collective operations and transfers share: elements and options.

use std::mem::MaybeUninit;

use ::sumac_client::{DType, Importance};

use crate::error::Error;
use crate::input::{choose, structure, text};
use crate::types::{sumac_dtype, sumac_importance, sumac_op_options};

const DTYPES: &[(sumac_dtype, DType)] = &[
    (sumac_dtype::SUMAC_FLOAT32, DType::Float32),
    (sumac_dtype::SUMAC_FLOAT16, DType::Float16),
    (sumac_dtype::SUMAC_BFLOAT16, DType::Bfloat16),
    (sumac_dtype::SUMAC_INT32, DType::Int32),
];
const IMPORTANCES: &[(sumac_importance, Importance)] = &[
    (sumac_importance::SUMAC_IMPORTANCE_NONE, Importance::None),
    (sumac_importance::SUMAC_IMPORTANCE_MAGNITUDE, Importance::Magnitude),
    (sumac_importance::SUMAC_IMPORTANCE_HIGH, Importance::High),
    (sumac_importance::SUMAC_IMPORTANCE_LOW, Importance::Low),
];

/// The elements of a call: type, number, and their bytes.
#[derive(Clone, Copy)]
pub(crate) struct Elements {
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Elements {
    pub(crate) fn new(count: usize, dtype: MaybeUninit<sumac_dtype>) -> Result<Elements, Error> {
        let dtype = choose(dtype, "sumac_dtype", DTYPES)?;
        Elements { dtype, count: 1, bytes: dtype.size() }.times(count)
    }

    /// As many for each of some workers.
    pub(crate) fn times(self, times: usize) -> Result<Elements, Error> {
        let numbers = self.count.checked_mul(times).zip(self.bytes.checked_mul(times));
        let (count, bytes) = numbers.ok_or_else(|| {
            Error::argument(format!("{times} times {} bytes exceed the address space", self.bytes))
        })?;
        Ok(Elements { count, bytes, ..self })
    }
}

/// The options of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) priority: u8,
    pub(crate) importance: Importance,
    pub(crate) loss_bound: f32,
}

impl Options<'_> {
    /// # Safety
    /// `options` is NULL or a structure with its size, and its name NULL or a string.
    pub(crate) unsafe fn read<'a>(options: *const sumac_op_options) -> Result<Options<'a>, Error> {
        // SAFETY: as the caller warrants.
        let options = unsafe { structure(options, "options") }?;
        let priority = u8::try_from(options.priority);
        Ok(Options {
            // SAFETY: as the caller warrants.
            name: unsafe { text(options.name, "name") }?,
            priority: priority.map_err(|_| Error::argument("priority is above 7"))?,
            importance: choose(options.importance, "sumac_importance", IMPORTANCES)?,
            loss_bound: options.loss_bound,
        })
    }
}
