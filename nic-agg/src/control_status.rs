//! The racks, parameter hosts and jobs of the control plane of `sumac-agg serve`, for people.

use std::fmt::Write as _;

use sumac_control::coordinator::overview::{Job, Overview};

pub fn text(overview: &Overview) -> String {
    let mut text = String::new();
    let below = overview.racks.iter().map(|rack| ("rack", rack));
    for (what, below) in below.chain(overview.parameter_hosts.iter().map(|host| ("parameter host", host))) {
        let at = below.sums_at.map_or_else(|| below.ip.to_string(), |at| at.to_string());
        let above = below.above.iter().map(|above| format!(" below rack {above}")).collect::<String>();
        let jobs = numbers("job", &below.jobs, "no jobs");
        let _ = write!(text, "{what} {} at {at}{above}, {jobs}", below.name);
        if !below.kept.is_empty() {
            let _ =
                write!(text, ", {} that this control plane does not know", numbers("job", &below.kept, ""));
        }
        if let Some(why) = &below.away {
            let _ = write!(text, "; out of service: {why}");
        }
        text.push('\n');
    }
    for job in &overview.jobs {
        write_job(job, &mut text);
    }
    if text.is_empty() { "no racks, no parameter hosts, no jobs\n".into() } else { text }
}

fn write_job(about: &Job, text: &mut String) {
    let Job { name, job, epoch, mode, world, state, .. } = about;
    let number = if *job == 0 { String::new() } else { format!("{job}.{epoch} ") };
    let _ = write!(text, "job {number}`{name}`: {mode}, {world} workers, {state}");
    if !about.missing.is_empty() {
        let _ = write!(text, "; {} not joined", numbers("rank", &about.missing, ""));
    }
    if !about.vacant.is_empty() {
        let _ = write!(text, "; {} dead and to be replaced", numbers("rank", &about.vacant, ""));
    }
    if !about.parameter_hosts.is_empty() {
        let _ = write!(text, "; summed at {}", about.parameter_hosts.join(", "));
    }
    if !about.without.is_empty() {
        let _ = write!(text, "; without the aggregator of {}", about.without.join(", "));
    }
    text.push('\n');
}

fn numbers(what: &str, numbers: &[u16], none: &str) -> String {
    let list: Vec<_> = numbers.iter().map(u16::to_string).collect();
    match &list[..] {
        [] => none.into(),
        [one] => format!("{what} {one}"),
        more => format!("{what}s {}", more.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use sumac_control::coordinator::overview::Below;

    use super::*;

    #[test]
    fn people_read_it() {
        let below = |name: &str, sums_at: Option<&str>| Below {
            name: name.into(),
            ip: Ipv4Addr::new(10, 77, 3, 2),
            above: None,
            sums_at: sums_at.map(|at| at.parse().unwrap()),
            away: None,
            jobs: vec![1, 2],
            kept: vec![],
        };
        let job = Job {
            name: "train".into(),
            job: 1,
            epoch: 4,
            mode: "dynamic".into(),
            world: 3,
            state: "running".into(),
            missing: vec![],
            vacant: vec![2],
            parameter_hosts: vec!["p".into(), "q".into()],
            without: vec!["r".into()],
        };
        let waiting = Job {
            name: "next".into(),
            job: 0,
            epoch: 0,
            state: "waiting".into(),
            missing: vec![1],
            vacant: vec![],
            parameter_hosts: vec![],
            without: vec![],
            ..job.clone()
        };
        let kept = Below { kept: vec![9], jobs: vec![], ..below("q", Some("10.77.4.2:48700")) };
        let status = Overview {
            racks: vec![
                Below { away: Some("detached".into()), ..below("r", None) },
                Below { above: Some("r".into()), ..below("s", None) },
            ],
            parameter_hosts: vec![below("p", Some("10.77.3.2:48700")), kept],
            jobs: vec![job, waiting],
            ..Overview::default()
        };
        let lines = [
            "rack r at 10.77.3.2, jobs 1, 2; out of service: detached",
            "rack s at 10.77.3.2 below rack r, jobs 1, 2",
            "parameter host p at 10.77.3.2:48700, jobs 1, 2",
            "parameter host q at 10.77.4.2:48700, no jobs, job 9 that this control plane does not know",
            "job 1.4 `train`: dynamic, 3 workers, running; rank 2 dead and to be replaced; summed at p, q; \
            without the aggregator of r",
            "job `next`: dynamic, 3 workers, waiting; rank 1 not joined",
        ];
        assert_eq!(text(&status).lines().collect::<Vec<_>>(), lines);
        let nothing = Overview::default();
        assert_eq!(text(&nothing), "no racks, no parameter hosts, no jobs\n");
    }
}
