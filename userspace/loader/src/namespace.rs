//! Network namespaces, named by inode. Several of them share one bpffs, and cleaning up reaches all of them.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    thread,
};

use nix::sched::{CloneFlags, setns};

/// Returns the inode of the calling thread's network namespace. Threads may be in different ones.
pub fn current() -> io::Result<u64> {
    fs::metadata("/proc/thread-self/ns/net").map(|metadata| metadata.ino())
}

/// Runs `work` in the network namespace with this inode: on the calling thread if it is there already, else
/// on a thread of its own.
///
/// # Errors
/// `NotFound` when no process and no name leads to the namespace, or the kernel's error.
pub fn inside<T: Send>(namespace: u64, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if current()? == namespace {
        return Ok(work());
    }
    let file = File::open(find(namespace)?)?;
    let outcome = thread::scope(|scope| {
        let entered = scope.spawn(move || setns(file, CloneFlags::CLONE_NEWNET).map(|()| work()));
        entered.join()
    });
    match outcome {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(io::Error::other("the thread in the other namespace panicked")),
    }
}

/// Returns a path to a network namespace: its name by `ip netns`, or a process in it.
fn find(namespace: u64) -> io::Result<PathBuf> {
    let entries = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let processes = entries("/proc").map(|process| process.join("ns/net"));
    let matches = |path: &PathBuf| fs::metadata(path).is_ok_and(|metadata| metadata.ino() == namespace);
    entries("/run/netns").chain(processes).find(matches).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("nothing leads to network namespace {namespace}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_in_its_namespace_or_fails() {
        let here = current().unwrap();
        assert_eq!(inside(here, || current().unwrap()).unwrap(), here);
        assert_eq!(fs::metadata(find(here).unwrap()).unwrap().ino(), here);
        assert_eq!(inside(1, || ()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
