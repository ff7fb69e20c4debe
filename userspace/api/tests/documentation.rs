//! `docs/api.md` against the types: what a client is told about must be what there is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use serde_json::Value;
use sumac_api::{
    CancelReply, Code, HelloReply, OpenReply, OperationReply, Outbound, RegisterReply, Request, WaitReply,
};

const DOCUMENT: &str = include_str!("../../../docs/api.md");

/// The lines of the worked exchange that begin with this sign, without what follows the JSON.
fn exchange(sign: &str) -> Vec<&'static str> {
    DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.strip_prefix(sign)?.strip_prefix(' '))
        .map(|line| line.split("   ").next().unwrap_or(line).trim())
        .collect()
}

#[test]
fn every_code_is_explained() {
    let table = DOCUMENT.split("| code | meaning | what to do |").nth(1).unwrap();
    for code in Code::ALL {
        assert!(table.contains(&format!("`{code}`")), "{code} is not in the table of codes");
    }
}

#[test]
fn every_command_has_a_section() {
    for command in [
        "hello",
        "open",
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
        // It is a command: what is wrong with it is not its name.
        let failure =
            Request::parse(format!(r#"{{"id":1,"cmd":"{command}","x":0}}"#).as_bytes()).unwrap_err().failure;
        assert_eq!(failure.code, Code::BadField, "{command}");
    }
}

#[test]
fn the_numbers_are_the_limits() {
    let grouped = |number: usize| format!("{},{:03}", number / 1000, number % 1000);
    assert!(DOCUMENT.contains(&format!("`message_bytes` | {}", grouped(sumac_api::MAX_MESSAGE))));
    assert!(DOCUMENT.contains(&format!("The version described is **{}**", sumac_api::VERSION)));
    assert!(DOCUMENT.contains(sumac_api::DEFAULT_SOCKET));
}

#[test]
fn the_worked_exchange_is_what_client_and_daemon_say() {
    let (requests, messages) = (exchange(">"), exchange("<"));
    assert!(requests.len() >= 9 && messages.len() >= 12, "{} and {}", requests.len(), messages.len());
    let mut asked = std::collections::HashMap::new();
    for text in requests {
        let request =
            Request::parse(text.as_bytes()).unwrap_or_else(|rejected| panic!("{text}: {rejected:?}"));
        asked.insert(request.id, text);
    }
    for text in messages {
        let message = Outbound::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        // Nothing in it is unknown, or it would be lost on the way back.
        let again: Value = serde_json::from_slice(&message.encode().unwrap()).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
        if let Outbound::Reply { id, result: Ok(body) } = message {
            let request: Value = serde_json::from_str(asked[&id.unwrap()]).unwrap();
            assert!(has_the_shape(request["cmd"].as_str().unwrap(), body), "{text}");
        }
    }
}

/// Whether a reply to this command has exactly the documented fields.
fn has_the_shape(command: &str, body: Value) -> bool {
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
