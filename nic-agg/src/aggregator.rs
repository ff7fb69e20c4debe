//! The handle on an attached aggregator: its jobs, counters and identity.

use std::{io, net::Ipv4Addr, path::Path, slice};

use sumac_agg_layout::State;
use sumac_hostprog::interface::Interface;
use sumac_wire::{
    admit::payload_len,
    frame::{IPV4_LEN, UDP_LEN},
};
use thiserror::Error;

use crate::{
    job::{self, JobError, Level, NewJob, NewWorker, Placed},
    pins::PinDir,
    tables::{TableError, Tables},
};

/// Why there is no aggregator to talk to.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nothing is attached here.
    #[error(
        "no aggregator is attached in this network namespace (looked in {path}); attach one: sumac-agg attach IFACE..."
    )]
    NotAttached {
        /// Where its pins would be.
        path: String,
    },
    /// The pins.
    #[error("looking at the aggregator's pins in {path}: {source}")]
    Pins {
        /// Their directory.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The maps.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Why a job was not added or removed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// There is no aggregator.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It refused.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl From<TableError> for ChangeError {
    fn from(error: TableError) -> ChangeError {
        ChangeError::Open(error.into())
    }
}

/// An attached aggregator, by its pins. Every call opens them anew, so that a handle that is kept
/// never speaks to maps that were replaced meanwhile. Use it from threads of one network namespace.
#[derive(Clone, Debug)]
pub struct Aggregator {
    pins: PinDir,
}

impl Aggregator {
    /// The aggregator of the calling thread's network namespace.
    ///
    /// # Errors
    /// When none is attached, or was and left its state.
    pub fn open(pin_root: &Path) -> Result<Aggregator, OpenError> {
        let pins = PinDir::here(pin_root)
            .map_err(|source| OpenError::Pins { path: pin_root.display().to_string(), source })?;
        let aggregator = Aggregator { pins };
        aggregator.tables()?;
        Ok(aggregator)
    }

    pub(crate) fn new(pins: PinDir) -> Aggregator {
        Aggregator { pins }
    }

    /// Its pins.
    #[must_use]
    pub fn pins(&self) -> &PinDir {
        &self.pins
    }

    /// Its maps.
    ///
    /// # Errors
    /// When it is not attached any more.
    pub fn tables(&self) -> Result<Tables, OpenError> {
        if !self.pins.map(sumac_agg_layout::name::STATE).exists() {
            return Err(OpenError::NotAttached { path: self.pins.path().display().to_string() });
        }
        Ok(Tables::open(&self.pins)?)
    }

    /// Pool, chunk size, ports, and the instance: another instance means that the slots' contents are lost.
    ///
    /// # Errors
    /// When it is not attached any more.
    pub fn state(&self) -> Result<State, OpenError> {
        Ok(self.tables()?.state()?)
    }

    /// The address of its own, which workers know it by instead of the kernel's on their side.
    ///
    /// # Errors
    /// When it is not attached any more.
    pub fn own_ip(&self) -> Result<Option<Ipv4Addr>, OpenError> {
        let own_ip = self.state()?.own_ip;
        Ok((own_ip != 0).then(|| Ipv4Addr::from_bits(own_ip)))
    }

    /// Whether the programs are on any port; else only slots and jobs are kept, for the next attach.
    ///
    /// # Errors
    /// When the pins cannot be read.
    pub fn is_bound(&self) -> Result<bool, OpenError> {
        let interfaces = self.pins.interfaces();
        let interfaces = interfaces
            .map_err(|source| OpenError::Pins { path: self.pins.path().display().to_string(), source })?;
        Ok(!interfaces.is_empty())
    }

    /// Adds a job: from now on its contributions are taken.
    ///
    /// # Errors
    /// See [`JobError`]; nothing is added then.
    pub fn add_job(&self, new: &NewJob) -> Result<Placed, ChangeError> {
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        check_ports(new, &tables.ports()?)?;
        Ok(job::add(&mut tables, new)?)
    }

    /// Leaves a job only the first of its slots: see [`job::resize`].
    ///
    /// # Errors
    /// When it is not there or has not as many.
    pub fn resize_job(&self, job: u16, lane_slots: u32) -> Result<(), ChangeError> {
        let _lock = self.lock()?;
        Ok(job::resize(&mut self.tables()?, job, lane_slots)?)
    }

    /// Removes a job. `false`: it was not there.
    ///
    /// # Errors
    /// As the kernel answers.
    pub fn remove_job(&self, job: u16) -> Result<bool, ChangeError> {
        let _lock = self.lock()?;
        Ok(job::remove(&mut self.tables()?, job)?)
    }

    pub(crate) fn lock(&self) -> Result<Option<std::fs::File>, OpenError> {
        let path = || self.pins.path().display().to_string();
        self.pins.lock().map_err(|source| OpenError::Pins { path: path(), source })
    }
}

/// Every worker must be behind a port of the aggregator that its frames fit through, and so must where sums go.
fn check_ports(new: &NewJob, ports: &[u32]) -> Result<(), JobError> {
    let fits = |ifindex| -> Option<Result<(), JobError>> {
        let port = Interface::by_index(ifindex).ok().filter(|_| ports.contains(&ifindex))?;
        let needed = (IPV4_LEN + UDP_LEN + payload_len(new.elements)) as u32;
        Some(if port.mtu < needed {
            Err(JobError::Mtu { elements: new.elements, needed, interface: port.name, mtu: port.mtu })
        } else {
            Ok(())
        })
    };
    let up = match (&new.level, &new.dynamic) {
        (Level::Rack { parent, .. }, _) => slice::from_ref(parent),
        (_, Some(dynamic)) => &dynamic.hosts,
        _ => &[],
    };
    for NewWorker { ip, ifindex, .. } in up {
        fits(*ifindex).unwrap_or(Err(JobError::NoUplink { ip: *ip, ifindex: *ifindex }))?;
    }
    for (rank, NewWorker { ip, ifindex, .. }) in new.workers.iter().enumerate() {
        fits(*ifindex).unwrap_or(Err(JobError::NoPort { rank, ip: *ip, ifindex: *ifindex }))?;
    }
    Ok(())
}
