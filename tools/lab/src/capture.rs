//! Captures of a lab's frames (`--pcap`), by dumpcap at both ends of every cable.
//!
//! A frame that an XDP program consumes or redirects, or that AF_XDP sends, does not pass the packet sockets
//! of its host's interface. A cable's ports have no program: their packet sockets see all frames, those of
//! AF_XDP, of XDP programs and of the kernel. So a lab with captures has cables, also where nothing else asks
//! for them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::interrupt;
use crate::lab::Lab;
use crate::process::Process;
use crate::wiring::Tap;

/// The kernel's buffer of each capture, in MiB: on few CPUs dumpcap waits for its turn.
const BUFFER_MIB: &str = "64";

/// The time in which frames that have arrived get to the file: dumpcap takes them from the kernel every 250
/// ms.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// The time in which dumpcap starts, and in which it ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Captures of a run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CaptureOptions {
    /// Capture all frames at both ends of every cable, into files DIR/<lab>-<host>.pcapng (worker's end) and
    /// DIR/<lab>-<aggregator>-<port>.pcapng; needs dumpcap. The workers then hang on cables in any case
    #[arg(long = "pcap", value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Keep at most this many bytes of each frame: 128 have all headers. By default the whole frame
    #[arg(long = "pcap-bytes", value_name = "BYTES", requires = "folder",
        value_parser = clap::value_parser!(u32).range(64..=65535))]
    pub bytes: Option<u32>,
}

/// A file of captured frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Captured {
    /// Its path.
    pub file: PathBuf,
    /// Frames in it, in both directions.
    pub packets: u64,
    /// Frames that dumpcap was too slow for.
    pub dropped: u64,
}

/// Running captures.
#[derive(Debug)]
pub struct Capture {
    running: Vec<(PathBuf, Process)>,
}

impl Capture {
    /// Starts the captures that the options ask for, and waits until all of them see frames.
    pub fn start(lab: &Lab, options: &CaptureOptions) -> Result<Capture> {
        let mut capture = Capture { running: Vec::new() };
        let Some(folder) = &options.folder else { return Ok(capture) };
        fs::create_dir_all(folder).with_context(|| format!("creating {} for --pcap", folder.display()))?;
        for tap in lab.taps() {
            capture.running.push(start(lab, &tap, folder, options.bytes)?);
        }
        for (_, process) in &mut capture.running {
            let log = process.log().to_owned();
            // It names the file once the socket is open.
            let is_open = || fs::read_to_string(&log).is_ok_and(|text| text.contains("File: "));
            process.wait_until("capturing", LIMIT, is_open)?;
        }
        Ok(capture)
    }

    /// Ends the captures, and returns what is in the files.
    pub fn finish(mut self) -> Result<Vec<Captured>> {
        if !self.running.is_empty() {
            std::thread::sleep(SETTLE_TIME);
        }
        for (_, process) in &self.running {
            process.signal(Signal::SIGINT);
        }
        let running = self.running.iter_mut();
        running.map(|(file, process)| finish(file, process)).collect()
    }
}

/// Starts a capture; root's capabilities, which dumpcap gives up, may be needed to open the file.
fn start(lab: &Lab, tap: &Tap<'_>, folder: &Path, bytes: Option<u32>) -> Result<(PathBuf, Process)> {
    let path = folder.join(format!("{}.pcapng", tap.name));
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    let mut dumpcap = Command::new("dumpcap");
    dumpcap.args(["-q", "-p", "-B", BUFFER_MIB, "-i", &tap.interface, "-w", "-"]);
    if let Some(bytes) = bytes {
        dumpcap.args(["-s", &bytes.to_string()]);
    }
    let what = format!("dumpcap-{}", tap.name);
    let process = lab.start_into(tap.namespace, &what, &mut dumpcap, file);
    Ok((path, process.context("starting dumpcap, of Debian's package tshark, for --pcap")?))
}

fn finish(file: &Path, process: &mut Process) -> Result<Captured> {
    if interrupt::wait_for(LIMIT, || process.ended())?.is_none() {
        bail!("{} did not end within {} s", process.what(), LIMIT.as_secs());
    }
    let log = process.log_tail();
    let (packets, dropped) = counts(&log)
        .ok_or_else(|| anyhow!("{} did not tell what it captured; its log:\n{log}", process.what()))?;
    Ok(Captured { file: file.to_owned(), packets, dropped })
}

/// The frames in the file, and those that were dropped, by dumpcap's last line: `Packets received/dropped on
/// interface 'x': 5/0 (..`.
fn counts(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().rev().find(|line| line.starts_with("Packets received/dropped"))?;
    let (_, numbers) = line.rsplit_once("': ")?;
    let (received, rest) = numbers.split_once('/')?;
    let (dropped, _) = rest.split_once(' ')?;
    Some((received.parse().ok()?, dropped.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_counts() {
        let log = "Capturing on 'near'\nFile: -\nPackets captured: 14499\nPackets received/dropped on \
        interface 'near': 14499/3 (pcap:3/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)\n";
        assert_eq!(counts(log), Some((14499, 3)));
        assert_eq!(counts("Capturing on 'near'\nFile: -\n"), None);
    }
}
