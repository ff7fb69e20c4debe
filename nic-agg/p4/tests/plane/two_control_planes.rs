//! Two control planes of a switch, of which one writes at a time.

use std::net::SocketAddr;

use sumac_played_switch::{PROGRAM, PlayedServer, PlayedSwitch};

use super::*;

/// The first control plane is primary, then the second, and then the first again: its jobs are gone, and have
/// no slots any more.
#[test]
fn jobs_that_another_control_plane_has_removed_are_lost() {
    let (memory, first) = plane();
    for job in [job(1, 3), job(2, 1)] {
        first.install(&job).unwrap();
    }
    let (own, instance) = (memory.all(), first.instance().unwrap());
    memory.rebind();
    assert_eq!((first.instance().unwrap(), memory.all()), (instance, own), "nobody else was there");

    memory.rebind();
    let second = SwitchPlane::start(memory.clone(), wiring()).unwrap();
    assert_eq!(second.take_over(&[known(&job(1, 3))]).unwrap().jobs, [1]);
    for job in [job(2, 2), job(3, 7)] {
        second.install(&job).unwrap();
    }
    second.remove(2).unwrap();

    memory.rebind();
    let lost = first.instance().unwrap();
    assert_ne!(lost, instance);
    assert_eq!(first.instance().unwrap(), lost, "once");
    let (former, active): (Vec<_>, Vec<_>) =
        first.entries().into_iter().partition(|(_, entry)| !sumac_agg_p4::plane::is_active(entry));
    let epochs = |jobs: Vec<(u16, sumac_wire::tables::JobEntry)>| {
        jobs.into_iter().map(|(job, entry)| (job, entry.epoch)).collect::<Vec<_>>()
    };
    assert_eq!((epochs(active), epochs(former)), (vec![(1, 3)], vec![(2, 2), (3, 7)]));
    assert_eq!(memory.all().1.len(), 1, "the groups of the others are gone");
    let used = first.install(&job(3, 7)).unwrap_err().to_string();
    assert!(used.contains("job 3 had epoch 7 before"), "{used}");
    first.install(&job(3, 8)).unwrap();
    first.remove(2).unwrap();
    first.install(&job(2, 3)).unwrap();
    assert_eq!(first.instance().unwrap(), lost);
}

/// The same as in memory: the first control plane is primary, then the second, and then the first again.
#[test]
fn jobs_that_another_control_plane_of_the_model_has_removed_are_lost() {
    let Some((model, program)) = model("jobs_that_another_control_plane_of_the_model_has_removed_are_lost")
    else {
        return;
    };
    let runtime = runtime();
    let start = |election| SwitchPlane::start(model.connect(&runtime, election, &program), wiring()).unwrap();
    let first = start(1);
    first.install(&job(1, 1)).unwrap();
    let (jobs, instance) = (first.jobs(), first.instance().unwrap());
    // It was there, but has changed nothing.
    let second = start(2);
    assert!(second.take_over(&[known(&job(1, 1))]).is_ok());
    support::until(|| first.instance().is_err());
    drop(second);
    support::until(|| first.instance().is_ok());
    assert_eq!((first.instance().unwrap(), first.jobs()), (instance, jobs.clone()));

    let third = start(3);
    assert_eq!(third.take_over(&[]).unwrap().jobs, [0; 0]);
    third.install(&job(1, 2)).unwrap();
    support::until(|| first.instance().is_err());
    drop(third);
    support::until(|| first.instance().is_ok());
    assert_ne!(first.instance().unwrap(), instance, "its slots were another's");
    assert_eq!(first.entries()[0].1.epoch, 2);
    let used = first.install(&job(1, 2)).unwrap_err().to_string();
    assert!(used.contains("job 1 had epoch 2 before"), "{used}");
    first.install(&job(1, 3)).unwrap();
    assert_eq!(start(4).jobs(), first.jobs());
}

/// A program has one client: another can have been there only while the connection was gone.
#[test]
fn jobs_that_another_client_of_bfruntime_has_removed_are_lost() {
    let played = PlayedSwitch::with_program("sumac", PROGRAM).unwrap();
    let server = PlayedServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), &played).unwrap();
    let address = server.address();
    let start = || played::control(address);
    let first = start();
    first.install(&job(1, 1)).unwrap();
    let instance = first.instance().unwrap();
    drop(server);
    assert!(first.instance().is_err());
    let server = PlayedServer::start(address, &played).unwrap();
    support::until(|| first.instance().is_ok_and(|now| now == instance));
    drop(server);
    assert!(first.instance().is_err());
    let _server = PlayedServer::start(address, &played).unwrap();
    let second = start();
    assert_eq!(second.take_over(&[]).unwrap().jobs, [0; 0]);
    assert!(first.instance().is_err(), "the other is bound");
    drop(second);
    support::until(|| first.instance().is_ok_and(|now| now != instance));
}
