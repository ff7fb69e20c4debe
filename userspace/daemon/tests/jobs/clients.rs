//! Several clients of one job on one host. See `lab.rs` for the topology.

use crate::common::{Raw, SECRET};
use crate::lab::Lab;
use crate::wait::eventually;
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
    (0..2).for_each(|host| lab.await_no_job(host));
}

#[test]
fn a_second_client_is_of_the_rank_that_it_names() {
    let lab = Lab::of_one_host(2);
    let opened = lab.open("ranks", |o| o.order(OperationOrder::Name));
    let client = lab.client(0);
    let unnamed = client.attach("ranks", None).unwrap_err();
    assert!(unnamed.to_string().contains("rank"), "{unnamed}");
    assert_eq!(client.attach_rank("ranks", 2, None).unwrap_err().code(), Some(Code::UnknownJob));
    let attached = client.attach_rank("ranks", 1, None).unwrap();
    assert_eq!(attached.opened().rank, 1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| total(&opened[0].0, &opened[0].1, "sum", 1.0).unwrap());
        assert_eq!(total(&client, &attached, "sum", 2.0).unwrap(), 3.0);
        assert_eq!(first.join().unwrap(), 3.0);
    });
    attached.close().unwrap();
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
    let has_left = || client.stats().unwrap().jobs[0].clients == 1;
    eventually("its end", || has_left().then_some(()));
}
