//! The behavioural model as a switch: `simple_switch_grpc` with the program that `tools/p4/build.py --model`
//! has compiled.

pub mod memory;

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use sumac_agg_p4::p4runtime::{P4Runtime, Program, Server};
use tokio::runtime::Runtime;

pub const DEADLINE: Duration = Duration::from_secs(60);
const MODEL: &str = "simple_switch_grpc";

pub struct Model {
    /// Its server's port stays the same when it is started again.
    port: u16,
    device: u64,
    process: Option<Child>,
}

/// Returns a switch without a program, and the program; none, with a message, where there is no model.
pub fn model(test: &str) -> Option<(Model, Program)> {
    let skip = |why: &str| {
        println!("SKIP {test}: {why}");
        None
    };
    if !is_on_path(MODEL) {
        return skip("no simple_switch_grpc on PATH (docs/p4.md)");
    }
    let Some(program) = program() else {
        return skip("the program is not compiled: tools/p4/build.py --model");
    };
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let device = std::process::id() + 100_000 * STARTED.fetch_add(1, Ordering::Relaxed);
    let mut model = Model { port: free_port(), device: device.into(), process: None };
    model.start();
    Some((model, program))
}

fn program() -> Option<Program> {
    let [compiled, info] = files();
    (compiled.exists() && info.exists()).then(|| Program::read(&compiled, &info).unwrap())
}

/// Returns the compiled program's files.
pub fn files() -> [PathBuf; 2] {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = crates.into_iter().find(|folder| folder.join("Cargo.lock").exists()).unwrap();
    ["sumac.json", "sumac.p4info.bin"].map(|name| root.join("target/p4/bmv2").join(name))
}

impl Model {
    pub fn start(&mut self) {
        let Model { port, device, .. } = *self;
        let log = Stdio::null;
        let child = Command::new(MODEL)
            .args(["--no-p4", "--log-level", "off", "--device-id", &device.to_string()])
            .args(["--notifications-addr", &format!("ipc://{}", self.notifications().display())])
            .args(["--thrift-port", &free_port().to_string(), "--"])
            .args(["--grpc-server-addr", &format!("127.0.0.1:{port}")])
            .stdin(log())
            .stdout(log())
            .stderr(log())
            .spawn()
            .unwrap();
        self.process = Some(child);
    }

    fn notifications(&self) -> PathBuf {
        std::env::temp_dir().join(format!("sumac-model-{}.ipc", self.device))
    }

    /// Ends it as a crash does.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn server(&self, election: u64) -> Server {
        Server { address: format!("http://{}", self.address()), device: self.device, election }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn connect(&self, runtime: &Runtime, election: u64, program: &Program) -> P4Runtime {
        P4Runtime::start(runtime.handle(), self.server(election), program.clone(), DEADLINE).unwrap()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_file(self.notifications());
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn is_on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn until(is_done: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < DEADLINE, "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
