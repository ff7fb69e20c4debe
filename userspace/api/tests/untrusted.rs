//! Parsing untrusted bytes returns a message or an error.

use proptest::prelude::*;
use sumac_api::{Outbound, Request};

/// JSON that resembles a request.
fn almost() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        Just("id"),
        Just("cmd"),
        Just("op"),
        Just("size"),
        Just("job"),
        Just("offset"),
        Just("x")
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        any::<String>().prop_map(|s| serde_json::Value::from(s).to_string()),
        Just("null".to_owned()),
        Just("[[[]]]".to_owned()),
        prop_oneof![Just("wait"), Just("open"), Just("allreduce"), Just("register")]
            .prop_map(|c| format!("{c:?}")),
    ];
    prop::collection::vec((key, value), 0..8).prop_map(|fields| {
        let fields: Vec<String> = fields.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
        format!("{{{}}}", fields.join(","))
    })
}

proptest! {
    #[test]
    fn bytes(bytes: Vec<u8>) {
        let _ = Request::parse(&bytes);
        let _ = Outbound::parse(&bytes);
    }

    #[test]
    fn almost_requests(text in almost()) {
        if let Ok(request) = Request::parse(text.as_bytes()) {
            let again = request.encode().map(|bytes| Request::parse(&bytes));
            prop_assert_eq!(again.ok(), Some(Ok(request)));
        }
        let _ = Outbound::parse(text.as_bytes());
    }
}
