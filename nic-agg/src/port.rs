//! One port: whose program is on it, and how the aggregator's is bound there.

use std::io;

use aya::programs::{
    ProgramError, Xdp, XdpMode,
    links::{FdLink, PinnedLink},
    xdp::XdpLink,
};
use sumac_hostprog::{interface::Interface, mode::BoundMode};

use crate::{
    attach::{AttachError, BoundPort, at},
    mode::Mode,
    pins::PinDir,
};

/// An interface, and this aggregator's link on it when there is one.
pub(crate) struct Port {
    pub(crate) interface: Interface,
    ours: Option<(PinnedLink, BoundMode)>,
}

impl Port {
    /// Looks for this aggregator's link. Removes the pin of a link that is not on the interface any more.
    pub(crate) fn look_at(pins: &PinDir, name: &str) -> Result<Port, AttachError> {
        let interface = Interface::by_name(name)
            .map_err(|source| AttachError::Interface { interface: name.to_owned(), source })?;
        let path = pins.link(name);
        let mut ours = None;
        if path.exists() {
            let failed = |source| AttachError::Link { path: path.clone(), source };
            let link = FdLink::from(PinnedLink::from_pin(&path).map_err(failed)?);
            let id = link.info().map_err(failed)?.program_id();
            drop(link);
            match interface.xdp.iter().find(|program| program.id == id) {
                Some(program) => ours = Some((PinnedLink::from_pin(&path).map_err(failed)?, *program)),
                None => drop(pins.remove(&path).map_err(|source| at(&path, source))?),
            }
        }
        let ours_id = ours.as_ref().map(|(_, program)| program.id);
        if let Some(foreign) = interface.xdp.iter().find(|program| Some(program.id) != ours_id) {
            return Err(AttachError::Occupied {
                interface: interface.name.clone(),
                id: foreign.id,
                mode: foreign.mode,
            });
        }
        Ok(Port { interface, ours: ours.map(|(link, program)| (link, program.mode)) })
    }

    pub(crate) fn if_ours(self) -> Option<Port> {
        self.ours.is_some().then_some(self)
    }

    /// Replaces the program on the port, or binds it anew.
    pub(crate) fn bind(self, program: &mut Xdp, mode: Mode, pins: &PinDir) -> Result<BoundPort, AttachError> {
        let Port { interface, ours } = self;
        let path = pins.link(&interface.name);
        match ours {
            Some((link, bound))
                if mode == Mode::Auto || (mode == Mode::Generic) == (bound == BoundMode::Generic) =>
            {
                let link = XdpLink::try_from(FdLink::from(link))
                    .map_err(|source| AttachError::Link { path, source })?;
                program.attach_to_link(link).map_err(|source| refused(&interface.name, bound, source))?;
                return Ok(BoundPort {
                    interface: interface.name,
                    mode: bound,
                    fallback: None,
                    steering: None,
                });
            }
            // Unpinned before it is closed: the last handle detaches.
            Some((link, _)) => drop(link.unpin().map_err(|source| at(&path, source))?),
            None => {}
        }
        let (link, bound, fallback) = bind_anew(program, &interface.name, mode)?;
        link.pin(&path).map_err(|source| AttachError::Pin { path, source: Box::new(source) })?;
        Ok(BoundPort { interface: interface.name, mode: bound, fallback, steering: None })
    }
}

fn bind_anew(
    program: &mut Xdp,
    interface: &str,
    mode: Mode,
) -> Result<(FdLink, BoundMode, Option<String>), AttachError> {
    if mode == Mode::Generic {
        return Ok((bind_in(program, interface, BoundMode::Generic)?, BoundMode::Generic, None));
    }
    match bind_in(program, interface, BoundMode::Driver) {
        Ok(link) => Ok((link, BoundMode::Driver, None)),
        Err(error) if mode == Mode::Auto => {
            tracing::warn!("{error}; falling back to generic mode, which is several times slower");
            let link = bind_in(program, interface, BoundMode::Generic)?;
            Ok((link, BoundMode::Generic, Some(error.to_string())))
        }
        Err(error) => Err(error),
    }
}

fn bind_in(program: &mut Xdp, interface: &str, mode: BoundMode) -> Result<FdLink, AttachError> {
    let flag = if mode == BoundMode::Generic { XdpMode::Skb } else { XdpMode::Driver };
    let link = program
        .attach(interface, flag)
        .and_then(|id| program.take_link(id))
        .map_err(|source| refused(interface, mode, source))?;
    FdLink::try_from(link).map_err(|_| AttachError::Options {
        what: format!("this kernel gave no link on {interface} that could outlive the process; 5.15 does"),
    })
}

fn refused(interface: &str, mode: BoundMode, source: ProgramError) -> AttachError {
    let mut number = None;
    let mut cause: Option<&dyn std::error::Error> = Some(&source);
    while let (Some(this), None) = (cause, number) {
        number = this.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        cause = this.source();
    }
    let advice = match number.map(nix::errno::Errno::from_raw) {
        Some(nix::errno::Errno::EOPNOTSUPP) => "its driver has no XDP: use --mode generic",
        Some(nix::errno::Errno::ERANGE) => {
            "its MTU or its peer's is too large for frames of one buffer (a veth takes 3506): use --jumbo"
        }
        Some(nix::errno::Errno::EBUSY | nix::errno::Errno::EEXIST) => {
            "another XDP program is there: see `ip link`"
        }
        Some(nix::errno::Errno::EPERM) => "not permitted: run as root",
        _ => "dmesg may tell more: often an MTU above one page, LRO, or too few queues",
    };
    AttachError::Bind { interface: interface.to_owned(), mode, source: Box::new(source), advice }
}
