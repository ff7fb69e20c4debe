//! Results that the daemon writes once for all ranks of a host, which read them in one region. See `lab.rs`
//! for the topology.

use std::os::fd::{AsFd, OwnedFd};

use serde_json::{Value, json};
use sumac_client::{
    Client, ClientError, Code, Job, Mode, OpOptions, OperationOrder, Reduction, SharedTensor, Tensor,
};
use sumac_memory::ReadRegion;

use crate::common::{Raw, code};
use crate::kinds::{Number, WORLD, failure, tensor};
use crate::lab::{Kind, Lab};

/// Blocks for two, three, four and six ranks, and a partial last packet.
const COUNT: usize = 12 * 501;

fn value(rank: u16, at: usize) -> i32 {
    (at % 7) as i32 + i32::from(rank)
}

/// Runs the operations whose result is the same on all ranks.
fn kinds<T: Number>(client: &Client, job: &Job, rank: u16) {
    let world = job.opened().world;
    let own = || tensor(client, COUNT, |at| T::of(value(rank, at)));
    let options = |reduction, name| {
        let name = (job.opened().order == OperationOrder::Name).then_some(name);
        OpOptions { reduction, name, ..OpOptions::default() }
    };
    let check = |what: &str, tensor: &Tensor<T>, expected: &dyn Fn(usize) -> i32| {
        let result = tensor.result().unwrap();
        for (at, found) in result.iter().enumerate() {
            assert_eq!(*found, T::of(expected(at)), "{what} {:?} rank {rank} element {at}", T::DTYPE);
            assert_eq!(tensor[at], T::of(value(rank, at)), "the input stays");
        }
    };
    let tensor = own().with_result(job.shared(COUNT).unwrap());
    let summed = job.allreduce_with(tensor, options(Reduction::Sum, "sum")).unwrap().wait().unwrap();
    check("sum", &summed, &|at| (0..world).map(|rank| value(rank, at)).sum());
    let greatest = job.allreduce_with(summed, options(Reduction::Max, "max")).unwrap().wait().unwrap();
    check("max", &greatest, &|at| value(world - 1, at));
    let sent = job.broadcast(1, greatest, options(Reduction::Sum, "broadcast")).unwrap().wait().unwrap();
    check("broadcast", &sent, &|at| value(1, at));
    let gathered = job.allgather(sent, options(Reduction::Sum, "allgather")).unwrap().wait().unwrap();
    check("allgather", &gathered, &|at| value((at / (COUNT / usize::from(world))) as u16, at));
    let (own, _) = gathered.without_result();
    let in_place = job.allreduce_with(own, options(Reduction::Min, "in place")).unwrap().wait().unwrap();
    assert_eq!(in_place[COUNT - 1], T::of(value(0, COUNT - 1)));
}

fn all_kinds(client: &Client, job: &Job, rank: u16) {
    kinds::<f32>(client, job, rank);
    kinds::<i32>(client, job, rank);
}

#[test]
fn results_of_one_host_are_read_by_all_its_ranks() {
    for mode in [Mode::Static, Mode::Dynamic, Mode::Direct] {
        Lab::of_one_host(WORLD).train("shared", |o| o.mode(mode), all_kinds);
    }
    Lab::of_one_host(2).train("named", |o| o.order(OperationOrder::Name), all_kinds);
}

#[test]
fn results_of_several_hosts_are_read_by_the_ranks_of_each() {
    Lab::with_ranks(2, 3).train("static", |o| o, all_kinds);
    Lab::with_ranks(2, 2).train("direct", |o| o.mode(Mode::Direct), all_kinds);
    let dynamic = Lab { ranks_per_host: 2, ..Lab::dynamic(Kind::Host { shared: 256 }, 2, 1, "") };
    dynamic.train("dynamic", |o| o.mode(Mode::Dynamic), all_kinds);
    Lab::new(2).train("alone", |o| o, all_kinds);
}

/// Returns the daemon's error of a request for a shared region.
fn refused(shared: Result<SharedTensor<f32>, ClientError>) -> sumac_client::Failure {
    match shared.map(|_| ()).unwrap_err() {
        ClientError::Daemon(failure) => failure,
        other => panic!("{other}"),
    }
}

#[test]
fn ranks_that_ask_for_different_sizes_are_named_on_all() {
    for lab in [Lab::of_one_host(WORLD), Lab::with_ranks(2, 3)] {
        let opened = lab.open("sizes", |o| o);
        let _first = opened[0].1.shared::<f32>(1000).unwrap();
        let error = refused(opened[2].1.shared(1001));
        let names = |error: &sumac_client::Failure| {
            assert_eq!((error.code, &error.ranks[..]), (Code::Mismatch, &[0, 2][..]), "{error}");
            assert!(error.message.contains("rank 2 has shared region 1 of 4004 bytes"), "{error}");
        };
        names(&error);
        for (client, job) in &opened[..3] {
            // It may not know yet.
            names(&failure(job.allreduce(tensor(client, 10, |_| 1.0f32))));
        }
    }
}

/// Trainers of one host without the client library, with a job, memory of their own and shared memory.
struct Rank {
    raw: Raw,
    job: Value,
    own: Value,
    shared: Value,
    file: OwnedFd,
    _memory: ReadRegion,
}

const SIZE: u64 = 8192;

/// Submits an operation.
type Submit = fn(&mut Rank) -> Value;

fn share(raw: &mut Raw, job: &Value, size: u64) -> (Value, Option<OwnedFd>) {
    let (reply, mut files) = raw.ask_with(json!({"cmd": "share", "job": job, "size": size}), &[]);
    (reply, files.pop())
}

fn ranks(lab: &Lab, name: &str, mode: &str) -> Vec<Rank> {
    let world = lab.ranks_per_host;
    let mut raws: Vec<Raw> = (0..world).map(|_| Raw::greeted(&lab.hosts[0].1)).collect();
    let open = |rank| {
        json!({"cmd": "open", "job": name, "rank": rank, "world": world, "local_world": world,
        "mode": mode})
    };
    let asked: Vec<u64> = (0..world).zip(&mut raws).map(|(rank, raw)| raw.send(open(rank), &[])).collect();
    let enter = |(mut raw, asked): (Raw, u64)| {
        let job = raw.reply_to(asked).0["ok"]["job"].clone();
        let own = raw.region(SIZE);
        let (reply, file) = share(&mut raw, &job, SIZE);
        let shared = reply["ok"]["region"].clone();
        let file = file.unwrap_or_else(|| panic!("{reply}"));
        // It allocates the pages.
        let memory = ReadRegion::from_fd(file.as_fd(), SIZE as usize).unwrap();
        Rank { raw, job, own, shared, file, _memory: memory }
    };
    raws.into_iter().zip(asked).map(enter).collect()
}

impl Rank {
    fn ask(&mut self, command: &str, more: Value) -> Value {
        let mut asked = json!({"cmd": command, "job": self.job, "region": self.own, "dtype": "float32",
            "offset": 0, "count": 10});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.raw.ask(asked)
    }

    fn share_result(&mut self, offset: u64) -> Value {
        let out = json!({"out_region": self.shared, "out_offset": offset});
        self.ask("allreduce", out)
    }

    /// Waits for an operation's end. Returns its error, if it has failed.
    fn end(&mut self, submitted: &Value) -> Value {
        assert_eq!(code(submitted), "none", "{submitted}");
        self.raw.ask(json!({"cmd": "wait", "op": submitted["ok"]["op"]}))["error"].clone()
    }
}

#[test]
fn operations_whose_results_are_not_in_one_place_name_both_ranks_on_all() {
    let cases: [(&str, Submit); 3] = [
        ("rank 1 has allreduce sum float32[10], its result in memory of its own", |rank| {
            rank.ask("allreduce", json!({}))
        }),
        ("rank 1 has allreduce sum float32[10], its result at byte 64 of shared region 1", |rank| {
            rank.share_result(64)
        }),
        ("rank 1 has allreduce sum float32[10], its result at byte 0 of shared region 2", |rank| {
            let (reply, file) = share(&mut rank.raw, &rank.job, SIZE);
            ReadRegion::from_fd(file.unwrap().as_fd(), SIZE as usize).unwrap();
            rank.ask("allreduce", json!({"out_region": reply["ok"]["region"]}))
        }),
    ];
    for (number, (text, other)) in cases.into_iter().enumerate() {
        let lab = Lab::of_one_host(WORLD);
        let mut ranks = ranks(&lab, &format!("places{number}"), "static");
        let submitted = [ranks[0].share_result(0), other(&mut ranks[1])];
        for (rank, submitted) in ranks.iter_mut().zip(&submitted) {
            let error = rank.end(submitted);
            assert_eq!((&error["code"], &error["ranks"]), (&json!("mismatch"), &json!([0, 1])), "{error}");
            assert!(error["message"].as_str().unwrap().contains(text), "{error}");
        }
        let ended = ranks[2].raw.event();
        assert_eq!((&ended["event"], &ended["error"]["ranks"]), (&json!("job_failed"), &json!([0, 1])));
    }
}

#[test]
fn options_that_differ_name_both_ranks_on_all() {
    for lab in [Lab::of_one_host(2), Lab::with_ranks(2, 2)] {
        let opened = lab.open("options", |o| o);
        let priority = |rank| OpOptions { priority: rank as u8, ..OpOptions::default() };
        let submit = |(rank, (client, job)): (usize, &(Client, Job))| {
            job.allreduce_with(tensor(client, 10, |_| 1.0f32), priority(rank))
        };
        let pending: Vec<_> = opened.iter().enumerate().take(2).map(submit).collect();
        for pending in pending {
            let error = failure(pending);
            assert_eq!((error.code, &error.ranks[..]), (Code::Mismatch, &[0, 1][..]), "{error}");
            assert!(error.message.contains("float32[10], priority 1"), "{error}");
        }
    }
}

/// The bytes of a result are leased once, by the rank that is first.
#[test]
fn two_operations_do_not_write_the_same_bytes() {
    let lab = Lab::of_one_host(2);
    let mut ranks = ranks(&lab, "twice", "static");
    let [one, two] = &mut ranks[..] else { panic!("two ranks") };
    let first = [one.share_result(0), one.share_result(64)];
    let busy = one.share_result(32);
    assert_eq!(code(&busy), "range_busy", "{busy}");
    let inode = |rank: &Rank| rustix::fs::fstat(&rank.file).unwrap().st_ino;
    assert_eq!(inode(one), inode(two), "both read the same pages");
    let unregistered = one.raw.ask(json!({"cmd": "unregister", "region": one.shared}));
    assert_eq!(code(&unregistered), "region_busy", "{unregistered}");
    let second = [two.share_result(0), two.share_result(64)];
    for (rank, submitted) in [(&mut *one, first), (&mut *two, second)] {
        submitted.iter().for_each(|submitted| assert_eq!(rank.end(submitted), Value::Null));
    }
    let again = [two.share_result(32), one.share_result(32)];
    assert_eq!([two.end(&again[0]), one.end(&again[1])], [Value::Null, Value::Null]);
}

#[test]
fn operations_that_may_not_write_to_shared_memory_are_refused() {
    let lab = Lab::of_one_host(2);
    let mut ranks = ranks(&lab, "refused", "direct");
    let rank = &mut ranks[0];
    let shared = rank.shared.clone();
    let cases = [
        ("allreduce", json!({"region": shared}), "takes results alone"),
        ("broadcast", json!({"region": shared, "root": 0}), "takes results alone"),
        ("allreduce", json!({"out_region": shared, "completion_word": 64}), "no completion words"),
        ("reduce", json!({"out_region": shared, "root": 0}), "another"),
        ("reduce_scatter", json!({"out_region": shared}), "another"),
        ("post_recv", json!({"region": shared, "source": 1}), "receives"),
    ];
    for (command, more, text) in cases {
        let reply = rank.ask(command, more);
        assert_eq!(code(&reply), "unsupported", "{command}: {reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains(text), "{command}: {reply}");
    }
    let beyond = rank.ask("allreduce", json!({"out_region": shared, "out_offset": SIZE - 8}));
    assert_eq!(code(&beyond), "out_of_range", "{beyond}");
    let (unmapped, _file) = share(&mut rank.raw, &rank.job.clone(), SIZE);
    let hole = rank.ask("allreduce", json!({"out_region": unmapped["ok"]["region"]}));
    assert_eq!(code(&hole), "bad_region", "the daemon would allocate the pages: {hole}");
    for size in [0, (1 << 36) + 1] {
        let (reply, file) = share(&mut rank.raw, &rank.job.clone(), size);
        assert!(reply["error"].is_object() && file.is_none(), "{reply}");
    }
    // A job of this rank alone would change what the other one reads.
    let alone = json!({"cmd": "open", "job": "alone", "rank": 0, "world": 1, "local_world": 1});
    let job = rank.raw.ask(alone)["ok"]["job"].clone();
    let reply = rank.ask("allreduce", json!({"job": job, "out_region": shared}));
    assert!(reply["error"]["message"].as_str().unwrap().contains("another job's"), "{reply}");
    let registered = rank.raw.ask_with(json!({"cmd": "register", "size": SIZE}), &[rank.file.as_fd()]).0;
    assert_eq!(code(&registered), "bad_region", "{registered}");
    // It can be read by all, and in any job.
    let reads = rank.ask("allreduce", json!({"job": job, "region": shared, "out_region": rank.own}));
    assert_eq!(rank.end(&reads), Value::Null);
}

/// Operations of other ranks do not count.
#[test]
fn a_rank_unregisters_what_others_still_use() {
    let lab = Lab::of_one_host(2);
    let mut ranks = ranks(&lab, "unregister", "direct");
    let [one, two] = &mut ranks[..] else { panic!("two ranks") };
    let shared = one.shared.clone();
    let sent = one.ask("post_send", json!({"region": shared, "destination": 1}));
    assert_eq!(code(&sent), "none", "{sent}");
    let unregister = |shared: &Value| json!({"cmd": "unregister", "region": shared});
    assert_eq!(code(&one.raw.ask(unregister(&shared))), "region_busy");
    assert_eq!(code(&two.raw.ask(unregister(&two.shared.clone()))), "none");
    let received = two.ask("post_recv", json!({"region": two.own, "source": 0}));
    assert_eq!([one.end(&sent), two.end(&received)], [Value::Null, Value::Null]);
    assert_eq!(code(&one.raw.ask(unregister(&shared))), "none");
}

#[test]
fn the_end_of_a_rank_releases_what_it_shared() {
    // A user's share of 40 MiB.
    let lab = Lab { ranks_per_host: 3, ..Lab::with(1, "memory_mib = 80") };
    let size = 6 << 20;
    for _ in 0..4 {
        let mut opened = lab.open("dies", |o| o);
        let mut tensors: Vec<SharedTensor<f32>> =
            opened.iter().map(|(_, job)| job.shared(size).unwrap()).collect();
        let refused = refused(opened[0].1.shared(size));
        assert_eq!(refused.code, Code::Limit, "{refused}");
        assert!(refused.message.contains("bytes of regions"), "{refused}");
        // Asked for by one rank alone.
        let other: SharedTensor<f32> = opened[1].1.shared(1000).unwrap();
        let pending = opened[0].1.allreduce(tensor(&opened[0].0, 1000, |_| 1.0f32)).unwrap();
        drop((opened.remove(1), tensors.remove(1), other));
        let error = failure(Ok(pending));
        assert_eq!((error.code, &error.ranks[..]), (Code::JobFailed, &[1][..]), "{error}");
        assert!(tensors.iter().all(|tensor| tensor.iter().all(|value| *value == 0.0)), "it stays mapped");
        drop((tensors, opened));
        lab.await_no_job(0);
    }
}

#[test]
fn results_are_shared_across_a_live_upgrade() {
    for mut lab in [Lab::of_one_host(WORLD), Lab::with_ranks(2, 3)] {
        let opened = lab.open("upgraded", |o| o);
        let world = opened.len();
        let values = |(client, _): &(Client, Job)| tensor::<i32>(client, 50_000, |at| at as i32);
        let first: Vec<_> =
            opened.iter().map(|rank| values(rank).with_result(rank.1.shared(50_000).unwrap())).collect();
        let mut second: Vec<Option<SharedTensor<i32>>> = opened.iter().map(|_| None).collect();
        second[0] = Some(opened[0].1.shared(50_000).unwrap());
        let mut first = first.into_iter().zip(&opened);
        let ahead = first.next().map(|(tensor, (_, job))| job.allreduce(tensor).unwrap()).unwrap();
        lab.upgrade(0, "");
        // A region that the former daemon has created for the first rank.
        for (second, (_, job)) in second.iter_mut().zip(&opened).skip(1) {
            *second = Some(job.shared(50_000).unwrap());
        }
        let behind: Vec<_> = first.map(|(tensor, (_, job))| job.allreduce(tensor).unwrap()).collect();
        lab.upgrade(0, "");
        let is_sum = |at: usize, sum: i32| sum == world as i32 * at as i32;
        for pending in [ahead].into_iter().chain(behind) {
            let tensor = pending.wait().unwrap();
            assert!(tensor.result().unwrap().iter().enumerate().all(|(at, sum)| is_sum(at, *sum)));
        }
        let submit = |(rank, second): (&(Client, Job), Option<SharedTensor<i32>>)| {
            rank.1.allreduce(values(rank).with_result(second.unwrap())).unwrap()
        };
        let pending: Vec<_> = opened.iter().zip(second).map(submit).collect();
        for pending in pending {
            let tensor = pending.wait().unwrap();
            assert!(tensor.result().unwrap().iter().enumerate().all(|(at, sum)| is_sum(at, *sum)));
        }
    }
}
