//! The commands of trainers, one by one, on simulated hosts: what is refused, what fails on which workers,
//! and what a trainer that leaves does to its job.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "commands/world.rs"]
mod world;

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use sumac_api::{Code, Failure};

use world::{REGION, Rank, SECOND, Trainer, World, allreduce, code, with};

/// A job of one host is of one user; a rank of another is refused, and the others open without it.
#[test]
fn a_job_of_one_host_has_no_rank_of_another_user() {
    let mut world = World::new(1, 1);
    let open = |rank| json!({"cmd": "open", "job": "j", "rank": rank, "world": 2, "local_world": 2});
    let (first, second) = (world.trainer(0), world.trainer(0));
    let stranger = world.connect_as(0, 1001);
    world.ask(stranger, json!({"cmd": "hello", "version": sumac_api::VERSION}));
    let asked = world.send(first, open(0));
    let refused = world.ask(stranger, open(1));
    assert_eq!((code(&refused), &refused["error"]["ranks"]), ("denied", &json!([1])), "{refused}");
    let opened = world.ask(second, open(1));
    assert_eq!(code(&opened), "none", "{opened}");
    assert_eq!(code(&world.reply(first, asked)), "none");
    let attach = |rank: Option<u16>| with(json!({"cmd": "attach", "job": "j"}), json!({"rank": rank}));
    let third = world.trainer(0);
    let ambiguous = world.ask(third, json!({"cmd": "attach", "job": "j"}));
    assert_eq!((code(&ambiguous), &ambiguous["error"]["ranks"]), ("bad_field", &json!([0, 1])));
    assert_eq!(world.ask(third, attach(Some(1)))["ok"]["rank"], 1);
    assert_eq!(code(&world.ask(third, attach(Some(2)))), "unknown_job");
}

/// The daemon writes a result once where the ranks of a host share it, whatever their number.
#[test]
fn a_shared_result_is_written_once() {
    for (hosts, local) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 3)] {
        let mut world = World::new(hosts, 1);
        let all = hosts * local;
        let open = |rank| {
            json!({"cmd": "open", "job": "j", "rank": rank, "world": all, "local_world": local,
            "slots": 16})
        };
        let trainers: Vec<Trainer> = (0..all).map(|rank| world.trainer(rank / local)).collect();
        let asked: Vec<u64> =
            (0..all).zip(&trainers).map(|(rank, trainer)| world.send(*trainer, open(rank))).collect();
        let mut ranks = Vec::new();
        for (trainer, id) in trainers.into_iter().zip(asked) {
            let job = world.reply(trainer, id)["ok"]["job"].clone();
            let share = json!({"cmd": "share", "job": job, "size": REGION});
            let shared = world.ask(trainer, share)["ok"]["region"].clone();
            ranks.push((Rank { trainer, job, region: world.region(trainer) }, shared));
        }
        let count = REGION / 8;
        for (is_shared, times) in [(true, 1), (false, local)] {
            let before = written(&world);
            let submitted: Vec<Value> = ranks
                .iter()
                .map(|(rank, shared)| {
                    let out = if is_shared { shared } else { &rank.region };
                    let out = json!({"out_region": out, "out_offset": REGION / 2, "count": count});
                    world.submit(rank, out)
                })
                .collect();
            for ((rank, _), submitted) in ranks.iter().zip(submitted) {
                assert_eq!(world.end(rank, &submitted), None, "{submitted}");
            }
            let found: Vec<usize> =
                written(&world).iter().zip(before).map(|(after, before)| after - before).collect();
            assert_eq!(found, vec![4 * count * times; hosts], "{hosts} hosts with {local} ranks each");
        }
    }
}

/// The bytes of results that each host's daemon has written.
fn written(world: &World) -> Vec<usize> {
    let hosts = world.cluster.hosts.iter().flatten();
    hosts.map(|host| host.handles.written.load(Ordering::Relaxed)).collect()
}

/// Two workers whose second operations differ: both receive an error with both operations.
#[test]
fn operations_that_differ_are_named_on_both_workers() {
    let differ = |options: Value, operations: [Value; 2], sides: [&str; 2]| {
        let mut world = World::new(2, 1);
        let ranks = world.open(&options);
        world.sums(&ranks, &json!({"name": "same"}));
        let submitted: Vec<_> =
            ranks.iter().zip(operations).map(|(rank, more)| world.submit(rank, more)).collect();
        for (rank, submitted) in ranks.iter().zip(&submitted) {
            let failure = world.end(rank, submitted).expect(sides[0]);
            assert_eq!((failure.code, &failure.ranks[..]), (Code::Mismatch, &[0, 1][..]), "{failure}");
            for (other, side) in sides.iter().enumerate() {
                let words = format!("rank {other} has {side}");
                assert!(failure.message.contains(&words), "{words:?} is missing in {failure}");
            }
        }
    };
    let table = json!([
        [{"count": 1000}, {"count": 999}, "allreduce sum float32[1000]", "allreduce sum float32[999]"],
        [{"loss_bound": 0.1}, {"loss_bound": 0.2},
            "allreduce sum float32[10] loss bound 0.1", "allreduce sum float32[10] loss bound 0.2"],
        [{}, {"dtype": "int32"}, "allreduce sum float32[10]", "allreduce sum int32[10]"],
        [{"name": "a"}, {"name": "b"}, "allreduce sum float32[10] \"a\"", "allreduce sum float32[10] \"b\""],
        [{"cmd": "broadcast", "root": 0}, {"cmd": "broadcast", "root": 1},
            "broadcast float32[10] root 0", "broadcast float32[10] root 1"],
        [{}, {"reduction": "max"}, "allreduce sum float32[10]", "allreduce max float32[10]"],
        // They are in different lanes and have no slot in common.
        [{"priority": 7}, {}, "allreduce sum float32[10] urgent", "allreduce sum float32[10]"],
    ]);
    for row in table.as_array().unwrap() {
        let sides = [2, 3].map(|side| format!("#1 {}", row[side].as_str().unwrap()));
        differ(json!({}), [row[0].clone(), row[1].clone()], [&sides[0], &sides[1]]);
    }
    let layers = [100, 101].map(|count| json!({"name": "layer", "count": count}));
    let sides = ["allreduce sum float32[100] \"layer\"", "allreduce sum float32[101] \"layer\""];
    differ(json!({"order": "name"}), layers, sides);
}

/// Several lanes, in which the workers detect different mismatches first: all report the same two operations,
/// also the worker that agrees with one of them.
#[test]
fn all_workers_report_the_same_mismatch() {
    let mut world = World::new(3, 2);
    let ranks = world.open(&json!({"shards": 2}));
    let mut submitted = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let mut names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        if number == 1 {
            names[3..].reverse();
        }
        for (at, name) in names.into_iter().enumerate() {
            let count = if name < "e" { 100 } else { 20_000 };
            let more = json!({"name": name, "priority": at % 2 * 7, "count": count, "offset": at << 17});
            submitted.push((rank, at, world.submit(rank, more)));
        }
    }
    let ends = submitted.iter().filter(|(_, at, _)| *at >= 3);
    let failures: Vec<_> = ends.map(|(rank, _, op)| world.end(rank, op).unwrap()).collect();
    assert!(failures.windows(2).all(|pair| pair[0] == pair[1]), "{failures:?}");
    let Failure { code, message, ranks, .. } = &failures[0];
    for side in ["#3 allreduce sum float32[100] urgent \"d\"", "#3 allreduce sum float32[20000] urgent \"h\""]
    {
        assert!(message.contains(side), "{message}");
    }
    // With the third, if the first had not submitted it yet.
    assert!(*code == Code::Mismatch && (ranks == &[0, 1] || ranks == &[1, 2]), "{code:?} {ranks:?}");
}

#[test]
fn operations_meet_by_name_in_any_order() {
    let mut world = World::new(3, 1);
    let ranks = world.open(&json!({"order": "name"}));
    assert_eq!(code(&world.submit(&ranks[0], json!({}))), "bad_field", "without a name");
    let mut submitted = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let mut layers: Vec<usize> = (0..20).collect();
        layers.rotate_left(number * 7);
        if number == 1 {
            layers.reverse();
        }
        for layer in layers {
            let more = json!({"name": format!(
                "layer {layer}"), "priority": layer % 8, "count": 1 + layer * 50,
                "offset": layer << 12});
            submitted.push((rank, world.submit(rank, more)));
        }
    }
    submitted.iter().for_each(|(rank, op)| assert_eq!(world.end(rank, op), None));
    world.sums(&ranks, &json!({"name": "layer 3"}));
}

#[test]
fn handles_and_jobs_that_cannot_be_are_refused() {
    let mut world = World::new(2, 1);
    let new = world.connect(0);
    assert_eq!(code(&world.ask(new, json!({"cmd": "stats"}))), "hello_first");
    assert_eq!(code(&world.ask(new, json!({"cmd": "hello", "version": 99}))), "version");
    assert_eq!(code(&world.ask(new, json!({"cmd": "stats"}))), "hello_first");
    let (trainer, other) = (world.trainer(0), world.trainer(0));
    let region = world.region(trainer);
    let table = json!([
        ["unknown_job", {"cmd": "close", "job": 1}], ["unknown_job", {"cmd": "close", "job": u64::MAX}],
        ["unknown_op", {"cmd": "wait", "op": 1}], ["unknown_op", {"cmd": "cancel", "op": 1}],
        ["unknown_job", {"cmd": "attach", "job": "nobody's"}],
        ["unknown_region", {"cmd": "unregister", "region": 77}],
        ["unknown_job", {"cmd": "allreduce",
            "job": 5, "region": region, "dtype": "int32", "offset": 0, "count": 1}],
    ]);
    for row in table.as_array().unwrap() {
        assert_eq!(world.ask(trainer, row[1].clone())["error"]["code"], row[0], "{row}");
    }
    let open = json!({"cmd": "open", "job": "j", "rank": 0, "world": 2});
    let table = json!([
        {"job": ""}, {"job": "a\nb"}, {"job": "x".repeat(65)}, {"rank": 2}, {"world": 0}, {"world": 1025},
        {"wire": "int8"}, {"not_finite": "ignore"}, {"order": "size"}, {"scale": "blocks"}, {"scale": 0.0},
        {"scale": -1.0}, {"timeout_s": -1.0}, {"timeout_s": 1e300}, {"mode": "mixed"},
        {"mode": "static", "linear": true}, {"window": 64},
    ]);
    for more in table.as_array().unwrap() {
        assert_eq!(code(&world.ask(trainer, with(open.clone(), more.clone()))), "bad_field", "{more}");
    }
    let unregister = json!({"cmd": "unregister", "region": region});
    assert_eq!(code(&world.ask(other, unregister.clone())), "unknown_region", "another connection's");
    assert_eq!(code(&world.ask(trainer, unregister.clone())), "none");
    assert_eq!(code(&world.ask(trainer, unregister)), "unknown_region");
}

#[test]
fn operations_that_cannot_be_are_refused() {
    let mut world = World::new(2, 1);
    let ranks = world.open(&json!({}));
    let (rank, end) = (&ranks[0], REGION as u64);
    let table = json!([
        ["behind the end", {"offset": end, "count": 1}, "out_of_range"],
        ["over the end", {"offset": 4, "count": end / 4}, "out_of_range"],
        ["length overflows", {"count": u64::MAX}, "bad_field"],
        ["length overflows in bytes", {"count": 0xffff_ffff_u64}, "out_of_range"],
        ["offset overflows", {"offset": u64::MAX - 3}, "out_of_range"],
        ["misaligned", {"offset": 2}, "misaligned"],
        ["output over the end", {"out_offset": end - 12}, "out_of_range"],
        ["output misaligned", {"out_offset": 1025}, "misaligned"],
        ["output overlaps", {"out_offset": 8}, "out_of_range"],
        ["no such output", {"out_region": 99}, "unknown_region"],
        ["no such dtype", {"dtype": "float64"}, "bad_field"],
        ["a loss bound above 1", {"loss_bound": 1.5}, "bad_field"],
        ["a loss bound below 0", {"loss_bound": -0.1}, "bad_field"],
        ["integers", {"loss_bound": 0.1, "dtype": "int32"}, "unsupported"],
        ["a maximum", {"loss_bound": 0.1, "reduction": "max"}, "unsupported"],
        ["a broadcast", {"loss_bound": 0.1, "cmd": "broadcast", "root": 0}, "unsupported"],
        ["priority", {"priority": 8}, "bad_field"],
        ["word unaligned", {"completion_word": 4100}, "misaligned"],
        ["word behind the region", {"completion_word": end}, "out_of_range"],
        ["word without an address", {"completion_word": u64::MAX - 7}, "out_of_range"],
        ["word in its own tensor", {"completion_word": 24}, "range_busy"],
        ["word negative", {"completion_word": -8}, "bad_field"],
        ["word no number", {"completion_word": "4096"}, "bad_field"],
        ["not a direct job's", {"cmd": "post_send", "destination": 1}, "unsupported"],
        ["not a direct job's", {"cmd": "post_recv", "source": 1}, "unsupported"],
    ]);
    for row in table.as_array().unwrap() {
        let reply = world.submit(rank, row[1].clone());
        assert_eq!(reply["error"]["code"], row[2], "{row}: {reply}");
    }
    // The other worker does not submit, so this stays outstanding, and what it uses cannot be released.
    let op = world.submit(rank, json!({}))["ok"]["op"].clone();
    let table = json!([
        [{"cmd": "unregister", "region": rank.region}, "region_busy"],
        [{"cmd": "close", "job": rank.job}, "job_busy"],
        [allreduce(rank, json!({"offset": 32})), "range_busy"],
        [{"cmd": "wait", "op": op, "timeout_ms": 20}, "timeout"],
        [{"cmd": "wait", "op": op, "timeout_ms": 0}, "timeout"],
        [{"cmd": "poll_cq", "job": rank.job}, "unsupported"],
    ]);
    for row in table.as_array().unwrap() {
        let reply = world.ask(rank.trainer, row[0].clone());
        assert_eq!(reply["error"]["code"], row[1], "{row}: {reply}");
    }
    let more = (1..10_000).map(|number| json!({"offset": number * 64}));
    let refused = more.map(|more| world.submit(rank, more)).find(|reply| reply["error"].is_object());
    assert_eq!(code(&refused.unwrap()), "limit", "the outstanding operations of a connection");
}

#[test]
fn a_jobs_queue_has_a_longest_length() {
    let mut world = World::new(2, 1);
    world.open(&json!({}));
    let mut submitted = 0;
    let refused = (0..70).find_map(|_| {
        let rank = world.attach(0);
        loop {
            let reply = world.submit(&rank, json!({"count": 0}));
            match reply["error"]["message"].as_str() {
                None => submitted += 1,
                Some(message) if message.contains("this connection") => return None,
                Some(message) => return Some(message.to_owned()),
            }
        }
    });
    assert!(
        refused.as_ref().is_some_and(|message| message.contains("operations of this job")),
        "{refused:?}"
    );
    assert_eq!(submitted, 4096);
}

#[test]
fn a_dead_clients_job_fails_only_with_outstanding_operations() {
    let mut world = World::new(2, 1);
    let ranks = world.open(&json!({}));
    let idle = world.attach(0).trainer;
    world.disconnect(idle);
    world.sums(&ranks, &json!({}));
    let busy = world.attach(0);
    world.submit(&busy, json!({}));
    world.disconnect(busy.trainer);
    let submitted = world.submit(&ranks[1], json!({}));
    let failure = world.end(&ranks[1], &submitted).unwrap();
    assert!(failure.ranks == [0] && failure.message.contains("1 operations outstanding"), "{failure}");
}

#[test]
fn the_job_ends_with_its_opener() {
    let mut world = World::new(1, 1);
    let opener = world.open(&json!({})).remove(0);
    let attached = world.attach(0);
    world.close(&opener);
    assert_eq!(world.event(attached.trainer, "job_failed")["job"], attached.job);
    assert_eq!(code(&world.submit(&attached, json!({}))), "job_failed");
    assert_eq!(code(&world.close(&attached)), "none");
}

#[test]
fn cancelling_ends_the_job_on_all_workers() {
    let mut world = World::new(2, 1);
    let ranks = world.open(&json!({}));
    let submitted = world.submit(&ranks[1], json!({}));
    let cancel = json!({"cmd": "cancel", "op": submitted["ok"]["op"]});
    assert_eq!(world.ask(ranks[1].trainer, cancel)["ok"]["cancelled"], true);
    assert_eq!(world.end(&ranks[1], &submitted).unwrap().code, Code::Cancelled);
    let event = world.event(ranks[0].trainer, "job_failed");
    assert_eq!((&event["job"], &event["error"]["ranks"]), (&ranks[0].job, &json!([1])), "{event}");
    assert!(event["error"]["message"].as_str().unwrap().contains("cancelled"), "{event}");
    assert_eq!(code(&world.submit(&ranks[0], json!({}))), "job_failed");
    assert_eq!(code(&world.close(&ranks[0])), "none");
    assert_eq!(code(&world.close(&ranks[0])), "unknown_job");
}

#[test]
fn ranks_that_have_left_or_never_came_are_named() {
    let mut world = World::new(2, 1);
    let ranks = world.open(&json!({}));
    // A worker with fewer operations may still be computing: no mismatch until it leaves.
    let submitted = world.submit(&ranks[1], json!({}));
    let end = world.cluster.now() + 2 * SECOND;
    world.cluster.run(end, |_| false);
    world.close(&ranks[0]);
    let failure = world.end(&ranks[1], &submitted).unwrap();
    assert_eq!((failure.code, &failure.ranks[..]), (Code::JobFailed, &[0][..]), "{failure}");
    let open = json!({"cmd": "open", "job": "missing", "rank": 1, "world": 4, "timeout_s": 0.5});
    let error = world.ask(ranks[1].trainer, open)["error"].clone();
    assert_eq!((&error["code"], &error["ranks"]), (&json!("ranks_missing"), &json!([0, 2, 3])), "{error}");
}
