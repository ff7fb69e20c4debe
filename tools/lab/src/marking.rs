//! Marks of congestion on a cable: a program in front of each shaper, for this kernel has no queue that
//! marks.
//!
//! A token bucket that shapes (`tbf`) only queues and drops, and does not say how much waits in it. So an
//! eBPF program on the port (`tools/cable-prog`, clsact egress) keeps the same account of the same frames,
//! and marks those that are ECN-capable when more than the threshold waits before them. All frames are on the
//! account, whoever sent them.
//!
//! ```text
//!   frame -> account (rate; more than 256 KB + threshold ahead: ECT becomes CE) -> tbf (rate, 256 KB; queue) -> wire
//! ```
//!
//! The program lives as long as the port. Its counter is pinned, so that another process can read it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use aya::EbpfLoader;
use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::tc::{self, NlOptions, TcAttachOptions};
use aya::programs::{SchedClassifier, TcAttachType};
use nix::sched::{CloneFlags, setns};
use sumac_loader::preflight;

use crate::namespace::Namespace;
use crate::shaper::{BURST_BYTES, QUEUE_BYTES};
use crate::spec::LabSpec;
use crate::units::Rate;

/// The backlog above which frames are marked, unless a lab is told another: 42 full frames, 5 ms at 100
/// Mbit/s.
pub const DEFAULT_THRESHOLD_KB: u32 = 64;

static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SUMAC_CABLE_OBJECT"));

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marking {
    rate: Rate,
    threshold_kb: u32,
    /// The pin of its counters, without the direction's name.
    pins: PathBuf,
}

/// Returns the directory of the pins of a lab's counters.
pub(crate) fn pins(lab: &str) -> PathBuf {
    Path::new("/sys/fs/bpf").join(format!("sumac-lab-{lab}-cables"))
}

impl Marking {
    /// Returns the marking of a lab's cables, if any.
    pub(crate) fn of(spec: &LabSpec, cable: &str) -> Option<Marking> {
        let (rate, threshold_kb) = spec.rate.zip(spec.ecn_threshold_kb)?;
        Some(Marking { rate, threshold_kb, pins: pins(&spec.name).join(cable) })
    }

    /// Puts the program on these ports, named by the direction of what leaves them.
    pub(crate) fn build(&self, cable: &Namespace, ports: [(&str, &str); 2]) -> Result<()> {
        // It mounts the bpffs, if no program of Sumac's was attached before.
        preflight::check(&self.pins).context("preparing the pins of the cables' counters")?;
        let program = |port| format!("program that marks congestion on {port} of {}", cable.name());
        for (direction, port) in ports {
            let mut ebpf = self.load().with_context(|| format!("loading the {}", program(port)))?;
            let pin = self.pins.join(direction);
            // A thread of its own, which ends here, enters the cable's namespace.
            let attached = std::thread::scope(|scope| {
                let thread = scope.spawn(|| attach(&mut ebpf, cable, port, &pin));
                thread.join().unwrap_or_else(|_| bail!("the thread that attaches panicked"))
            });
            attached.with_context(|| format!("attaching the {}", program(port)))?;
        }
        Ok(())
    }

    fn load(&self) -> Result<aya::Ebpf, aya::EbpfError> {
        let at_once = BURST_BYTES;
        let threshold = at_once + u64::from(self.threshold_kb) * 1024;
        let (rate, above, full) =
            (self.rate.0 / 8, self.ahead_ns(threshold), self.ahead_ns(at_once + QUEUE_BYTES));
        EbpfLoader::new()
            .override_global("BYTES_PER_SECOND", &rate, true)
            .override_global("MARK_ABOVE_NS", &above, true)
            .override_global("FULL_NS", &full, true)
            .load(OBJECT)
    }

    /// Returns the link's time for `bytes`.
    fn ahead_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.rate.0)) as u64
    }

    /// Returns the number of marked frames of a direction.
    pub(crate) fn marked(&self, direction: &str) -> Result<u64> {
        let path = self.pins.join(direction);
        let read = || -> Result<u64, MapError> {
            let map = Map::Array(MapData::from_pin(&path)?);
            Array::<_, u64>::try_from(&map)?.get(&0, 0)
        };
        read().with_context(|| format!("reading {}, which counts a cable's marks", path.display()))
    }
}

fn attach(program: &mut aya::Ebpf, cable: &Namespace, port: &str, pin: &Path) -> Result<()> {
    if let Some(folder) = pin.parent() {
        std::fs::create_dir_all(folder)?;
    }
    program.map("MARKED").context("the object has no MARKED")?.pin(pin).context("pinning the counter")?;
    let found = program.program_mut("sumac_cable").context("the object has no sumac_cable")?;
    let classifier: &mut SchedClassifier = found.try_into()?;
    sumac_loader::program::retry_interrupted(|| classifier.load())?;
    setns(File::open(cable.path())?, CloneFlags::CLONE_NEWNET)?;
    tc::qdisc_add_clsact(port).context("adding clsact")?;
    let filter = TcAttachOptions::Netlink(NlOptions::default());
    let link = classifier.attach_with_options(port, TcAttachType::Egress, filter)?;
    // Dropping it would take the program off; the kernel does that when the port goes.
    std::mem::forget(classifier.take_link(link)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_time() {
        let marking = Marking { rate: Rate(100_000_000), threshold_kb: 64, pins: PathBuf::new() };
        assert_eq!(marking.ahead_ns(12_500_000), 1_000_000_000);
        assert_eq!(Marking::of(&LabSpec::new(2), "cable"), None);
    }
}
