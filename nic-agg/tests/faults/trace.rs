//! A command under strace: its steps, and a fault at one of them.

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    process::{Command, Output},
};

/// System calls that change pins, links, programs and maps.
const CALLS: &str = "bpf,unlink,unlinkat,rename,renameat,renameat2,symlink,symlinkat,mkdir,mkdirat,rmdir";
/// Commands of `bpf` that only look.
const LOOKING: [&str; 6] = [
    "BPF_OBJ_GET,",
    "BPF_OBJ_GET_INFO_BY_FD",
    "BPF_MAP_LOOKUP_ELEM",
    "BPF_MAP_GET_NEXT_KEY",
    "BPF_MAP_CREATE",
    "BPF_BTF_LOAD",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step fails, as for a process without memory or descriptors.
    Error,
    /// The process ends before the step.
    Kill,
}

/// The n-th call of a system call.
#[derive(Clone, Debug)]
pub struct Step {
    call: String,
    nth: usize,
    text: String,
}

/// A command and its steps, as they were without a fault.
pub struct Traced {
    pub line: String,
    /// The program and its arguments.
    words: Vec<String>,
    log: PathBuf,
    steps: Vec<Step>,
}

impl Traced {
    /// Runs a program once without a fault, in a namespace, with the arguments of `line` and a directory for
    /// pins.
    pub fn new(namespace: &str, program: &str, line: &str, pins: &str) -> Traced {
        let net = format!("--net=/run/netns/{namespace}");
        let words = ["nsenter", &net, program].into_iter().chain(line.split(' ')).chain(["--pin-root", pins]);
        let words = words.map(str::to_owned).collect();
        let log = std::env::temp_dir().join(format!("{namespace}.strace"));
        let traced = Traced { line: line.to_owned(), words, log, steps: Vec::new() };
        let output = traced.start("");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let log = fs::read_to_string(&traced.log).unwrap();
        let _ = fs::remove_file(&traced.log);
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut steps = Vec::new();
        for text in log.lines() {
            let Some((call, _)) = text.split_once('(') else { continue };
            let nth = counts.entry(call).or_default();
            *nth += 1;
            steps.push(Step { call: call.to_owned(), nth: *nth, text: text.chars().take(120).collect() });
        }
        assert!(steps.len() > 10, "{log}");
        Traced { steps, ..traced }
    }

    /// Returns the faults to try: every seventeenth step that changes something, each with one kind; a few of
    /// those that look.
    pub fn faults(&self) -> Vec<(Step, Fault)> {
        let is_looking = |step: &Step| LOOKING.iter().any(|name| step.text.contains(name));
        let (looking, changing): (Vec<_>, Vec<_>) = self.steps.iter().cloned().partition(is_looking);
        if let Some((part, parts)) = part() {
            let both = |step: Step| [(step.clone(), Fault::Error), (step, Fault::Kill)];
            let all = looking.into_iter().chain(changing).flat_map(both);
            return all.skip(part).step_by(parts).collect();
        }
        let kinds = [Fault::Kill, Fault::Error].into_iter().cycle();
        let changing = changing.into_iter().step_by(17).zip(kinds);
        let looking = looking.into_iter().skip(7).step_by(151).map(|step| (step, Fault::Error));
        changing.chain(looking).collect()
    }

    /// Runs the command with a fault at a step.
    pub fn run(&self, step: &Step, fault: Fault) -> Output {
        let what = match fault {
            // A first link meets another error than a busy one.
            Fault::Error => ["error=EMFILE", "error=ENOMEM", "error=EPERM"][step.nth % 3],
            Fault::Kill => "signal=KILL",
        };
        let output = self.start(&format!("{}:{what}:when={}", step.call, step.nth));
        let _ = fs::remove_file(&self.log);
        output
    }

    fn start(&self, inject: &str) -> Output {
        // Around `nsenter`, which makes none of these calls.
        let mut command = Command::new("strace");
        command.args(["-qq", "-s", "200", "-e", &format!("trace={CALLS}"), "-o"]).arg(&self.log);
        if !inject.is_empty() {
            command.args(["-e", &format!("inject={inject}")]);
        }
        command.args(&self.words).output().unwrap()
    }
}

/// Returns the part of all faults that the environment asks for: `SUMAC_FAULTS=all`, or `3/20` for the fourth
/// of twenty.
fn part() -> Option<(usize, usize)> {
    let value = std::env::var("SUMAC_FAULTS").ok()?;
    if value == "all" {
        return Some((0, 1));
    }
    let (part, parts) = value.split_once('/').unwrap();
    Some((part.parse().unwrap(), parts.parse().unwrap()))
}
