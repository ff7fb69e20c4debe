//! Counters in JSON.

use serde::Serialize;
use serde_json::Value;
use sumac_api::{Code, Failure};

pub(crate) fn json(counters: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(counters)
        .map_err(|error| Failure::new(Code::Internal, format!("the counters have no JSON form: {error}")))
}
