//! Errors: a status that each function returns, and the thread's last error with its text.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use ::sumac_client::boundary::{UnknownHandle, caught};
use ::sumac_client::{ClientError, Code, Failure};

use crate::types::{SUMAC_NO_INDEX, sumac_error, sumac_status};

/// An error of a call: its status, and its text in the daemon's form.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) status: sumac_status,
    failure: Box<Failure>,
}

impl Error {
    /// An error of the library itself, or of the program.
    pub(crate) fn new(status: sumac_status, message: impl Into<Box<str>>) -> Error {
        Error { status, failure: Box::new(Failure::new(Code::Unknown, message)) }
    }

    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.failure.message
    }

    /// An argument that the function does not take.
    pub(crate) fn argument(message: impl Into<Box<str>>) -> Error {
        Error::new(sumac_status::SUMAC_ERR_INVALID_ARGUMENT, message)
    }

    pub(crate) fn hint(mut self, hint: &str) -> Error {
        self.failure.hint = hint.into();
        self
    }

    fn panic(text: &str) -> Error {
        let error = Error::new(sumac_status::SUMAC_ERR_LIBRARY, format!("libsumac failed: {text}"));
        error.hint("report it; close the client, and connect again")
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error { status: sumac_status::of(failure.code), failure: Box::new(failure) }
    }
}

impl From<UnknownHandle> for Error {
    fn from(UnknownHandle { kind, number }: UnknownHandle) -> Error {
        let message = match number {
            0 => format!("the {kind} is NULL"),
            _ => format!(
                "no {kind} has the handle {number:#x}: it was closed, or never returned by this library"
            ),
        };
        Error::new(sumac_status::SUMAC_ERR_INVALID_HANDLE, message)
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Error {
        let status = match error {
            ClientError::Daemon(failure) => return failure.into(),
            ClientError::Socket(_) | ClientError::Lost(_) => sumac_status::SUMAC_ERR_CONNECTION,
            ClientError::Protocol(_) => sumac_status::SUMAC_ERR_PROTOCOL,
            ClientError::Memory(_) | ClientError::Divide(_) | ClientError::TooLarge => {
                sumac_status::SUMAC_ERR_MEMORY
            }
            _ => sumac_status::SUMAC_ERR_LIBRARY,
        };
        Error::new(status, error.to_string())
    }
}

/// An error in the form of the header, with what its pointers refer to.
struct Stored {
    public: sumac_error,
    _message: CString,
    _hint: Option<CString>,
    _ranks: Vec<u32>,
    _tensor: Option<CString>,
}

impl Stored {
    fn new(error: Error) -> Stored {
        let Error { status, failure } = error;
        let message = text(&failure.message);
        let hint = (!failure.hint.is_empty()).then(|| text(&failure.hint));
        let tensor = failure.tensor.as_deref().map(text);
        let ranks: Vec<u32> = failure.ranks.iter().copied().map(u32::from).collect();
        let index_end = failure.index.map(|index| failure.index_end.unwrap_or(index.saturating_add(1)));
        let public = sumac_error {
            code: status,
            message: message.as_ptr(),
            hint: pointer(hint.as_ref()),
            ranks: if ranks.is_empty() { null() } else { ranks.as_ptr() },
            rank_count: ranks.len(),
            tensor: pointer(tensor.as_ref()),
            index: failure.index.unwrap_or(SUMAC_NO_INDEX),
            index_end: index_end.unwrap_or(SUMAC_NO_INDEX),
        };
        Stored { public, _message: message, _hint: hint, _ranks: ranks, _tensor: tensor }
    }
}

fn pointer(text: Option<&CString>) -> *const c_char {
    text.map_or(null(), |text| text.as_ptr())
}

/// A C string, without the zero bytes that a name may have.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

thread_local! {
    static LAST: RefCell<Option<Box<Stored>>> = const { RefCell::new(None) };
}

/// Runs the body of a function of the library: stores its error for the thread, and ends panics.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Error>) -> sumac_status {
    let outcome = caught(body).unwrap_or_else(|panic| Err(Error::panic(&panic)));
    let Err(error) = outcome else { return sumac_status::SUMAC_OK };
    let status = error.status;
    // The storage is gone when a thread's destructors call the library; the status is then all there is.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(Box::new(Stored::new(error))));
    status
}

/// Returns the error of the last call of this thread that failed, or NULL if none has. It is valid until
/// the next call of this thread that fails, or its end.
///
/// Thread safety: any thread; each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn sumac_last_error() -> *const sumac_error {
    let last = LAST.try_with(|last| last.borrow().as_ref().map(|stored| &raw const stored.public));
    last.ok().flatten().unwrap_or(null_mut())
}

/// Returns the meaning of a status in a few words, as a static string; also of a number that is none.
/// `sumac_last_error` has the reason of a particular failure.
///
/// Thread safety: any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sumac_strerror(status: std::mem::MaybeUninit<sumac_status>) -> *const c_char {
    let number = crate::layout::number(status);
    let found = sumac_status::ALL.iter().find(|(status, _, _)| *status as u32 == number);
    let text: &'static CStr = found.map_or(c"not a status of libsumac", |(_, _, text)| *text);
    text.as_ptr()
}

impl sumac_status {
    fn of(code: Code) -> sumac_status {
        let found = sumac_status::ALL.iter().find(|(_, of, _)| *of == Some(code));
        found.map_or(sumac_status::SUMAC_ERR_UNKNOWN, |(status, _, _)| *status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_code_of_the_daemon_has_a_status_of_its_own() {
        let statuses: HashSet<_> = Code::ALL.iter().map(|code| sumac_status::of(*code) as u32).collect();
        assert_eq!(statuses.len(), Code::ALL.len());
        assert!(!statuses.contains(&(sumac_status::SUMAC_ERR_UNKNOWN as u32)));
        assert_eq!(sumac_status::of(Code::Unknown), sumac_status::SUMAC_ERR_UNKNOWN);
        let numbers: HashSet<_> = sumac_status::ALL.iter().map(|(status, _, _)| *status as u32).collect();
        assert_eq!(numbers.len(), sumac_status::ALL.len(), "a status is listed twice");
    }

    #[test]
    fn a_handle_without_an_object_is_invalid() {
        let closed = "no job has the handle 0x1f: it was closed, or never returned by this library";
        for (number, message) in [(0, "the job is NULL"), (31, closed)] {
            let error = Error::from(UnknownHandle { kind: "job", number });
            assert_eq!((error.status, error.message()), (sumac_status::SUMAC_ERR_INVALID_HANDLE, message));
        }
    }

    #[test]
    fn a_panic_is_a_status() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let status = call(|| panic!("on purpose"));
        std::panic::set_hook(hook);
        assert_eq!(status, sumac_status::SUMAC_ERR_LIBRARY);
        let message = LAST.with_borrow(|last| last.as_ref().unwrap()._message.clone());
        assert_eq!(message.to_str().unwrap(), "libsumac failed: on purpose");
    }
}
