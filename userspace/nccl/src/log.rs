//! Messages through NCCL's logger.

use std::ffi::{CString, c_int};
use std::sync::{PoisonError, RwLock};

use crate::abi::{DebugLogger, LOG_INFO, LOG_NET, LOG_WARN};

static LOGGER: RwLock<Option<DebugLogger>> = RwLock::new(None);

/// Sets the logger that `init` was called with.
pub(crate) fn set(logger: Option<DebugLogger>) {
    if logger.is_some() {
        *LOGGER.write().unwrap_or_else(PoisonError::into_inner) = logger;
    }
}

/// Logs a message that is printed with `NCCL_DEBUG=WARN`.
pub(crate) fn warn(text: &str) {
    write(LOG_WARN, text);
}

/// Logs a message that is printed with `NCCL_DEBUG=INFO`.
pub(crate) fn info(text: &str) {
    write(LOG_INFO, text);
}

fn write(level: c_int, text: &str) {
    let Some(logger) = *LOGGER.read().unwrap_or_else(PoisonError::into_inner) else { return };
    let text = CString::new(format!("NET/Sumac : {}", text.replace('\0', ""))).unwrap_or_default();
    // SAFETY: NCCL's function, which outlives the plugin's use; all pointers are strings, and the format
    // takes one.
    unsafe { logger(level, LOG_NET, c"sumac".as_ptr(), 0, c"%s".as_ptr(), text.as_ptr()) };
}
