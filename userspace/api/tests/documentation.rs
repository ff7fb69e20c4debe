//! `docs/api.md` against the types.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use serde_json::Value;
use sumac_api::{
    CancelReply, Code, DynamicReply, HelloReply, JobSpec, Mode, NonFinitePolicy, Open, OpenReply,
    OperationOrder, OperationReply, Outbound, RegisterReply, Request, Scale, Secret, Topology, WaitReply,
    WireFormat,
};

const DOCUMENT: &str = include_str!("../../../docs/api.md");

/// The lines of the worked exchange that begin with this sign, up to the end of the JSON.
fn exchange(sign: &str) -> Vec<&'static str> {
    DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix(sign)?.strip_prefix(' '))
        .map(|line| line.split("   ").next().unwrap_or(line).trim())
        .collect()
}

#[test]
fn every_code_has_a_meaning_and_a_remedy() {
    for code in Code::ALL {
        assert!(code.meaning().ends_with('.') && code.remedy().ends_with('.'), "{code}");
    }
}

#[test]
fn every_command_has_a_section() {
    for command in [
        "hello",
        "open",
        "withdraw",
        "attach",
        "register",
        "allreduce",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "allgather",
        "wait",
        "cancel",
        "stats",
        "unregister",
        "close",
    ] {
        assert!(DOCUMENT.contains(&format!("\n### {command}\n")), "{command}");
        // It is a command: the error is not about its name.
        let failure =
            Request::parse(format!(r#"{{"id":1,"cmd":"{command}","x":0}}"#).as_bytes()).unwrap_err().failure;
        assert_eq!(failure.code, Code::BadField, "{command}");
    }
}

/// An `open` with every option.
fn full_open() -> Open {
    let spec = JobSpec {
        elements: Some(352),
        slots: Some(128),
        mode: Some(Mode::Dynamic),
        window: Some(1024),
        dynamic_slots: Some(512),
        parameter_hosts: Some(2),
        topology: Some(Topology::Owners),
        owners: Some(1),
        servers: Some(1),
        congestion_control: Some(true),
        scale: Some(Scale::Block),
        wire: Some(WireFormat::Int32),
        not_finite: Some(NonFinitePolicy::Error),
        order: Some(OperationOrder::Submission),
        shards: Some(2),
        timeout_s: Some(1.0),
        ..JobSpec::new("job", 0, 2)
    };
    Open { secret: Some(Secret("s".into())), aggregator: Some("10.77.0.1:48600".into()), spec }
}

/// A reply to `open` with every field.
fn full_reply() -> OpenReply {
    OpenReply {
        job: 1,
        wire_job: 1,
        epoch: 1,
        rank: 0,
        world: 2,
        servers: 1,
        mode: Mode::Dynamic,
        slots: 512,
        slots_reason: "asked for".into(),
        dynamic: Some(DynamicReply {
            window: 1024,
            hosts: vec!["10.77.3.1:48700".parse().unwrap()],
            congestion_control: true,
            resumed: false,
            first_operation: 0,
        }),
        shards: 2,
        elements: 352,
        scale: Scale::Fixed(1e8),
        wire: WireFormat::Int32,
        not_finite: NonFinitePolicy::Error,
        order: OperationOrder::Submission,
        max_int: 1,
        max_float: Some(1.0),
        backend: "xdp".into(),
        plane: "ebpf".into(),
    }
}

#[test]
fn every_field_of_open_and_its_reply_is_documented() {
    let section = DOCUMENT.split("\n### open\n").nth(1).unwrap().split("\n### ").next().unwrap();
    let (request, reply) = section.split_once("| reply |").unwrap();
    let fields = |value: Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for field in fields(serde_json::to_value(full_open()).unwrap()) {
        assert!(request.contains(&format!("\n| `{field}` |")), "{field} of the request");
    }
    let reply_value = serde_json::to_value(full_reply()).unwrap();
    for field in fields(reply_value["dynamic"].clone()).into_iter().chain(fields(reply_value)) {
        assert!(reply.contains(&format!("`{field}`")), "{field} of the reply");
    }
}

#[test]
fn documented_limits_are_those_of_the_types() {
    let grouped = |number: usize| format!("{},{:03}", number / 1000, number % 1000);
    assert!(DOCUMENT.contains(&format!("`message_bytes` | {}", grouped(sumac_api::MAX_MESSAGE))));
    assert!(DOCUMENT.contains(&format!("The version described is **{}**", sumac_api::VERSION)));
    assert!(DOCUMENT.contains(sumac_api::DEFAULT_SOCKET));
}

#[test]
fn the_worked_exchange_matches_the_types() {
    let (requests, messages) = (exchange(">"), exchange("<"));
    assert!(requests.len() >= 9 && messages.len() >= 12, "{} and {}", requests.len(), messages.len());
    let mut requested = std::collections::HashMap::new();
    for text in requests {
        let request =
            Request::parse(text.as_bytes()).unwrap_or_else(|rejected| panic!("{text}: {rejected:?}"));
        requested.insert(request.id, text);
    }
    for text in messages {
        let message = Outbound::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        // An unknown field would be missing after encoding.
        let again: Value = serde_json::from_slice(&message.encode().unwrap()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
        if let Outbound::Reply { id, result: Ok(body) } = message {
            let request: Value = serde_json::from_str(requested[&id.unwrap()]).unwrap();
            assert!(has_the_form(request["cmd"].as_str().unwrap(), body), "{text}");
        }
    }
}

/// Returns whether a reply to this command has exactly the documented fields.
fn has_the_form(command: &str, body: Value) -> bool {
    fn same<T: serde::Serialize + serde::de::DeserializeOwned>(body: Value) -> bool {
        serde_json::from_value::<T>(body.clone())
            .is_ok_and(|typed| serde_json::to_value(typed).unwrap() == body)
    }
    match command {
        "hello" => same::<HelloReply>(body),
        "open" | "attach" => same::<OpenReply>(body),
        "register" => same::<RegisterReply>(body),
        "allreduce" | "broadcast" | "reduce" | "reduce_scatter" | "allgather" => same::<OperationReply>(body),
        "wait" => same::<WaitReply>(body),
        "cancel" => same::<CancelReply>(body),
        _ => body == Value::Object(serde_json::Map::new()),
    }
}
