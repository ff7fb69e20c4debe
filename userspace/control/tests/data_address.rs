//! Members that state the address of a host outside of their job, over loopback TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[allow(dead_code, reason = "each test file uses a part")]
mod plane;
#[allow(dead_code, reason = "each test file uses a part")]
mod server;

use std::net::Ipv4Addr;

use plane::FakePlane;
use server::{Server, refusal, request, until, with};
use sumac_control::{JoinRequest, PlaneKind, RefusalKind, join, rack::offer_parameter_host};
use sumac_job::Mode;

/// Neither the connection's host nor in the network that the test's server allows.
const VICTIM: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

fn elsewhere(mode: Mode) -> JoinRequest {
    let mut asked =
        with(request(0, 1), |spec| (spec.mode, spec.slots, spec.shards) = (Some(mode), None, None));
    asked.host.data_ip = VICTIM;
    asked
}

#[tokio::test]
async fn a_worker_has_no_packets_sent_to_another_host() {
    let root = Server::start(FakePlane::new(1024)).await;
    let rack = Server::rack(&root, "r").await;
    for endpoint in [root.endpoint(), rack.endpoint()] {
        for mode in [Mode::Static, Mode::Dynamic, Mode::Direct] {
            let refused = refusal(&endpoint, elsewhere(mode)).await;
            assert_eq!(
                (refused.kind, &refused.ranks[..]),
                (RefusalKind::Invalid, &[0][..]),
                "{mode:?}: {refused}"
            );
            for part in ["203.0.113.9", "127.0.0.1", "sumac-agg serve --data-network"] {
                assert!(refused.message.contains(part), "{mode:?}: {refused}");
            }
        }
    }
    assert!(root.plane.calls().is_empty() && rack.plane.calls().is_empty());
    // An allowed network, and another address of loopback.
    for data_ip in [Ipv4Addr::new(10, 77, 3, 2), Ipv4Addr::new(127, 0, 0, 98)] {
        let mut asked = request(0, 1);
        asked.host.data_ip = data_ip;
        let member = join(&root.endpoint(), asked).await.unwrap();
        assert_eq!(root.plane.job().workers[0].ip, data_ip);
        drop(member);
        until(|| root.overview().jobs.is_empty()).await;
    }
    rack.stop().await;
    root.stop().await;
}

#[tokio::test]
async fn a_parameter_host_has_no_packets_sent_to_another_host() {
    let root = Server::start(FakePlane::new(1024)).await;
    let plane = FakePlane::of(PlaneKind::Parameter, 1);
    plane.set_address(VICTIM);
    let offering = tokio::spawn(offer_parameter_host(plane.clone(), root.racks_endpoint(), "p".into()));
    let sums_at = || root.overview().parameter_hosts.first().and_then(|host| Some(*host.sums_at?.ip()));
    until(|| root.overview().server.denied.request > 0 || sums_at().is_some()).await;
    assert_eq!(sums_at(), None);
    // It has come in, and changes its address.
    plane.set_address(Ipv4Addr::LOCALHOST);
    until(|| sums_at() == Some(Ipv4Addr::LOCALHOST)).await;
    let denied = root.overview().server.denied.request;
    plane.set_address(VICTIM);
    until(|| root.overview().server.denied.request > denied || sums_at() == Some(VICTIM)).await;
    assert_ne!(sums_at(), Some(VICTIM));
    until(|| sums_at().is_none()).await;
    offering.abort();
    root.stop().await;
}
