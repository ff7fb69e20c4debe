//! Tests in a network namespace of their own. They need CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF
//! and a bpffs on /sys/fs/bpf.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// Runs `test` in a thread with a fresh network namespace, which vanishes with the thread, and a directory
/// for pins.
pub fn in_namespace(name: &'static str, test: fn(&Path)) {
    let outcome = thread::spawn(move || {
        let unshared = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET);
        let bpffs = sumac_loader::preflight::is_on_bpffs(Path::new("/sys/fs/bpf"));
        if unshared.is_err() || !bpffs {
            assert_ne!(
                std::env::var("REQUIRE_PRIVILEGED").as_deref(),
                Ok("1"),
                "{name}: {unshared:?} {bpffs}"
            );
            println!("SKIP {name}: needs CAP_SYS_ADMIN ({unshared:?}) and bpffs on /sys/fs/bpf ({bpffs})");
            return;
        }
        let pins = Pins(PathBuf::from(format!("/sys/fs/bpf/sumac-{name}-{}", std::process::id())));
        std::fs::create_dir_all(&pins.0).unwrap();
        test(&pins.0);
    })
    .join();
    assert!(outcome.is_ok(), "{name} failed");
}

/// Removes all pins below a directory when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = sumac_hostprog::clean(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
