//! Ways through real interfaces.
//!
//! ```text
//!  namespace sctl<pid>n<test>a     namespace sctl<pid>n<test>b
//!  10.99.1.1/24  near ---veth--- far  10.99.1.2/24, and 10.99.2.1 behind it
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::{
    net::Ipv4Addr,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use sumac_netutil::neighbour::{self, ResolveError};

/// Two namespaces and the cable between them; both end with it.
struct Lab {
    names: [String; 2],
}

impl Lab {
    /// `None`, with a word, where the test cannot run.
    fn new(test: &str) -> Option<Lab> {
        match Lab::make() {
            Ok(lab) => Some(lab),
            Err(why) if std::env::var("REQUIRE_PRIVILEGED").is_ok_and(|value| value == "1") => {
                panic!("{why}")
            }
            Err(why) => {
                println!("SKIP {test}: {why}");
                None
            }
        }
    }

    fn make() -> Result<Lab, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sctl{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Lab { names: [format!("{name}a"), format!("{name}b")] };
        let [a, b] = &lab.names;
        for command in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add near type veth peer name far netns {b}"),
            format!("-n {a} addr add 10.99.1.1/24 dev near"),
            format!("-n {b} addr add 10.99.1.2/24 dev far"),
            format!("-n {b} addr add 10.99.2.1/32 dev far"),
            format!("-n {a} link set near up"),
            format!("-n {b} link set far up"),
            format!("-n {a} route add 10.99.2.0/24 via 10.99.1.2"),
        ] {
            ip(&command)?;
        }
        Ok(lab)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<String, String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Runs `body` on a thread inside the namespace.
fn inside<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let path = format!("/run/netns/{name}");
    let thread = thread::spawn(move || {
        let namespace = std::fs::File::open(path).unwrap();
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        body()
    });
    thread.join().unwrap()
}

#[test]
fn resolves_by_arp_and_through_a_router() {
    let Some(lab) = Lab::new("resolves_by_arp_and_through_a_router") else { return };
    let far = ip(&format!("-n {} -o link show far", lab.names[1])).unwrap();
    let far_mac = far.split("link/ether ").nth(1).unwrap()[..17].to_string();
    let shown = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let neighbour = Ipv4Addr::new(10, 99, 1, 2);
    for target in [neighbour, Ipv4Addr::new(10, 99, 2, 7)] {
        let way = inside(&lab.names[0], move || neighbour::resolve(target)).unwrap();
        assert_eq!(way.ifname, "near", "{target}");
        assert_eq!(way.src_ip, Ipv4Addr::new(10, 99, 1, 1), "{target}");
        assert_eq!(shown(way.mac), far_mac, "{target}");
        assert_ne!(way.own_mac, [0; 6], "{target}");
        assert_eq!((way.next_hop, way.vlan_of), (neighbour, None), "{target}");
    }
    let refused = |target: Ipv4Addr| inside(&lab.names[0], move || neighbour::resolve(target)).unwrap_err();
    assert!(
        matches!(refused(Ipv4Addr::new(10, 99, 1, 9)), ResolveError::NoAnswer { ifname, .. } if ifname ==
            "near")
    );
    assert!(matches!(refused(Ipv4Addr::new(10, 99, 3, 1)), ResolveError::NoRoute { .. }));
    assert!(matches!(refused(Ipv4Addr::new(10, 99, 1, 1)), ResolveError::Own { .. }));
}

#[test]
fn a_neighbour_that_stopped_answering_is_seen() {
    let Some(lab) = Lab::new("a_neighbour_that_stopped_answering_is_seen") else { return };
    let [near, far] = lab.names.clone();
    // Itself, and a host behind it.
    let targets = [Ipv4Addr::new(10, 99, 1, 2), Ipv4Addr::new(10, 99, 2, 7)];
    let ask = |target| inside(&near, move || neighbour::answers(target)).unwrap();
    for target in targets {
        assert_eq!(ask(target), Some(true), "{target}");
        assert_eq!(inside(&near, move || neighbour::outlet(target)).unwrap(), "near", "{target}");
    }
    ip(&format!("-n {far} link set far arp off")).unwrap();
    let resolved = inside(&near, move || neighbour::resolve(targets[0]));
    assert!(resolved.is_ok(), "the kernel still has the address: {resolved:?}");
    assert_eq!(ask(targets[0]), Some(false));
    assert_eq!(ask(targets[1]), Some(false), "and when the kernel has given the address up");
    ip(&format!("-n {far} link set far arp on")).unwrap();
    assert_eq!(ask(targets[1]), Some(true));
    ip(&format!("-n {near} neigh replace 10.99.1.2 lladdr 02:00:00:00:00:09 dev near nud permanent"))
        .unwrap();
    assert_eq!(ask(targets[0]), None, "no ARP is used for a permanent entry");
}
