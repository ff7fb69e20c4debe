//! CPU seconds: of one process, and of the whole machine, whose softirq work belongs to no process.

use std::fs;

use serde::{Deserialize, Serialize};

/// The kernel reports times to user space in hundredths of a second on every Linux (USER_HZ).
const TICKS: f64 = 100.0;

/// CPU time of a process, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In user mode.
    pub user: f64,
    /// In the kernel on its behalf.
    pub system: f64,
}

impl std::ops::Add for CpuTime {
    type Output = CpuTime;

    fn add(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user + other.user, system: self.system + other.system }
    }
}

impl std::ops::Sub for CpuTime {
    type Output = CpuTime;

    fn sub(self, other: CpuTime) -> CpuTime {
        CpuTime { user: self.user - other.user, system: self.system - other.system }
    }
}

/// The time of all CPUs since boot, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineTime {
    /// In user mode.
    pub user: f64,
    /// In the kernel for a process.
    pub system: f64,
    /// In interrupts; forwarding in veths, bridges and XDP programs is here.
    pub softirq: f64,
}

impl std::ops::Add for MachineTime {
    type Output = MachineTime;

    fn add(self, other: MachineTime) -> MachineTime {
        MachineTime {
            user: self.user + other.user,
            system: self.system + other.system,
            softirq: self.softirq + other.softirq,
        }
    }
}

impl MachineTime {
    /// Now; zeros when /proc/stat cannot be read.
    pub fn now() -> MachineTime {
        fs::read_to_string("/proc/stat").ok().and_then(|text| parse_machine(&text)).unwrap_or_default()
    }

    pub fn since(self, earlier: MachineTime) -> MachineTime {
        MachineTime {
            user: self.user - earlier.user,
            system: self.system - earlier.system,
            softirq: self.softirq - earlier.softirq,
        }
    }

    pub fn total(self) -> f64 {
        self.user + self.system + self.softirq
    }
}

/// CPU time of a process with all its threads; none when it is gone.
pub fn of_process(pid: u32) -> Option<CpuTime> {
    parse_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_process(stat: &str) -> Option<CpuTime> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // After the name comes field 3; utime and stime are fields 14 and 15 of proc(5).
    let user: f64 = fields.nth(14 - 3)?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(CpuTime { user: user / TICKS, system: system / TICKS })
}

fn parse_machine(text: &str) -> Option<MachineTime> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else { return None };
    Some(MachineTime {
        user: (user + nice) / TICKS,
        system: system / TICKS,
        softirq: (irq + softirq) / TICKS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_proc() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 25 0 0 20 0 1 0 1234 0 0";
        assert_eq!(parse_process(stat), Some(CpuTime { user: 1.5, system: 0.25 }));
        let text = "cpu  100 20 300 9999 5 10 40 0 0 0\ncpu0 1 2 3\n";
        let machine = parse_machine(text);
        assert_eq!(machine, Some(MachineTime { user: 1.2, system: 3.0, softirq: 0.5 }));
        assert_eq!(parse_machine("intr 5"), None);
        assert!(of_process(std::process::id()).is_some());
    }
}
