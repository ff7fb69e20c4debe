//! A lab for one test: its turn on the machine, and the proof that it left nothing behind.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_lab::record::Record;
use sumac_lab::traces::Traces;
use sumac_lab::{Lab, LabSpec};

use crate::wait::LIMIT;
use crate::{Crew, stats};

/// Held by tests with labs: shared by most, by one alone that compares shares of traffic.
static MACHINE: RwLock<()> = RwLock::new(());

/// The right to have a lab, until it is dropped.
#[derive(Debug)]
enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

/// Tests that have said that they cannot have a lab: each prints it once, because these lines are counted.
static SKIPPED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Runs a test that makes labs of its own, in its turn.
pub fn in_turn(body: impl FnOnce()) {
    let Some(_turn) = turn(false) else { return };
    body();
}

/// Waits for this test's turn; `None`, after saying so, when this machine cannot have a lab.
fn turn(alone: bool) -> Option<Turn> {
    if nix::unistd::geteuid().is_root() {
        // A test that failed with a lab has taken it down in its panic.
        return Some(if alone {
            Turn::Alone { _guard: MACHINE.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Turn::Shared { _guard: MACHINE.read().unwrap_or_else(PoisonError::into_inner) }
        });
    }
    let test = test_name();
    let required = std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
    assert!(!required, "{test} needs root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN, CAP_NET_RAW)");
    if SKIPPED.lock().unwrap_or_else(PoisonError::into_inner).insert(test.clone()) {
        println!("SKIP {test}: network namespaces and XDP need root");
    }
    None
}

/// The name of the test that runs on this thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// A lab. End a test with [`Site::leave_nothing`]; a test that panics has it removed too.
#[derive(Debug)]
pub struct Site {
    lab: Lab,
    turn: Turn,
}

impl Site {
    /// A lab as specified; `None`, after saying so, when this machine cannot have one. A lab whose cables
    /// mark congestion is there for shares of traffic to be compared: no other lab is beside it.
    pub fn up(spec: LabSpec) -> Option<Site> {
        let turn = turn(spec.ecn_threshold_kb.is_some())?;
        let lab = Lab::up(spec).unwrap_or_else(|error| panic!("{error:#}"));
        Some(Site { lab, turn })
    }

    /// Takes the lab down and proves that nothing is left: no process, namespace, pin, program, file.
    pub fn leave_nothing(self) {
        let Site { lab, turn } = self;
        let record = Record::load(&lab.spec().name).unwrap();
        for namespace in &record.namespaces {
            let pids = Namespace::named(namespace).pids().unwrap();
            assert!(pids.is_empty(), "processes {pids:?} are left in {namespace}");
        }
        let traces = Traces::of(&lab).unwrap();
        lab.down().unwrap();
        assert_eq!(traces.remaining(LIMIT).unwrap(), Vec::<String>::new(), "something outlived its lab");
        drop(turn);
    }
}

impl Deref for Site {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// Runs `body` on Sumac in a lab, then proves that no frame was lost in any daemon and nothing was left
/// behind.
pub fn with_sumac(spec: LabSpec, options: &SumacOptions, body: impl FnOnce(&mut Deployment<'_>)) {
    let Some(site) = Site::up(spec) else { return };
    let mut sumac = Deployment::start(&site, options).unwrap_or_else(|error| panic!("{error:#}"));
    body(&mut sumac);
    stats::assert_frames_conserved(&mut sumac);
    drop(sumac);
    site.leave_nothing();
}

/// As [`with_sumac`], with all workers in a job, which they leave after `body`.
pub fn with_crew(spec: LabSpec, options: &SumacOptions, body: impl FnOnce(&Deployment<'_>, &Crew)) {
    with_sumac(spec, options, |sumac| {
        let crew = Crew::join(sumac, "crew");
        body(sumac, &crew);
        crew.leave();
    });
}
