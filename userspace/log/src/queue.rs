//! Lines that a thread writes. A full queue drops lines and counts them, as the output's reader may have
//! stopped.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Between two looks at whether all is written.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Counts {
    dropped: AtomicU64,
    /// Lines that are in the queue, or being written.
    unwritten: AtomicU64,
}

/// The queue's end for those who log. Each write is one line.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    queue: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

impl Lines {
    /// Starts the thread, which has the privileges of the caller.
    pub fn new(output: impl Write + Send + 'static, capacity: usize) -> io::Result<Lines> {
        let (queue, lines) = sync_channel(capacity);
        let counts = Arc::<Counts>::default();
        let of_thread = counts.clone();
        thread::Builder::new()
            .name("sumac-log".into())
            .spawn(move || write_lines(output, &lines, &of_thread))?;
        Ok(Lines { queue, counts })
    }

    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, at most so long.
    pub fn finish(&self, longest: Duration) {
        let deadline = Instant::now() + longest;
        while self.counts.unwritten.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.counts.unwritten.fetch_add(1, Ordering::AcqRel);
        if self.queue.try_send(line.to_vec()).is_err() {
            self.counts.unwritten.fetch_sub(1, Ordering::AcqRel);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_lines(mut output: impl Write, lines: &Receiver<Vec<u8>>, counts: &Counts) {
    let mut noted = 0;
    while let Ok(line) = lines.recv() {
        let dropped = counts.dropped.load(Ordering::Relaxed);
        if dropped > noted
            && writeln!(output, "{} lines of this log were dropped: its reader had stopped", dropped - noted)
                .is_ok()
        {
            noted = dropped;
        }
        // A terminal or reader that is gone for good ends nothing here.
        if output.write_all(&line).is_err() {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        counts.unwritten.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, pipe};

    use super::*;

    const HANGS: Duration = Duration::from_secs(60);

    #[test]
    fn a_reader_that_has_stopped_blocks_nobody_and_dropped_lines_are_counted() {
        let (reader, output) = pipe().unwrap();
        let mut lines = Lines::new(output, 16).unwrap();
        // More than a pipe takes (64 KiB), and the queue.
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..1000 {
            lines.write_all(&line).unwrap();
        }
        let dropped = lines.dropped();
        assert!((800..1000).contains(&dropped), "{dropped}");
        // Notes stand anywhere between the lines. The queue has room once the last line has left it.
        let (mut unread, mut noted) = (1000 - dropped, 0);
        for text in BufReader::new(reader).lines().map(Result::unwrap) {
            if let Some((count, _)) = text.split_once(" lines of this log were dropped") {
                noted += count.parse::<u64>().unwrap();
            } else if text == "the next one" {
                break;
            } else {
                unread -= 1;
                if unread == 0 {
                    lines.write_all(b"the next one\n").unwrap();
                }
            }
        }
        assert_eq!(noted, dropped);
        lines.finish(HANGS);
    }

    #[test]
    fn an_output_that_fails_ends_nothing() {
        let (reader, output) = pipe().unwrap();
        drop(reader);
        let mut lines = Lines::new(output, 16).unwrap();
        lines.write_all(b"to nobody\n").unwrap();
        lines.finish(HANGS);
        assert_eq!(lines.dropped(), 1);
    }
}
