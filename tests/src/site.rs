//! A lab for one test: its turn on the machine, and the proof that it left nothing behind.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::programs::{ProgramInfo, loaded_programs};
use sumac_lab::deployment::{Deployment, SumacOptions};
use sumac_lab::namespace::Namespace;
use sumac_lab::record::Record;
use sumac_lab::{Lab, LabSpec};

use crate::stats;
use crate::wait::eventually;

/// One lab at a time, also when the tests were not started with `--test-threads 1`.
static TURN: Mutex<()> = Mutex::new(());

/// Labs of this process so far; a part of their names.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The right to have a lab, until it is dropped.
pub type Turn = MutexGuard<'static, ()>;

/// Tests that have said that they cannot have a lab: each says so once, because these lines are counted.
static SKIPPED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Waits for this test's turn; `None`, after saying so, when this machine cannot have a lab.
///
/// # Panics
/// With `REQUIRE_PRIVILEGED=1` for want of root.
pub fn turn() -> Option<Turn> {
    if nix::unistd::geteuid().is_root() {
        // A test that failed with a lab has taken it down in its panic.
        return Some(lock(&TURN));
    }
    let test = test_name();
    let required = std::env::var_os("REQUIRE_PRIVILEGED").is_some_and(|value| value == "1");
    assert!(!required, "{test} needs root (CAP_NET_ADMIN, CAP_BPF, CAP_SYS_ADMIN, CAP_NET_RAW)");
    if lock(&SKIPPED).insert(test.clone()) {
        println!("SKIP {test}: network namespaces and XDP need root");
    }
    None
}

/// The name of the test that runs on this thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab. End a test with [`Site::leave_nothing`]; a test that panics has it removed too.
#[derive(Debug)]
pub struct Site {
    lab: Lab,
    turn: Turn,
}

impl Site {
    /// A lab as specified, with a name of its own; `None`, after saying so, when this machine cannot have one.
    ///
    /// # Panics
    /// When it cannot be built, and with `REQUIRE_PRIVILEGED=1` also for want of root.
    pub fn up(spec: LabSpec) -> Option<Site> {
        let turn = turn()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let spec = LabSpec { name: format!("e2e{}-{number}", std::process::id()), ..spec };
        let lab = Lab::up(spec).unwrap_or_else(|error| panic!("{error}"));
        Some(Site { lab, turn })
    }

    /// Takes the lab down and proves that nothing is left: no process, namespace, pin, program, file.
    ///
    /// # Panics
    /// When something is.
    pub fn leave_nothing(self) {
        let Site { lab, turn } = self;
        let name = lab.spec().name.clone();
        let record = Record::load(&name).unwrap();
        for namespace in &record.namespaces {
            let pids = Namespace::named(namespace).pids().unwrap();
            assert!(pids.is_empty(), "processes {pids:?} are left in {namespace}");
        }
        let programs = pinned_programs(&lab.pin_root());
        lab.down().unwrap();

        let namespaces = sumac_lab::namespace::all().unwrap();
        let left: Vec<_> =
            namespaces.iter().filter(|namespace| record.namespaces.contains(namespace)).collect();
        assert!(left.is_empty(), "namespaces outlived their lab: {left:?}");
        for pin in &record.pins {
            assert!(!pin.exists(), "{} outlived its lab", pin.display());
        }
        assert!(!Record::folder(&name).exists(), "the lab's folder outlived it");
        assert!(!Record::path(&name).exists(), "the lab's record outlived it");
        // The kernel frees programs and interfaces in its own time, after the namespace is gone.
        eventually("the programs' end", || {
            let loaded: BTreeSet<u32> = loaded_programs().filter_map(|info| Some(info.ok()?.id())).collect();
            programs.is_disjoint(&loaded).then_some(())
        });
        drop(turn);
    }
}

impl Deref for Site {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// Runs `body` on Sumac in a lab, then proves that no frame was lost in any daemon and nothing was left behind.
///
/// # Panics
/// When one of these fails, or `body` does.
pub fn with_sumac(spec: LabSpec, options: &SumacOptions, body: impl FnOnce(&mut Deployment<'_>)) {
    let Some(site) = Site::up(spec) else { return };
    let mut sumac = Deployment::start(&site, options).unwrap_or_else(|error| panic!("{error}"));
    body(&mut sumac);
    stats::assert_frames_conserved(&mut sumac);
    drop(sumac);
    site.leave_nothing();
}

/// The numbers of all programs that are pinned below a folder: `prog` and `prog-out` are the names of such pins.
fn pinned_programs(folder: &Path) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pinned_programs(&path));
        } else if entry.file_name().to_string_lossy().starts_with("prog") {
            found.insert(ProgramInfo::from_pin(&path).unwrap().id());
        }
    }
    found
}
