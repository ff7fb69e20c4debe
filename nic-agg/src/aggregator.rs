//! The handle on an attached aggregator.

use std::{net::Ipv4Addr, path::Path};

use sumac_agg_job::NewJob;
use sumac_agg_layout::State;
use sumac_loader::{
    Interface, PinError,
    log::{LogError, ProgramLog},
    pins::PROGRAM,
};
use sumac_wire::{
    admit::payload_len,
    frame::{IPV4_LEN, UDP_LEN},
    tables::WorkerEntry,
};

use crate::{
    job::{self, AddJobError, Placed},
    pins::AggregatorPins,
    recover,
    tables::{OpenError, Tables},
};

/// An attached aggregator, by its pins. Every call opens them anew, so that a long-lived handle does not
/// access maps that were replaced meanwhile. Its callers must be threads of one network namespace.
#[derive(Clone, Debug)]
pub struct Aggregator {
    pins: AggregatorPins,
}

impl Aggregator {
    pub fn open(pin_root: &Path) -> Result<Aggregator, OpenError> {
        let pins = AggregatorPins::here(pin_root).map_err(PinError::at(pin_root))?;
        let aggregator = Aggregator { pins };
        recover::check_abi(&aggregator.pins)?;
        if aggregator.pins.directory.is_interrupted()? {
            aggregator.lock()?;
        }
        aggregator.tables()?;
        Ok(aggregator)
    }

    pub(crate) fn new(pins: AggregatorPins) -> Aggregator {
        Aggregator { pins }
    }

    pub fn pins(&self) -> &AggregatorPins {
        &self.pins
    }

    pub fn tables(&self) -> Result<Tables, OpenError> {
        match recover::check_abi(&self.pins)? {
            true => Ok(Tables::open(&self.pins)?),
            false => Err(OpenError::NotAttached { path: self.pins.path().display().to_string() }),
        }
    }

    /// Returns the sizes and options, and the instance, which changes when the slots' contents are lost.
    pub fn state(&self) -> Result<State, OpenError> {
        Ok(self.tables()?.state.get(0)?)
    }

    pub fn own_ip(&self) -> Result<Option<Ipv4Addr>, OpenError> {
        let own_ip = self.state()?.own_ip;
        Ok((own_ip != 0).then(|| Ipv4Addr::from_bits(own_ip)))
    }

    /// Returns whether the programs are on any interface; else slots and jobs are kept for the next
    /// attachment.
    pub fn is_bound(&self) -> Result<bool, OpenError> {
        Ok(!self.interfaces()?.is_empty())
    }

    pub fn interfaces(&self) -> Result<Vec<String>, OpenError> {
        Ok(self.pins.interfaces().map_err(PinError::at(self.pins.path()))?)
    }

    pub fn log(&self) -> Result<ProgramLog, LogError> {
        ProgramLog::of_pinned(&self.pins.directory.pin(PROGRAM), "aggregator")
    }

    /// Adds a job: from now on its contributions are accepted.
    ///
    /// # Errors
    /// See [`AddJobError`]; then nothing is added.
    pub fn add_job(&self, new: &NewJob) -> Result<Placed, AddJobError> {
        let _lock = self.lock()?;
        add_job(&mut self.tables()?, new)
    }

    /// As [`Aggregator::add_job`], in the first gap of the pool that is large enough.
    pub fn add_job_anywhere(&self, mut new: NewJob) -> Result<Placed, AddJobError> {
        let _lock = self.lock()?;
        let mut tables = self.tables()?;
        job::place(&tables, &mut new)?;
        add_job(&mut tables, &new)
    }

    /// Reduces a job to the first of its slots: see [`job::resize`].
    pub fn resize_job(&self, job: u16, lane_slots: u32) -> Result<(), AddJobError> {
        let _lock = self.lock()?;
        job::resize(&mut self.tables()?, job, lane_slots)
    }

    pub fn remove_job(&self, job: u16) -> Result<bool, AddJobError> {
        let _lock = self.lock()?;
        Ok(job::remove(&mut self.tables()?, job)?)
    }

    /// Locks the pins, and completes or undoes an attachment that was killed.
    pub(crate) fn lock(&self) -> Result<Option<std::fs::File>, OpenError> {
        let lock = self.pins.directory.lock().map_err(PinError::at(self.pins.path()))?;
        if lock.is_some() {
            recover::recover(&self.pins)?;
        }
        Ok(lock)
    }
}

/// Adds a job, of which the frames of every worker, root and parameter host fit through an interface of the
/// aggregator.
fn add_job(tables: &mut Tables, new: &NewJob) -> Result<Placed, AddJobError> {
    let (ports, elements) = (tables.ports()?, new.entry.elements);
    let fits = |ifindex, none: AddJobError| {
        let Some(port) = Interface::by_index(ifindex).ok().filter(|_| ports.contains(&ifindex)) else {
            return Err(none);
        };
        let needed = (IPV4_LEN + UDP_LEN + payload_len(elements)) as u32;
        if port.mtu < needed {
            return Err(AddJobError::Mtu { elements, needed, interface: port.name, mtu: port.mtu });
        }
        Ok(())
    };
    for WorkerEntry { ip, ifindex, .. } in &new.parents {
        fits(*ifindex, AddJobError::NoUplink { ip: (*ip).into(), ifindex: *ifindex })?;
    }
    for (rank, WorkerEntry { ip, ifindex, .. }) in new.workers.iter().enumerate() {
        fits(*ifindex, AddJobError::NoPort { rank, ip: (*ip).into(), ifindex: *ifindex })?;
    }
    job::add(tables, new)
}
