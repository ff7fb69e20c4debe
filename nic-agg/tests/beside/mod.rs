//! An aggregator beside a second `serve`, another release's maps, a mount namespace of its own, other users
//! and signals.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use nix::{sys::signal::Signal, unistd::Pid};
use sumac_agg::{pool::Pools, program};
use sumac_loader::{Interface, Variant};

use super::{BIN, Shell, copied::copy_programs, support::net::needs_privileges};

impl Shell {
    fn pin_directory(&self) -> PathBuf {
        let attached = self.json("attach p0 --slots 32 --json");
        PathBuf::from(attached["pins"].as_str().unwrap())
    }

    fn programs(&self) -> usize {
        self.middle.inside(|| Interface::by_name("p0").unwrap().xdp.len())
    }
}

/// A `serve` of the shell's aggregator, killed on drop.
struct Serve(Child);

impl Serve {
    fn start(shell: &Shell, port: u16) -> Serve {
        let state_dir = std::env::temp_dir().join(format!("{}-{port}", shell.middle.name));
        let child = Command::new("nsenter")
            .args([&format!("--net=/run/netns/{}", shell.middle.name), BIN, "serve", "--pin-root"])
            .arg(&shell.middle.pins)
            .args(["--listen", &format!("127.0.0.1:{port}"), "--state-dir"])
            .arg(state_dir)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn();
        Serve(child.unwrap())
    }

    /// Returns the line that states that it waits for workers, or the last one.
    fn line(&mut self) -> String {
        let mut last = String::new();
        for line in BufReader::new(self.0.stderr.take().unwrap()).lines().map_while(Result::ok) {
            last = line;
            if last.contains("waiting for workers") {
                break;
            }
        }
        last
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_second_control_plane_is_refused_by_the_firsts_number() {
    needs_privileges!("a_second_control_plane_is_refused_by_the_firsts_number");
    let shell = Shell::new();
    shell.done("attach p0 --slots 32");
    let mut first = Serve::start(&shell, 48600);
    assert!(first.line().contains("waiting for workers"));
    shell.done("job add 7 --token 1 --worker 10.79.0.2 --slots 16");
    let mut second = Serve::start(&shell, 48700);
    let refused = second.line();
    let holder = format!("in use by process {}", first.0.id());
    assert!(refused.contains(&holder), "{refused}");
    assert_eq!(second.0.wait().unwrap().code(), Some(1));
    assert_eq!(shell.json("job list --json").as_array().unwrap().len(), 1, "the second one cleared it");
    // The kernel releases the lock of a process that is killed.
    drop(first);
    let mut next = Serve::start(&shell, 48700);
    let line = next.line();
    assert!(line.contains("waiting for workers"), "{line}");
    for port in [48600, 48700] {
        let _ = fs::remove_dir_all(std::env::temp_dir().join(format!("{}-{port}", shell.middle.name)));
    }
}

#[test]
fn another_releases_maps_are_refused_by_version() {
    needs_privileges!("another_releases_maps_are_refused_by_version");
    let shell = Shell::new();
    let abi = shell.pin_directory().join("abi");
    shell.done("job add 7 --token 1 --worker 10.79.0.2 --slots 16");
    fs::remove_file(&abi).unwrap();
    symlink("77", &abi).unwrap();
    for line in
        ["status", "job list", "job remove 7", "drop --up 0 --down 0", "detach", "attach p0 --slots 32"]
    {
        let (code, text) = shell.fails(line);
        assert!(
            code == 1 && text.contains("ABI version 77") && text.contains("detach --all"),
            "{line}: {text}"
        );
    }
    assert_eq!(shell.programs(), 1, "a refusal detaches nothing");
    // A release before there were versions.
    fs::remove_file(&abi).unwrap();
    assert!(shell.fails("attach p0 --slots 32").1.contains("ABI version none"));
    symlink(sumac_agg_layout::ABI.to_string(), &abi).unwrap();
    assert_eq!(shell.json("job list --json").as_array().unwrap().len(), 1, "jobs are kept");
    fs::remove_file(&abi).unwrap();
    shell.done("detach --all");
    shell.done("attach p0 --slots 32");
}

#[test]
fn a_bpffs_that_ends_with_the_command_is_refused() {
    needs_privileges!("a_bpffs_that_ends_with_the_command_is_refused");
    let shell = Shell::new();
    let inside = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    // `ip netns exec` has a /sys of its own, without a bpffs.
    let exec = |line: &str| {
        inside(Command::new("ip").args(["netns", "exec", &shell.middle.name, BIN]).args(line.split(' ')))
    };
    let (code, text) = exec("attach p0 --slots 32");
    assert!(
        code == 1 && text.contains("would end with this command") && text.contains("nsenter --net="),
        "{text}"
    );
    assert_eq!(shell.programs(), 0);
    let (code, text) = exec("status");
    assert!(code == 1 && text.contains("not to be seen from here"), "{text}");
    // One that this mount namespace has alone: with the command as its only process, and beside another.
    let net = format!("--net=/run/netns/{}", shell.middle.name);
    let alone = |line: &str| inside(Command::new("nsenter").args([&net, "unshare", "-m", "sh", "-c", line]));
    let mount = "mount -t bpf bpf /mnt &&";
    let (code, text) = alone(&format!("{mount} exec {BIN} attach p0 --slots 32 --pin-root /mnt/sumac"));
    assert!(code == 1 && text.contains("would end with this command"), "{text}");
    assert_eq!(shell.programs(), 0);
    let (code, text) = alone(&format!("{mount} {BIN} attach p0 --slots 32 --pin-root /mnt/sumac; exit $?"));
    assert!(code == 0 && text.contains("end with its last process"), "{text}");
    // The kernel releases them some time after that process.
    while shell.programs() != 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // The machine's own, seen from another mount namespace.
    let (code, text) =
        alone(&format!("exec {BIN} attach p0 --slots 32 --pin-root {}", shell.middle.pins.display()));
    assert!(code == 0, "{text}");
    assert_eq!(shell.programs(), 1);
}

#[test]
fn users_without_privileges_are_told_what_is_missing() {
    needs_privileges!("users_without_privileges_are_told_what_is_missing");
    let shell = Shell::new();
    shell.done("attach p0 --slots 32");
    // A copy that the other user may execute.
    let copy = std::env::temp_dir().join(format!("{}-bin", shell.middle.name));
    copy_programs([BIN], &copy);
    let net = format!("--net=/run/netns/{}", shell.middle.name);
    let lines = [
        ("status", "Permission denied"),
        ("job list", "Permission denied"),
        ("detach", "Permission denied"),
        ("attach p0 --slots 32", "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN missing"),
    ];
    // Others see the pins on some machines: systemd mounts a bpffs with mode 0700, `mount` with 1777.
    let modes = [0o700, 0o755].into_iter().flat_map(|mode| lines.map(|line| (mode, line)));
    for (mode, (line, expected)) in modes {
        fs::set_permissions(&shell.middle.pins, fs::Permissions::from_mode(mode)).unwrap();
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new("nsenter");
        command
            .arg(&net)
            .args(user)
            .arg(&copy)
            .args(line.split(' '))
            .arg("--pin-root")
            .arg(&shell.middle.pins);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {text}");
        assert!(text.contains(expected) && text.contains("root"), "{line}: {text}");
        assert_eq!(
            text.matches("os error").count(),
            text.matches("(os error 13)").count().min(1),
            "{line}: {text}"
        );
    }
    fs::remove_file(copy).unwrap();
}

/// The verifier gives up while a signal is pending.
#[test]
fn programs_are_loaded_in_a_storm_of_signals() {
    needs_privileges!("programs_are_loaded_in_a_storm_of_signals");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    // Handled, so that it neither ends the process nor is ignored.
    let _handled = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1()).unwrap();
    let is_loaded = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let is_loaded = &is_loaded;
        let loading = scope.spawn(move || {
            let thread = fs::read_link("/proc/thread-self").unwrap();
            tell.send(thread.file_name().unwrap().to_str().unwrap().parse::<i32>().unwrap()).unwrap();
            let loaded =
                program::load(Variant::Plain, Pools { slots: 32, dynamic_slots: 16, shards: 1, jobs: 256 });
            is_loaded.store(true, Ordering::Relaxed);
            loaded.map(drop)
        });
        let thread = Pid::from_raw(told.recv().unwrap());
        while !is_loaded.load(Ordering::Relaxed) {
            // By a thread's number the kernel prefers that thread.
            let _ = nix::sys::signal::kill(thread, Signal::SIGUSR1);
        }
        loading.join().unwrap().unwrap();
    });
}
