//! Errors, and the boundary to NCCL.

use std::ffi::c_int;

use sumac_client::boundary::{UnknownHandle, caught};
use sumac_client::{ClientError, Code};

use crate::abi::{
    INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, ResultCode, SUCCESS, SYSTEM_ERROR,
};
use crate::log;

/// An error of a call: the result that NCCL receives, and the text that is logged.
#[derive(Clone, Debug)]
pub(crate) struct PluginError {
    pub(crate) code: ResultCode,
    pub(crate) message: String,
    /// Whether the control plane refused a job.
    pub(crate) is_refusal: bool,
    /// Whether it has been logged: a communicator returns its first error in all later calls.
    is_logged: bool,
}

impl PluginError {
    fn new(code: ResultCode, message: impl Into<String>) -> PluginError {
        PluginError { code, message: message.into(), is_refusal: false, is_logged: false }
    }

    pub(crate) fn system(message: impl Into<String>) -> PluginError {
        PluginError::new(SYSTEM_ERROR, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> PluginError {
        PluginError::new(INTERNAL_ERROR, message)
    }

    pub(crate) fn argument(message: impl Into<String>) -> PluginError {
        PluginError::new(INVALID_ARGUMENT, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> PluginError {
        PluginError::new(INVALID_USAGE, message)
    }

    pub(crate) fn remote(message: impl Into<String>) -> PluginError {
        PluginError::new(REMOTE_ERROR, message)
    }

    /// Names the action that failed.
    pub(crate) fn context(mut self, action: &str) -> PluginError {
        self.message = format!("{action}: {}", self.message);
        self
    }

    /// Logs it, and returns it in the form that is not logged again.
    pub(crate) fn logged(mut self) -> PluginError {
        if !self.is_logged {
            log::warn(&self.message);
            self.is_logged = true;
        }
        self
    }

    fn panic(text: &str) -> PluginError {
        PluginError::internal(format!("the plugin failed: {text}; report it"))
    }
}

impl From<UnknownHandle> for PluginError {
    fn from(UnknownHandle { kind, number }: UnknownHandle) -> PluginError {
        let message = format!("no {kind} has the handle {number:#x}: it was closed, or is another's");
        PluginError::argument(message)
    }
}

impl From<ClientError> for PluginError {
    fn from(error: ClientError) -> PluginError {
        let code = match &error {
            ClientError::Daemon(failure) => of_code(failure.code),
            ClientError::Protocol(_) => INTERNAL_ERROR,
            _ => SYSTEM_ERROR,
        };
        // A failure's text ends with its hint, and names the ranks at fault.
        let is_refusal = error.code() == Some(Code::Refused);
        PluginError { is_refusal, ..PluginError::new(code, error.to_string()) }
    }
}

fn of_code(code: Code) -> ResultCode {
    match code {
        Code::JobFailed | Code::Mismatch | Code::RanksMissing | Code::Cancelled => REMOTE_ERROR,
        Code::Saturated => INVALID_ARGUMENT,
        Code::Denied
        | Code::Limit
        | Code::RankTaken
        | Code::Refused
        | Code::Unreachable
        | Code::Handshake
        | Code::Datapath
        | Code::Timeout
        | Code::ShuttingDown
        | Code::Version => SYSTEM_ERROR,
        _ => INTERNAL_ERROR,
    }
}

/// Runs the body of a function that NCCL calls: logs its error, and ends panics.
pub(crate) fn entry(body: impl FnOnce() -> Result<(), PluginError>) -> c_int {
    match caught(body).unwrap_or_else(|panic| Err(PluginError::panic(&panic))) {
        Ok(()) => SUCCESS,
        Err(error) => error.logged().code,
    }
}

#[cfg(test)]
mod tests {
    use sumac_client::Failure;

    use super::*;

    #[test]
    fn a_handle_without_an_object_is_an_invalid_argument() {
        let error = PluginError::from(UnknownHandle { kind: "request", number: 31 });
        assert_eq!(error.code, INVALID_ARGUMENT);
        assert_eq!(error.message, "no request has the handle 0x1f: it was closed, or is another's");
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let code = entry(|| panic!("on purpose"));
        std::panic::set_hook(hook);
        assert_eq!(code, INTERNAL_ERROR);
    }

    #[test]
    fn an_error_of_another_rank_is_remote_and_one_of_the_daemon_is_not() {
        let of = |code| PluginError::from(ClientError::Daemon(Failure::new(code, "text"))).code;
        assert_eq!(of(Code::JobFailed), REMOTE_ERROR);
        assert_eq!(of(Code::RanksMissing), REMOTE_ERROR);
        assert_eq!(of(Code::Refused), SYSTEM_ERROR);
        assert_eq!(of(Code::Saturated), INVALID_ARGUMENT);
        assert_eq!(of(Code::OutOfRange), INTERNAL_ERROR);
        assert_eq!(PluginError::from(ClientError::Lost("it ended".into())).code, SYSTEM_ERROR);
    }
}
