//! Handovers that are refused, or whose new daemon dies: the running one goes on, and nothing was touched.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::{WORLD, seed, train};
use crate::common::{Raw, memfd};
use crate::lab::{Kind, Lab};
use crate::quotas::as_another_user;
use sumac_client::Mode;
use sumac_daemon::config::Config;
use sumac_daemon::{Daemon, DaemonError, Versions};

/// The configuration of a successor, as a variable of its environment: TOML.
const SUCCESSOR: &str = "SUMAC_TEST_SUCCESSOR";

fn refusal(config: Config, versions: Versions) -> String {
    match Daemon::prepare_takeover(config, versions) {
        Err(error @ DaemonError::Handover(_)) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it has taken over"),
    }
}

#[test]
fn another_version_or_setting_is_refused_before_anything_is_touched() {
    let lab = Lab::new(usize::from(WORLD));
    let training = train(&lab, "versions", seed(), |o| o);
    let own = Versions::own();
    let versions = [
        ("format", Versions { format: own.format + 1, release: "9.0".into(), ..own.clone() }),
        ("local API", Versions { local_api: own.local_api + 1, ..own.clone() }),
        ("control protocol", Versions { control_protocol: own.control_protocol + 1, ..own.clone() }),
    ];
    for (name, versions) in versions {
        training.await_rounds(1);
        let refused = refusal(lab.config_of(0, ""), versions);
        assert!(refused.contains(name) && refused.contains("goes on"), "{refused}");
    }
    let refused = refusal(lab.config_of(0, "shards = 2"), own);
    assert!(refused.contains("shards is 1 here, and 2 in the new daemon"), "{refused}");
    training.await_rounds(2);
    training.finish();
}

#[test]
fn jobs_that_are_summed_here_are_named() {
    let lab = Lab::co_located(Kind::Host { shared: 256 }, usize::from(WORLD));
    let training = train(&lab, "hosted", seed(), |o| o.mode(Mode::Dynamic));
    // The first host is also the parameter host.
    let refused = refusal(lab.config_of(0, ""), Versions::own());
    assert!(refused.contains("parameter host of jobs number"), "{refused}");
    training.await_rounds(2);
    training.finish();
}

#[test]
fn another_user_cannot_take_over() {
    let lab = Lab::new(1);
    let config = lab.config_of(0, "");
    if let Some(refused) = as_another_user(move || refusal(config, Versions::own())) {
        assert!(
            refused.contains("no daemon to take over from") && refused.contains("ermission"),
            "{refused}"
        );
    }
}

#[test]
fn the_running_daemon_goes_on_when_the_new_one_ends_before_it_is_ready() {
    let lab = Lab::new(usize::from(WORLD));
    let training = train(&lab, "thaw", seed(), |o| o);
    for host in [0, 1, 0] {
        training.await_rounds(1);
        drop(Daemon::prepare_takeover(lab.config_of(host, ""), Versions::own()).unwrap());
    }
    // Trainers connect as before.
    training.await_rounds(2);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    assert!(raw.register(&memfd(4096, true), 4096)["ok"]["region"].is_u64());
    training.finish();
}

/// The new daemon of the tests below, in a process of its own. Without the variable it does nothing.
#[test]
fn successor() {
    let Ok(text) = std::env::var(SUCCESSOR) else { return };
    let config = Config::parse(&text, "successor.toml".as_ref()).unwrap();
    let prepared = Daemon::prepare_takeover(config, Versions::own()).unwrap();
    println!("\nprepared");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let daemon = prepared.start().unwrap();
    println!("started");
    // Until the test closes the pipe.
    while std::io::stdin().read_line(&mut line).unwrap() > 0 {}
    daemon.stop();
}

/// A process with a new daemon, that has frozen the running one.
fn spawn(text: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "upgrade::refusals::successor", "--nocapture"])
        .env(SUCCESSOR, text)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    await_line(&mut child, "prepared");
    child
}

fn await_line(child: &mut Child, expected: &str) {
    let output = child.stdout.as_mut().unwrap();
    let mut bytes = BufReader::with_capacity(1, output).lines().map_while(Result::ok);
    assert!(bytes.any(|line| line == expected), "the new daemon has not {expected}");
}

#[test]
fn the_running_daemon_goes_on_when_the_new_ones_process_is_killed() {
    let lab = Lab::new(usize::from(WORLD));
    let training = train(&lab, "killed", seed(), |o| o);
    for pause in [0, 100] {
        training.await_rounds(1);
        let mut child = spawn(&lab.text_of(1, ""));
        thread::sleep(Duration::from_millis(pause));
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
    }
    training.await_rounds(2);
    training.finish();
}

#[test]
fn a_process_takes_over_from_another() {
    let mut lab = Lab::new(usize::from(WORLD));
    let training = train(&lab, "processes", seed(), |o| o);
    training.await_rounds(2);
    let mut child = spawn(&lab.text_of(1, ""));
    writeln!(child.stdin.as_mut().unwrap()).unwrap();
    await_line(&mut child, "started");
    training.await_rounds(2);
    // Back to a daemon of this process.
    lab.upgrade(1, "");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    training.await_rounds(2);
    training.finish();
}
