//! A data plane that records its commands.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use sumac_control::plane::{
    DataPlane, Installed, JobInstall, KnownJob, Level, PlaneError, PlaneInfo, PlaneKind, TakenOver,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Install(JobInstall),
    Renew(JobInstall),
    Resize(u16, u32, String),
    Remove(u16),
}

#[derive(Clone)]
pub struct FakePlane(Arc<Mutex<Inner>>);

struct Inner {
    kind: PlaneKind,
    slots: u32,
    /// The jobs that it has.
    jobs: Vec<JobInstall>,
    instance: Option<u64>,
    refusal: Option<&'static str>,
    /// The address that it states for its packets.
    address: Option<Ipv4Addr>,
    /// Installs wait while this is set, as for a worker that does not answer ARP; and so does who asks how it
    /// is.
    is_held: bool,
    /// Installs that wait.
    waiting: usize,
    calls: Vec<Call>,
}

impl FakePlane {
    pub fn new(slots: u32) -> FakePlane {
        FakePlane::of(PlaneKind::Host, slots)
    }

    pub fn of(kind: PlaneKind, slots: u32) -> FakePlane {
        FakePlane(Arc::new(Mutex::new(Inner {
            kind,
            slots,
            jobs: Vec::new(),
            instance: Some(1),
            refusal: None,
            address: None,
            is_held: false,
            waiting: 0,
            calls: Vec::new(),
        })))
    }

    pub fn set_instance(&self, instance: Option<u64>) {
        self.0.lock().unwrap().instance = instance;
    }

    pub fn refuse_installs(&self, why: &'static str) {
        self.0.lock().unwrap().refusal = Some(why);
    }

    pub fn set_address(&self, address: Ipv4Addr) {
        self.0.lock().unwrap().address = Some(address);
    }

    pub fn hold_installs(&self, is_held: bool) {
        self.0.lock().unwrap().is_held = is_held;
    }

    pub fn waiting_installs(&self) -> usize {
        self.0.lock().unwrap().waiting
    }

    /// The last job that was installed.
    pub fn job(&self) -> JobInstall {
        let installed = |call: Call| match call {
            Call::Install(job) => Some(job),
            _ => None,
        };
        self.calls().into_iter().rev().find_map(installed).expect("no job was installed")
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().calls.clone()
    }
}

impl DataPlane for FakePlane {
    fn info(&self) -> Result<PlaneInfo, PlaneError> {
        let inner = self.0.lock().unwrap();
        Ok(PlaneInfo {
            kind: inner.kind,
            slots: inner.slots,
            max_elements: 360,
            shards: 2,
            dynamic_slots: if inner.kind == PlaneKind::Host { 64 } else { 0 },
            address: inner.address,
            ..PlaneInfo::NONE
        })
    }

    fn take_over(&self, known: &[KnownJob]) -> Result<TakenOver, PlaneError> {
        let mut inner = self.0.lock().unwrap();
        let is_known = |job: &JobInstall| {
            known.iter().any(|known| known.is(job.terms.job, job.terms.epoch, job.terms.token))
        };
        inner.jobs.retain(is_known);
        let jobs = inner.jobs.iter().map(|job| job.terms.job).collect();
        Ok(TakenOver { jobs, last_epochs: Vec::new() })
    }

    fn install(&self, job: &JobInstall) -> Result<Installed, PlaneError> {
        self.0.lock().unwrap().waiting += 1;
        while self.0.lock().unwrap().is_held {
            thread::sleep(Duration::from_millis(5));
        }
        self.0.lock().unwrap().waiting -= 1;
        let mut inner = self.0.lock().unwrap();
        if let Some(why) = inner.refusal {
            return Err(PlaneError::Failed { doing: "installing a job", what: why.into() });
        }
        inner.calls.push(Call::Install(job.clone()));
        inner.jobs.retain(|other| other.terms.job != job.terms.job);
        inner.jobs.push(job.clone());
        let is_last = !matches!(job.level, Level::Rack { .. });
        let hosts = if is_last { job.terms.parameter_hosts.len() } else { 0 };
        Ok(Installed {
            aggregator_ips: vec![Ipv4Addr::LOCALHOST; job.workers.len()],
            result_group: None,
            host_sides: vec![Ipv4Addr::new(127, 0, 0, 9); hosts],
        })
    }

    fn resize(&self, job: u16, lane_slots: u32, reason: &str) -> Result<(), PlaneError> {
        self.0.lock().unwrap().calls.push(Call::Resize(job, lane_slots, reason.into()));
        Ok(())
    }

    fn renew(&self, job: &JobInstall) -> Result<Vec<u32>, PlaneError> {
        let mut inner = self.0.lock().unwrap();
        inner.calls.push(Call::Renew(job.clone()));
        inner.jobs.retain(|other| other.terms.job != job.terms.job);
        inner.jobs.push(job.clone());
        let base = u32::from(job.terms.epoch) * 100;
        Ok((0..u32::from(job.terms.lanes())).map(|lane| base + lane).collect())
    }

    fn remove(&self, job: u16) -> Result<(), PlaneError> {
        let mut inner = self.0.lock().unwrap();
        inner.calls.push(Call::Remove(job));
        inner.jobs.retain(|other| other.terms.job != job);
        Ok(())
    }

    fn instance(&self) -> Result<u64, PlaneError> {
        while self.0.lock().unwrap().is_held {
            thread::sleep(Duration::from_millis(5));
        }
        let instance = self.0.lock().unwrap().instance;
        instance.ok_or(PlaneError::Unavailable { what: "detached".into() })
    }
}
