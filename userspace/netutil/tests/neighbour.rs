//! Ways through real interfaces.
//!
//! ```text
//!  namespace sctl<pid>a            namespace sctl<pid>b
//!  10.99.1.1/24  near ---veth--- far  10.99.1.2/24, and 10.99.2.1 behind it
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::{net::Ipv4Addr, process::Command, thread};

use sumac_netutil::neighbour::{self, ResolveError};

/// Two namespaces and the cable between them; both end with it.
struct Lab {
    names: [String; 2],
}

impl Lab {
    fn new() -> Result<Lab, String> {
        let pid = std::process::id();
        let lab = Lab { names: [format!("sctl{pid}a"), format!("sctl{pid}b")] };
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
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) if std::env::var("REQUIRE_PRIVILEGED").is_ok_and(|value| value == "1") => panic!("{why}"),
        Err(why) => return println!("SKIP resolves_by_arp_and_through_a_router: {why}"),
    };
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
