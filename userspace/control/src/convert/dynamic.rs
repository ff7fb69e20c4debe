//! What messages say of dynamic jobs.

use std::net::{Ipv4Addr, SocketAddrV4};

use sumac_transport::dynamic::{MAX_WINDOW, MIN_WINDOW};
use sumac_wire::{MAX_HOSTS, MAX_LANES};

use super::small;
use crate::{
    dynamic::{DynamicInstall, DynamicTerms, DynamicWishes, Mode, Place},
    refusal::Refusal,
    rpc,
};

/// Writes a mode; a static job has nothing to say.
pub fn write_mode(mode: Mode) -> Option<rpc::DynamicWishes> {
    let Mode::Dynamic(wishes) = mode else { return None };
    Some(rpc::DynamicWishes {
        window: wishes.window,
        slots: wishes.slots,
        hosts: wishes.hosts.map(u32::from),
        linear: wishes.linear,
        congestion: wishes.congestion,
    })
}

/// Reads a mode.
pub fn read_mode(wishes: Option<&rpc::DynamicWishes>) -> Result<Mode, Refusal> {
    let Some(wishes) = wishes else { return Ok(Mode::Static) };
    Ok(Mode::Dynamic(DynamicWishes {
        window: wishes.window,
        slots: wishes.slots,
        hosts: wishes.hosts.map(|hosts| small("parameter hosts", hosts)).transpose()?,
        linear: wishes.linear,
        congestion: wishes.congestion,
    }))
}

/// Writes what a worker gets.
pub fn write_terms(terms: &DynamicTerms) -> rpc::DynamicTerms {
    rpc::DynamicTerms {
        slots: terms.slots,
        window: terms.window,
        hosts: write_addresses(&terms.hosts),
        linear: terms.linear,
        congestion: terms.congestion,
        fan_in_1: terms.fan_in_1.into(),
        bitmap_1: terms.bitmap_1,
        beside_root: terms.beside_root,
        resume: terms.resume.clone(),
    }
}

/// Reads it; `None` when a field is out of its range.
pub fn read_terms(terms: rpc::DynamicTerms) -> Option<DynamicTerms> {
    let hosts = read_addresses(&terms.hosts)?;
    let is_possible = (1..=MAX_HOSTS).contains(&hosts.len())
        && terms.window.is_power_of_two()
        && (MIN_WINDOW..=MAX_WINDOW).contains(&terms.window)
        && terms.resume.len() <= MAX_LANES;
    is_possible.then_some(DynamicTerms {
        slots: terms.slots,
        window: terms.window,
        hosts,
        linear: terms.linear,
        congestion: terms.congestion,
        fan_in_1: terms.fan_in_1.try_into().ok()?,
        bitmap_1: terms.bitmap_1,
        beside_root: terms.beside_root,
        resume: terms.resume,
    })
}

/// Writes what a rack or a parameter host is told.
pub fn write_install(install: &DynamicInstall) -> rpc::DynamicInstall {
    rpc::DynamicInstall {
        slots: install.slots,
        window: install.window,
        linear: install.linear,
        hosts: write_addresses(&install.hosts),
        fan_in_1: install.fan_in_1.into(),
        places: install.places.iter().flat_map(|place| [place.rack, place.bit]).collect(),
        upstream: write_addresses(&install.upstream),
    }
}

/// Reads it; `None` when a field is out of its range.
pub fn read_install(install: &rpc::DynamicInstall) -> Option<DynamicInstall> {
    let (places, rest) = install.places.as_chunks();
    rest.is_empty().then_some(())?;
    Some(DynamicInstall {
        slots: install.slots,
        window: install.window,
        linear: install.linear,
        hosts: read_addresses(&install.hosts)?,
        fan_in_1: install.fan_in_1.try_into().ok()?,
        places: places.iter().map(|[rack, bit]| Place { rack: *rack, bit: *bit }).collect(),
        upstream: read_addresses(&install.upstream)?,
    })
}

fn write_addresses(addresses: &[SocketAddrV4]) -> Vec<rpc::Address> {
    let write = |to: &SocketAddrV4| rpc::Address { ip: to.ip().to_bits(), port: to.port().into() };
    addresses.iter().map(write).collect()
}

fn read_addresses(addresses: &[rpc::Address]) -> Option<Vec<SocketAddrV4>> {
    let read = |to: &rpc::Address| {
        let port = u16::try_from(to.port).ok().filter(|port| *port > 0)?;
        Some(SocketAddrV4::new(Ipv4Addr::from_bits(to.ip), port))
    };
    addresses.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 77, 3, 2), 48700)
    }

    #[test]
    fn what_is_written_is_read() {
        let wishes =
            DynamicWishes { window: Some(64), hosts: Some(3), linear: true, ..DynamicWishes::default() };
        for mode in [Mode::Static, Mode::Dynamic(DynamicWishes::default()), Mode::Dynamic(wishes)] {
            assert_eq!(read_mode(write_mode(mode).as_ref()), Ok(mode));
        }
        let install = DynamicInstall {
            slots: 0,
            window: 128,
            linear: false,
            hosts: vec![host()],
            fan_in_1: 2,
            places: vec![Place { rack: 1, bit: 31 }, Place::default()],
            upstream: vec![host(), host()],
        };
        assert_eq!(read_install(&write_install(&install)), Some(install));
    }

    #[test]
    fn terms_out_of_range_are_none() {
        let good = DynamicTerms {
            slots: 9,
            window: 256,
            hosts: vec![host()],
            linear: false,
            congestion: true,
            fan_in_1: 3,
            bitmap_1: 4,
            beside_root: true,
            resume: vec![0, 7],
        };
        assert_eq!(read_terms(write_terms(&good)), Some(good.clone()));
        for bad in [
            DynamicTerms { hosts: Vec::new(), ..good.clone() },
            DynamicTerms { hosts: vec![host(); 5], ..good.clone() },
            DynamicTerms { window: 0, ..good.clone() },
            DynamicTerms { window: 100, ..good.clone() },
            DynamicTerms { window: MAX_WINDOW * 2, ..good.clone() },
            DynamicTerms { resume: vec![0; 33], ..good.clone() },
        ] {
            assert_eq!(read_terms(write_terms(&bad)), None, "{bad:?}");
        }
        let portless = rpc::Address { ip: 1, port: 0 };
        assert_eq!(read_terms(rpc::DynamicTerms { hosts: vec![portless], ..write_terms(&good) }), None);
        let odd = rpc::DynamicInstall { places: vec![1], ..Default::default() };
        assert_eq!(read_install(&odd), None);
    }
}
