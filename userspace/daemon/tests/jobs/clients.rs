//! Several clients of one job on one host. See `lab.rs` for the topology.

use std::time::Duration;

use crate::common::{Raw, SECRET, code};
use crate::lab::Lab;
use serde_json::json;
use sumac_client::{Client, ClientError, Code, Job, OpOptions, OperationOrder};

fn total(client: &Client, job: &Job, name: &str, value: f32) -> Result<f32, ClientError> {
    let mut tensor = client.tensor::<f32>(700)?;
    tensor.fill(value);
    let sum = job.allreduce_with(tensor, OpOptions::named(name)).and_then(sumac_client::Pending::wait)?;
    assert!(sum.iter().all(|x| *x == sum[0]));
    Ok(sum[0])
}

#[test]
fn two_clients_submit_to_one_job() {
    let lab = Lab::new(2);
    // The same order on both hosts: first the opener's, then the other's.
    for (host, opener) in lab.open("shared", |o| o).into_iter().enumerate() {
        let second = lab.client(host);
        let attached = second.attach("shared", None).unwrap();
        assert_eq!(attached.opened().wire_job, opener.1.opened().wire_job);
        std::thread::spawn(move || {
            let pending = opener.1.allreduce(opener.0.tensor::<i32>(3000).unwrap()).unwrap();
            let other = attached.allreduce(second.tensor::<i32>(10).unwrap()).unwrap();
            other.wait().unwrap();
            pending.wait().unwrap();
            let stats = &second.stats().unwrap().jobs[0];
            assert_eq!((stats.clients, stats.operations_submitted), (2, 2));
            // The job continues without it.
            attached.close().unwrap();
            opener.1.allreduce(opener.0.tensor::<i32>(10).unwrap()).unwrap().wait().unwrap();
            opener.1.close().unwrap();
        });
    }
    // Until both daemons have removed the job.
    wait_until(|| (0..2).all(|host| lab.client(host).stats().unwrap().jobs.is_empty()));
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn operations_are_matched_by_name_in_any_order() {
    let lab = Lab::new(3);
    let names: Vec<String> = (0..20).map(|i| format!("layer {i}")).collect();
    let sums = lab.train(
        "named",
        |o| o.order(OperationOrder::Name).scale(65536.0),
        move |client, job, rank| {
            let mut mine: Vec<(f32, &String)> = (0..20u8).map(f32::from).zip(&names).collect();
            mine.rotate_left(usize::from(rank) * 7);
            if rank == 1 {
                mine.reverse();
            }
            let pending: Vec<_> = mine
                .into_iter()
                .map(|(value, name)| {
                    let mut tensor = client.tensor::<f32>(1 + value as usize * 50).unwrap();
                    tensor.fill(value);
                    let priority = (value as u8) % 8;
                    let options = OpOptions { priority, ..OpOptions::named(name) };
                    (value, job.allreduce_with(tensor, options).unwrap())
                })
                .collect();
            for (value, pending) in pending {
                assert_eq!(pending.wait().unwrap()[0], 3.0 * value, "rank {rank}");
            }
            // The same names again.
            total(client, job, "layer 3", 2.0).unwrap()
        },
    );
    assert_eq!(sums, [6.0; 3]);
}

#[test]
fn operations_of_several_clients_are_matched_by_name() {
    let lab = Lab::new(2);
    let opened = lab.open("met", |o| o.order(OperationOrder::Name).scale(65536.0));
    std::thread::scope(|scope| {
        for host in 0..2 {
            for client in 0..3 {
                let lab = &lab;
                scope.spawn(move || {
                    let connection = lab.client(host);
                    let job = connection.attach("met", None).unwrap();
                    for round in 0..5 {
                        let name = format!("{client} {round}");
                        assert_eq!(
                            total(&connection, &job, &name, client as f32).unwrap(),
                            2.0 * client as f32
                        );
                    }
                    job.close().unwrap();
                });
            }
        }
    });
    for (_, job) in opened {
        job.close().unwrap();
    }
}

#[test]
fn an_operation_without_a_name_is_refused_in_order_of_names() {
    let lab = Lab::new(1);
    let (client, job) = lab.open("nameless", |o| o.order(OperationOrder::Name)).remove(0);
    let failed = job.allreduce(client.tensor::<f32>(1).unwrap()).unwrap_err();
    assert_eq!(failed.error.code(), Some(Code::BadField));
}

#[test]
fn attach_requires_the_user_or_the_secret() {
    let lab = Lab::new(1);
    let client = lab.client(0);
    let code = |result: Result<Job, ClientError>| result.unwrap_err().code();
    assert_eq!(code(client.attach("door", None)), Some(Code::UnknownJob));
    let (_opener, _job) = lab.open("door", |o| o).remove(0);
    assert_eq!(code(client.attach("door", Some("another secret".into()))), Some(Code::Denied));
    client.attach("door", Some(SECRET.into())).unwrap();
    client.attach("door", None).unwrap();
}

#[test]
fn a_dead_clients_job_fails_only_with_outstanding_operations() {
    let lab = Lab::new(2);
    let jobs = lab.open("dies", |o| o);
    drop(lab.client(0).attach("dies", None).unwrap());
    std::thread::scope(|scope| {
        for (client, job) in &jobs {
            scope.spawn(|| assert_eq!(total(client, job, "goes on", 1.0).unwrap(), 2.0));
        }
    });
    // A client with an outstanding operation.
    let other = lab.client(0);
    let attached = other.attach("dies", None).unwrap();
    drop(attached.allreduce(other.tensor::<f32>(10).unwrap()).unwrap());
    drop((attached, other));
    // Before the other host submits a different operation, which would be a mismatch.
    wait_until(|| lab.client(0).stats().unwrap().jobs.is_empty());
    let error = total(&jobs[1].0, &jobs[1].1, "fails", 1.0).unwrap_err();
    let ClientError::Daemon(failure) = error else { panic!("{error}") };
    assert!(failure.ranks == [0] && failure.message.contains("1 operations outstanding"), "{failure}");
}

/// Also those that leave before the reply, and those that are refused.
#[test]
fn clients_that_leave_at_once_are_not_counted() {
    let lab = Lab::new(1);
    let (client, _job) = lab.open("crowd", |o| o).remove(0);
    for round in 0..40 {
        let mut raw = Raw::greeted(&lab.hosts[0].1);
        raw.send(json!({"cmd": "attach", "job": "crowd", "secret": "guess"}), &[]);
        raw.send(json!({"cmd": "attach", "job": "crowd"}), &[]);
        if round % 2 == 0 {
            raw.send(json!({"cmd": "stats"}), &[]);
        }
    }
    wait_until(|| client.stats().unwrap().jobs[0].clients == 1);
}

#[test]
fn the_job_ends_with_its_opener() {
    let lab = Lab::new(1);
    let (_client, job) = lab.open("ends", |o| o).remove(0);
    let mut raw = Raw::greeted(&lab.hosts[0].1);
    let attached = raw.ask(json!({"cmd": "attach", "job": "ends"}))["ok"]["job"].clone();
    let region = raw.region(4096);
    job.close().unwrap();
    let event = raw.event();
    assert_eq!((&event["event"], &event["job"]), (&json!("job_failed"), &attached), "{event}");
    let ask = json!({"cmd": "allreduce", "job": attached, "region": region, "dtype": "int32", "offset": 0, "count": 1});
    assert_eq!(code(&raw.ask(ask)), "job_failed");
    assert!(raw.ask(json!({"cmd": "close", "job": attached}))["ok"].is_object());
}
