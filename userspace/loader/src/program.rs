//! Loading of an object's programs into the kernel.

use std::{error::Error, io, path::Path};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    programs::{ProgramError, Xdp, loaded_programs},
};
use aya_obj::programs::XdpAttachType;
use nix::{
    errno::Errno,
    sys::signal::{SigSet, SigmaskHow},
};
use thiserror::Error;

use crate::chain::chain;

/// The attempts to load one program, as libbpf makes them.
const LOAD_ATTEMPTS: usize = 5;

/// Lines of the verifier's log in an error. The log lists every state, by the megabyte; its end has the
/// reason.
const VERIFIER_LINES: usize = 8;

/// The variant of a program, by the buffers that its frames have. The kernel mixes both kinds on no device
/// map.
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
        "could not create or open the maps of an XDP program: {}", chain(.0.as_ref())
    )]
    Maps(#[source] Box<EbpfError>),
    #[error("could not write map {map}: {}", chain(.source))]
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
            other => chain(other),
        };
        LoadError::Refused { program: program.into(), reason, source: Box::new(source) }
    }
}

/// Creates the maps of an object, or opens those that `loader` has pins of.
pub fn load_object(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Ebpf, LoadError> {
    // aya probes the kernel's features once for the process, by loading small programs.
    let _undisturbed = SignalsBlocked::new();
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

/// Loads a program with signals blocked, since the verifier gives up while one is pending. What cannot be
/// blocked (a stop, the kernel's own notifications) is retried, [`LOAD_ATTEMPTS`] times at most.
pub fn retry_interrupted(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    let _undisturbed = SignalsBlocked::new();
    for _ in 1..LOAD_ATTEMPTS {
        match load() {
            Err(error) if errno(&error) == Some(Errno::EAGAIN) => {}
            outcome => return outcome,
        }
    }
    load()
}

/// Blocks the calling thread's signals until it is dropped; they are delivered then, or to other threads.
struct SignalsBlocked(Option<SigSet>);

impl SignalsBlocked {
    fn new() -> Self {
        // Without it the attempts remain.
        Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok())
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(former) = self.0 {
            let _ = former.thread_set_mask();
        }
    }
}

pub fn open_pinned(pin: &Path) -> Result<Xdp, LoadError> {
    Xdp::from_pin(pin, XdpAttachType::Interface)
        .map_err(|source| LoadError::refused(pin.display().to_string(), source))
}

/// The owner of an XDP program that has no pin here, by the program's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramOwner {
    Aggregator,
    Host,
    Foreign,
}

impl ProgramOwner {
    /// Begins the names of the aggregator's programs.
    const AGGREGATOR: &str = "sumac_agg";
    /// Begins the names of the host program's variants.
    const HOST: &str = "sumac_host";

    pub fn of_name(name: &str) -> Self {
        match name {
            name if name.starts_with(Self::AGGREGATOR) => Self::Aggregator,
            name if name.starts_with(Self::HOST) => Self::Host,
            _ => Self::Foreign,
        }
    }

    /// Returns the remedy, as the end of a sentence about the program. A program of Sumac's is never to be
    /// removed by hand.
    pub fn advice(self, interface: &str) -> String {
        match self {
            Self::Aggregator => format!(
                "the aggregator's: {interface} is a port of it (`sumac-agg status`, with the --pin-root that \
                it was attached with); use another interface, or release this one: sumac-agg detach \
                {interface}"
            ),
            Self::Host => format!(
                "a worker's host program with other pins: see `sumac status` with the --pin-root, and in the \
                mount namespace, that it was attached with, and release it there: sumac detach {interface}"
            ),
            Self::Foreign => format!(
                "which is not Sumac's: `bpftool net show dev {interface}` shows it; its owner must release \
                it first"
            ),
        }
    }
}

/// Returns the owner of a loaded program; a stranger's where programs cannot be listed.
pub fn owner(id: u32) -> ProgramOwner {
    let found = loaded_programs().filter_map(Result::ok).find(|program| program.id() == id);
    found.map_or(ProgramOwner::Foreign, |program| {
        program.name_as_str().map_or(ProgramOwner::Foreign, ProgramOwner::of_name)
    })
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
    fn programs_are_known_by_their_names() {
        let table = [
            ("sumac_agg", ProgramOwner::Aggregator),
            ("sumac_agg_jumbo", ProgramOwner::Aggregator),
            ("sumac_host", ProgramOwner::Host),
            ("sumac_host_jumb", ProgramOwner::Host),
            ("xdp_dispatcher", ProgramOwner::Foreign),
        ];
        for (name, owner) in table {
            assert_eq!(ProgramOwner::of_name(name), owner, "{name}");
            assert!(!owner.advice("eth1").contains("xdp off"), "{name}: programs by link are not removed so");
        }
    }

    #[test]
    fn frames_above_one_buffer_need_the_other_variant() {
        assert_eq!(Variant::for_mtu(1500), Variant::Plain);
        assert_eq!(Variant::for_mtu(3506), Variant::Plain);
        assert_eq!(Variant::for_mtu(3507), Variant::Jumbo);
    }
}
