//! A trainer that dies while its child holds the socket. See `lab.rs` for the topology.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sumac_client::{Code, JobOptions};

use crate::lab::Lab;

/// Opens a job, and forks as a loader of data does: the child has the socket, and does not end.
const TRAINER: &str = r#"
import json, os, socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
def ask(command):
    s.send(json.dumps(command).encode())
    return json.loads(s.recv(131072))
ask({"id": 1, "cmd": "hello", "version": 4})
assert "ok" in ask({"id": 2, "cmd": "open", "job": "orphaned", "rank": 0, "world": 2})
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"#;

#[test]
fn a_trainer_that_dies_is_noticed_although_its_child_holds_the_socket() {
    let lab = Lab::new(2);
    let mut trainer = Command::new("/usr/bin/python3");
    trainer.args(["-c", TRAINER]).arg(&lab.hosts[0].1).stdout(Stdio::piped());
    let mut trainer = trainer.spawn().unwrap();
    let client = lab.client(1);
    let job = client.open(&JobOptions::new("orphaned", 1, 2)).unwrap();
    let mut line = String::new();
    BufReader::new(trainer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let mut sum = job.allreduce(client.tensor::<f32>(1000).unwrap()).unwrap();
    trainer.kill().unwrap();
    trainer.wait().unwrap();
    let failed = sum.wait_timeout(Duration::from_secs(60));
    kill_process(child, Signal::KILL).unwrap();
    let error = failed.expect_err("the other worker's sum fails").error;
    assert_eq!(error.code(), Some(Code::JobFailed), "{error}");
    assert!(error.to_string().contains("rank 0"), "{error}");
    lab.await_no_job(0);
}
