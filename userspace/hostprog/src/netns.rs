//! Work in another network namespace: several share one bpffs, and `clean` reaches all of them.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
};

use nix::sched::{CloneFlags, setns};

use crate::pins::current_namespace;

/// Runs something in the network namespace of this inode: on the calling thread when that is there already, else on one of
/// its own.
///
/// # Errors
/// `NotFound` when no process and no name leads to the namespace, or as the kernel answers.
pub fn inside<T: Send>(namespace: u64, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if current_namespace()? == namespace {
        return Ok(work());
    }
    let file = File::open(find(namespace)?)?;
    let there = thread::scope(|scope| {
        let entered = scope.spawn(move || setns(file, CloneFlags::CLONE_NEWNET).map(|()| work()));
        entered.join()
    });
    match there {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(io::Error::other("the thread in the other namespace panicked")),
    }
}

/// A path to a network namespace: the name that `ip netns` gave it, or that of a process in it.
fn find(namespace: u64) -> io::Result<PathBuf> {
    let entries = |path: &str| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let processes = entries("/proc").map(|process| process.join("ns/net"));
    let is_it = |path: &PathBuf| inode(path).is_ok_and(|found| found == namespace);
    entries("/run/netns").chain(processes).find(is_it).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("nothing leads to network namespace {namespace}"))
    })
}

fn inode(path: &Path) -> io::Result<u64> {
    fs::metadata(path).map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_here_or_nowhere() {
        let here = current_namespace().unwrap();
        assert_eq!(inside(here, || current_namespace().unwrap()).unwrap(), here);
        assert_eq!(inode(&find(here).unwrap()).unwrap(), here);
        assert_eq!(inside(1, || ()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
