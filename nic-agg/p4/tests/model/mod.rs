//! The behavioural model of a switch with the aggregator's program, in a network namespace of its own.

pub mod ports;
pub mod thrift;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use nix::sched::{CloneFlags, unshare};
use ports::Ports;
use sumac_agg_p4::{
    p4runtime::{self, P4Runtime, Server},
    target::{Target as _, Update},
};
use sumac_wire::tos::QUEUES;
use thrift::Thrift;

const MODEL: &str = "simple_switch_grpc";
const COMPILER: &str = "p4c-bm2-ss";
/// The time in which the model answers, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const THRIFT_PORT: u16 = 9090;
const P4RUNTIME_PORT: u16 = 9559;

/// Runs `test` with the compiled program in a thread with a network namespace, which ends with it. Says why
/// the test is skipped where the model, the program or the privilege is missing.
pub fn with_program(name: &'static str, test: fn(&Program)) {
    static PROGRAM: OnceLock<Result<Program, String>> = OnceLock::new();
    let program = match PROGRAM.get_or_init(Program::compiled) {
        Ok(program) => program,
        Err(why) => return println!("SKIP {name}: {why}"),
    };
    let outcome = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            assert_ne!(env::var("REQUIRE_PRIVILEGED").as_deref(), Ok("1"), "{name}: {error}");
            return println!("SKIP {name}: no network namespace: {error} (needs CAP_SYS_ADMIN)");
        }
        test(program);
    })
    .join();
    assert!(outcome.is_ok(), "{name} failed");
}

/// The ticks in which no test ends: vectors have no time, and a slot is never taken back by its age.
pub const SLOT_TIMEOUT: u32 = 1 << 30;

/// The compiled program.
pub struct Program {
    pub json: PathBuf,
    pub p4info: PathBuf,
    registers: Vec<String>,
    counters: Vec<String>,
}

impl Program {
    /// Compiles the program, unless its sources are older than the last time.
    fn compiled() -> Result<Program, String> {
        let folders = env::var_os("PATH").unwrap_or_default();
        for program in [COMPILER, MODEL] {
            if !env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
                return Err(format!("no {program} on PATH; docs/p4.md says how to get it"));
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let folder = root.join("target/p4/vectors");
        let [json, p4info] = ["sumac.json", "sumac.p4info.bin"].map(|name| folder.join(name));
        if modified(&p4info).is_none_or(|compiled| changed(&root.join("p4")) >= compiled) {
            fs::create_dir_all(&folder).unwrap();
            let source = root.join("p4/bmv2/sumac.p4");
            let mut compiler = Command::new(COMPILER);
            compiler.args(["--arch", "v1model", &format!("-DSLOT_TIMEOUT={SLOT_TIMEOUT}"), "-o"]).arg(&json);
            let output = compiler.arg("--p4runtime-files").arg(&p4info).arg(source).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let described: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let names = |kind: &str| {
            let arrays = described[kind].as_array().unwrap().iter();
            arrays.map(|array| array["name"].as_str().unwrap().to_owned()).collect()
        };
        Ok(Program { json, p4info, registers: names("register_arrays"), counters: names("counter_arrays") })
    }

    /// Returns the full name of a register or counter by its last components.
    pub fn name(&self, last: &str) -> &str {
        let is_it = |name: &&String| name.strip_suffix(last).is_some_and(|rest| rest.ends_with('.'));
        let found: Vec<_> = self.registers.iter().chain(&self.counters).filter(is_it).collect();
        let [name] = found[..] else { panic!("the program has not one {last}: {found:?}") };
        name
    }

    pub fn registers(&self) -> &[String] {
        &self.registers
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Returns the time of the last change of the sources in a folder.
fn changed(folder: &Path) -> SystemTime {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let times = entries.map(|path| if path.is_dir() { changed(&path) } else { modified(&path).unwrap() });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A running model.
pub struct Model {
    process: Child,
    /// A socket of the model's.
    notifications: PathBuf,
    pub ports: Ports,
    pub thrift: Thrift,
}

impl Model {
    /// Starts a model with these ports, in the thread's namespace.
    pub fn start(ports: &[u32]) -> Model {
        let numbers = ports;
        let ports = Ports::new(ports.iter().copied());
        let mut command = Command::new(MODEL);
        command.args(["--no-p4", "--log-console", "-L", "error"]);
        command.args(["--thrift-port", &THRIFT_PORT.to_string()]);
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let started = STARTED.fetch_add(1, Ordering::Relaxed);
        let notifications = env::temp_dir().join(format!("sumac-vectors-{}-{started}.ipc", process::id()));
        command.args(["--notifications-addr", &format!("ipc://{}", notifications.display())]);
        for number in numbers {
            command.args(["-i", &format!("{number}@{}", Ports::interface(*number))]);
        }
        command.args(["--", "--grpc-server-addr", &address(), "--priority-queues", &QUEUES.to_string()]);
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let thrift = loop {
            if let Ok(thrift) = Thrift::connect(THRIFT_PORT) {
                break thrift;
            }
            assert!(process.try_wait().unwrap().is_none(), "{MODEL} has ended");
            assert!(Instant::now() < deadline, "{MODEL} does not answer on port {THRIFT_PORT}");
            thread::sleep(Duration::from_millis(20));
        };
        Model { process, notifications, ports, thrift }
    }

    /// Loads the program and writes its tables, as `serve` does it.
    pub fn install(program: &Program, updates: &[Update]) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = Server { address: format!("http://{}", address()), device: 0, election: 1 };
        let program = p4runtime::Program::read(&program.json, &program.p4info).unwrap();
        P4Runtime::start(runtime.handle(), server, program, LIMIT).unwrap().write(updates).unwrap();
    }
}

fn address() -> String {
    format!("127.0.0.1:{P4RUNTIME_PORT}")
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.notifications);
    }
}
