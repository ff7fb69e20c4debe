//! Readiness and watchdog notifications for systemd, of the daemon and of `sumac-agg serve`, on a socket of
//! the test.
//!
//! Needs strace, which stops one thread of a process and no other.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sumac_lab::programs::Programs;
use sumac_tests::site::in_turn;
use sumac_tests::wait::eventually;

/// A notification is due in each third of it.
const WATCHDOG_USEC: &str = "600000";
/// Far longer than a third of it.
const SILENCE: Duration = Duration::from_secs(3);

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The socket that systemd would have.
struct Manager {
    socket: UnixDatagram,
    folder: PathBuf,
}

impl Manager {
    fn new(name: &str) -> Manager {
        let folder = std::env::temp_dir().join(format!("sumac-notify-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        Manager { socket, folder }
    }

    fn start(&self, program: &mut Command) -> Running {
        program.env("NOTIFY_SOCKET", self.folder.join("notify")).env("WATCHDOG_USEC", WATCHDOG_USEC);
        Running(program.spawn().unwrap())
    }

    /// Returns the next notification; none in a time of silence.
    fn next(&self) -> Option<String> {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).trim_end().to_owned())
    }

    fn expect(&self, wanted: &str) {
        eventually(wanted, || (self.next()? == wanted).then_some(()));
    }

    fn expect_silence(&self) {
        eventually("silence", || self.next().is_none().then_some(()));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Hangs a process's thread of this name in its next system call, until the value is dropped.
fn hang(process: &Running, thread: &str) -> Running {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
    let is_it = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap().trim() == thread;
    let task = tasks.map(|task| task.unwrap().path()).find(is_it);
    let task = task.unwrap_or_else(|| panic!("no thread {thread}"));
    let mut strace = Command::new("strace");
    strace.arg("-p").arg(task.file_name().unwrap()).args(["-e", "inject=all:delay_enter=60s"]);
    Running(strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// A process is ready, and its watchdog is fed until one of its threads hangs.
fn is_watched(name: &str, thread: &str, start: impl FnOnce(&Manager) -> Running) {
    in_turn(|| {
        let manager = Manager::new(name);
        let process = start(&manager);
        manager.expect("READY=1");
        (0..3).for_each(|_| manager.expect("WATCHDOG=1"));
        let hung = hang(&process, thread);
        manager.expect_silence();
        drop(hung);
        manager.expect("WATCHDOG=1");
    });
}

#[test]
fn a_daemon_with_a_hung_thread_feeds_no_watchdog() {
    is_watched("daemon", "sumac-datapath", |manager| {
        manager.start(Programs::find().unwrap().sumac().args(["daemon", "--config"]).arg(configure(manager)))
    });
}

/// Writes the configuration of a daemon; returns its file.
fn configure(manager: &Manager) -> PathBuf {
    let (config, socket) = (manager.folder.join("daemon.toml"), manager.folder.join("sock"));
    fs::write(&config, format!("backend = 'udp'\nsocket = '{}'\n", socket.display())).unwrap();
    config
}

#[test]
fn an_upgrade_names_the_new_main_process_before_the_old_one_ends() {
    in_turn(|| {
        let manager = Manager::new("upgrade");
        let config = configure(&manager);
        let mut former =
            manager.start(Programs::find().unwrap().sumac().args(["daemon", "--config"]).arg(&config));
        manager.expect("READY=1");
        let mut upgrade = Programs::find().unwrap().sumac();
        // As systemd runs an ExecReload: without its socket, and without the watchdog's interval.
        upgrade.args(["upgrade", "--config"]).arg(&config);
        let mut upgrade = Running(upgrade.spawn().unwrap());
        let main = eventually("the new main process", || {
            manager.next()?.strip_prefix("MAINPID=").map(|pid| pid.parse::<i32>().unwrap())
        });
        assert!(upgrade.0.wait().unwrap().success());
        assert!(former.0.wait().unwrap().success());
        // The other process feeds it now.
        (0..2).for_each(|_| manager.expect("WATCHDOG=1"));
        let main = nix::unistd::Pid::from_raw(main);
        nix::sys::signal::kill(main, nix::sys::signal::Signal::SIGTERM).unwrap();
        manager.expect("STOPPING=1");
        eventually("its end", || nix::sys::signal::kill(main, None).is_err().then_some(()));
    });
}

#[test]
fn a_host_aggregator_with_a_hung_thread_feeds_no_watchdog() {
    is_watched("serve", "aggregate0", |manager| {
        let mut serve = Programs::find().unwrap().sumac_agg();
        serve.args([
            "serve",
            "--plane",
            "host",
            "--listen",
            "127.0.0.1:0",
            "--base-port",
            "0",
            "--state-dir",
        ]);
        manager.start(serve.arg(&manager.folder))
    });
}
