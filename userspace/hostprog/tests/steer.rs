//! Steering where the driver has no rules: required, preferred, and recorded for rules that are gone.
//!
//! ```text
//!   one namespace:  [h0]===veth===[h1]   the program is on h0
//! ```

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what went wrong by failing")]

mod support;

use std::os::unix::fs::symlink;

use sumac_hostprog::{AttachOptions, Attached, attach, clean, detach, status::details};
use sumac_loader::Interface;
use sumac_netutil::{
    Steer,
    steer::report::{QueueChoice, Steering},
};
use support::{
    PORT,
    net::{Namespace, needs_privileges},
};

/// Makes a namespace with h0 receiving on so many queues, and moves the calling thread into it.
fn lab(queues: &str) -> Namespace {
    let lab = Namespace::new("host");
    lab.run(&format!("ip link add h0 numrxqueues {queues} type veth peer name h1 numtxqueues {queues}"));
    lab.run(&format!("ethtool -L h0 rx {queues}"));
    lab.run("ip link set h0 up");
    lab.enter();
    lab
}

fn options(lab: &Namespace, steer: Steer) -> AttachOptions {
    AttachOptions { shards: 2, steer, pin_root: lab.pins.clone(), ..AttachOptions::new("h0") }
}

fn programs() -> usize {
    Interface::by_name("h0").unwrap().xdp.len()
}

/// Returns the steering as `sumac status` shows it.
fn shown(attached: &Attached) -> Steering {
    details(attached).unwrap().steering
}

#[test]
fn one_queue_needs_no_rules() {
    needs_privileges!("one_queue_needs_no_rules");
    let lab = lab("1");
    let steering = shown(&attach(&options(&lab, Steer::Ntuple)).unwrap());
    assert_eq!((steering.by, steering.queues, steering.is_whole()), (QueueChoice::OneQueue, 1, true));
}

#[test]
fn a_veth_has_no_rules_and_that_is_reported() {
    needs_privileges!("a_veth_has_no_rules_and_that_is_reported");
    let lab = lab("2");
    let error = attach(&options(&lab, Steer::Ntuple)).unwrap_err().to_string();
    assert!(error.contains("h0 takes no rules") && error.contains("its driver has none"), "{error}");
    assert_eq!(programs(), 0);
    assert!(!lab.pins.exists(), "a failed attachment left pins");

    let attached = attach(&options(&lab, Steer::Auto)).unwrap();
    let steering = shown(&attached);
    assert_eq!(
        (steering.by, &steering.without_rule[..]),
        (QueueChoice::SendersCpu, &[PORT, PORT + 1][..]),
        "{steering}"
    );
    assert!(
        steering.no_rules.as_ref().is_some_and(|why| why.contains("its driver has none")),
        "{steering:?}"
    );

    assert!(attach(&options(&lab, Steer::Ntuple)).is_err());
    let still = Attached::open("h0", &lab.pins).unwrap();
    assert_eq!(still.program_id(), attached.program_id(), "the former program stays");
    attach(&options(&lab, Steer::Off)).unwrap();
}

/// Records of rules that the driver does not have, or that went with their interface.
#[test]
fn records_of_rules_that_are_gone_are_removed() {
    needs_privileges!("records_of_rules_that_are_gone_are_removed");
    let lab = lab("2");
    let recorded = |steer| {
        let attached = attach(&options(&lab, steer)).unwrap();
        symlink("port-48700-queue-0", attached.pin_path().join("rule-7")).unwrap();
        attached.pin_path().join("rule-7")
    };
    let record = recorded(Steer::Off);
    assert!(!attach(&options(&lab, Steer::Off)).unwrap().steering().is_whole());
    assert!(record.symlink_metadata().is_err(), "the driver has no rules");
    recorded(Steer::Off);
    detach("h0", &lab.pins).unwrap();
    recorded(Steer::Auto);
    lab.run("ip link del h0");
    clean(&lab.pins).unwrap();
    assert!(!lab.pins.exists(), "pins are left");
}
