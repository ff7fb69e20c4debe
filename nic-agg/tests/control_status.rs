//! `sumac-agg control` beside `sumac-agg serve --plane none`, without privilege.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "support/serve.rs"]
mod serve;

use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant},
};

use serve::Serving;
use sumac_control::{
    DynamicWishes, JoinSpec, Mode, OperationOrder, Secret, coordinator::overview::Overview, join,
};
use sumac_transport::{NonFinitePolicy, Scale, WireFormat};

/// Far above what anything here takes: it ends a hanging test, and says nothing about speed.
const HANGS: Duration = Duration::from_secs(60);
const SECRET: &str = "the secret of all";

struct Server {
    child: Child,
    control: SocketAddr,
    file: PathBuf,
}

impl Server {
    fn start() -> Server {
        let file = std::env::temp_dir().join(format!("sumac-control-{}", std::process::id()));
        fs::write(&file, SECRET).unwrap();
        let mut arguments = ["--plane", "none", "--listen", "127.0.0.1:0"].map(OsString::from).to_vec();
        for secret in ["--secret-file", "--rack-secret-file"] {
            arguments.extend([secret.into(), file.clone().into()]);
        }
        let serving = Serving::start(arguments);
        let control = serving.field("control").parse().unwrap();
        Server { child: serving.child, control, file }
    }

    /// What `sumac-agg control` prints.
    fn ask(&self, more: &[&str]) -> Result<String, String> {
        let port = self.control.port().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sumac-agg"));
        let output = command.args(["control", "--port", &port]).args(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.file);
    }
}

fn spec() -> JoinSpec {
    JoinSpec {
        job: "train".into(),
        world: 2,
        rank: 0,
        secret: Secret::new(SECRET).unwrap(),
        data_ip: Ipv4Addr::UNSPECIFIED,
        data_port: 48700,
        mac: [0; 6],
        elements: None,
        max_elements: 352,
        slots: None,
        shards: None,
        max_shards: 4,
        scaling: Scale::Block,
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        checksum: true,
        mode: Mode::Dynamic(DynamicWishes::default()),
        deadline: HANGS,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_control_plane_says_what_it_has() {
    let mut server = Server::start();
    let joining = tokio::spawn(join(server.control, spec()));
    let begun = Instant::now();
    let status = loop {
        let answer = server.ask(&["--json"]);
        let status = answer.as_deref().ok().and_then(|json| serde_json::from_str::<Overview>(json).ok());
        match status.filter(|status| !status.jobs.is_empty()) {
            Some(status) => break status,
            None => assert!(begun.elapsed() < HANGS, "{answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let job = &status.jobs[0];
    assert_eq!((job.name.as_str(), job.mode.as_str(), job.state.as_str()), ("train", "dynamic", "waiting"));
    assert_eq!((job.world, &job.missing[..]), (2, &[1][..]));
    assert_eq!((status.racks.len(), status.parameter_hosts.len()), (0, 0));
    let text = server.ask(&[]).unwrap();
    assert_eq!(text, "job 1.0 `train`: dynamic, 2 workers, waiting; rank 1 not joined\n");
    joining.abort();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let nobody = server.ask(&[]).unwrap_err();
    assert!(nobody.contains("no `sumac-agg serve` answers"), "{nobody}");
}
