//! Loading of an object's programs into the kernel.

use std::{error::Error, io, path::Path};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{ProgramError, Xdp},
};
use aya_obj::programs::XdpAttachType;
use nix::errno::Errno;
use thiserror::Error;

/// The attempts to load one program, as libbpf makes them: the verifier gives up with `EAGAIN` while a signal is pending.
const LOAD_ATTEMPTS: usize = 5;

/// Lines of the verifier's log in an error. The log lists every state, by the megabyte; its end has the reason.
const VERIFIER_LINES: usize = 8;

/// The variant of a program, by the buffers that its frames have. The kernel mixes both kinds on no device map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// Frames in one buffer.
    #[default]
    Plain,
    /// Frames in several buffers (`xdp.frags`, Linux 5.18).
    Jumbo,
}

impl Variant {
    /// The largest MTU at which a veth delivers frames in one buffer; the drivers of NICs differ by little.
    pub const ONE_BUFFER_MTU: u32 = 3506;

    pub fn for_mtu(mtu: u32) -> Variant {
        if mtu > Variant::ONE_BUFFER_MTU { Variant::Jumbo } else { Variant::Plain }
    }
}

#[derive(Debug, Error)]
pub enum LoadError {
    #[error(
        "could not create or open the maps of an XDP program: {0}; `sumac clean` or `sumac-agg detach --all` removes \
         those of another version"
    )]
    Maps(#[source] Box<EbpfError>),
    #[error("could not write map {map}: {source}")]
    Map { map: &'static str, source: aya::maps::MapError },
    #[error("the kernel refused program {program}: {reason}")]
    Refused { program: String, reason: String, source: Box<ProgramError> },
    #[error("this build has no XDP program {program}: build it again with `make build`")]
    Missing { program: &'static str },
}

impl LoadError {
    pub fn refused(program: impl Into<String>, source: ProgramError) -> LoadError {
        let reason = match &source {
            ProgramError::LoadError { io_error, verifier_log } => {
                let log = verifier_log.to_string();
                let lines: Vec<_> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(VERIFIER_LINES)..].join("\n  ");
                format!("{io_error}; the end of the verifier's log:\n  {end}")
            }
            other => other.to_string(),
        };
        LoadError::Refused { program: program.into(), reason, source: Box::new(source) }
    }
}

/// Creates the maps of an object, or opens those that `loader` has pins of.
pub fn load_object(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, LoadError> {
    loader.load(object).map_err(|error| LoadError::Maps(Box::new(error)))
}

pub fn find<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut Xdp, LoadError> {
    let found = ebpf.program_mut(program).ok_or(LoadError::Missing { program })?;
    found.try_into().map_err(|source| LoadError::refused(program, source))
}

pub fn load<'a>(ebpf: &'a mut Ebpf, program: &'static str) -> Result<&'a mut Xdp, LoadError> {
    let xdp = find(ebpf, program)?;
    retry_interrupted(|| xdp.load()).map_err(|source| LoadError::refused(program, source))?;
    Ok(xdp)
}

/// Repeats the loading of a program while signals interrupt its verification, [`LOAD_ATTEMPTS`] times at most.
pub fn retry_interrupted(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    for _ in 1..LOAD_ATTEMPTS {
        match load() {
            Err(error) if errno(&error) == Some(Errno::EAGAIN) => {}
            outcome => return outcome,
        }
    }
    load()
}

pub fn open_pinned(pin: &Path) -> Result<Xdp, LoadError> {
    Xdp::from_pin(pin, XdpAttachType::Interface)
        .map_err(|source| LoadError::refused(pin.display().to_string(), source))
}

/// Returns the system's error number among an error's causes.
pub fn errno(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut cause = Some(error);
    while let Some(this) = cause {
        if let Some(number) = this.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(Errno::from_raw(number));
        }
        cause = this.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    fn refusal(errno: Errno) -> ProgramError {
        let io_error = io::Error::from_raw_os_error(errno as i32);
        ProgramError::SyscallError(SyscallError { call: "bpf_prog_load", io_error })
    }

    #[test]
    fn a_load_is_repeated_while_signals_interrupt_it() {
        let table = [
            ("loads at once", vec![Ok(())], 1, None),
            ("loads at the fifth attempt", vec![Err(Errno::EAGAIN); 4], 5, None),
            ("is given up", vec![Err(Errno::EAGAIN); 9], 5, Some(Errno::EAGAIN)),
            ("another error ends it", vec![Err(Errno::EAGAIN), Err(Errno::EINVAL)], 2, Some(Errno::EINVAL)),
        ];
        for (name, outcomes, attempts, expected) in table {
            let mut made = 0;
            let outcome = retry_interrupted(|| {
                made += 1;
                outcomes.get(made - 1).copied().unwrap_or(Ok(())).map_err(refusal)
            });
            let found = outcome.err().and_then(|error| errno(&error));
            assert_eq!((made, found), (attempts, expected), "{name}");
        }
    }

    #[test]
    fn frames_above_one_buffer_need_the_other_variant() {
        assert_eq!(Variant::for_mtu(1500), Variant::Plain);
        assert_eq!(Variant::for_mtu(3506), Variant::Plain);
        assert_eq!(Variant::for_mtu(3507), Variant::Jumbo);
    }
}
