//! The messages against those of the published definitions.
//!
//! `published.txt` has the same messages as the crate rbfrt 0.1.11 encodes them, whose code is generated from
//! bfruntime.proto as p4lang/open-p4studio publishes it. Each field has a value of its own.

use prost::Message;

use crate::proto::{
    bfrt_proto::{
        DataField, Entity, Error, ForwardingPipelineConfig, GetForwardingPipelineConfigRequest,
        GetForwardingPipelineConfigResponse, KeyField, NonP4Config, ReadRequest, ReadResponse,
        SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse,
        SetForwardingPipelineConfigResponseType, StreamMessageRequest, StreamMessageResponse, Subscribe,
        TableData, TableEntry, TableFlags, TableKey, TableOperation, TargetDevice, Update, WriteRequest,
        WriteResponse,
        data_field::{BoolArray, IntArray, StrArray, Value},
        entity,
        forwarding_pipeline_config::Profile,
        key_field::{Exact, Lpm, MatchType, Optional, Range, Ternary},
        set_forwarding_pipeline_config_request::{Action, DevInitMode},
        stream_message_request, stream_message_response, subscribe, table_entry, update, write_request,
    },
    google::rpc,
};

fn key() -> TableKey {
    let field = |field_id, match_type| KeyField { field_id, match_type: Some(match_type) };
    TableKey {
        fields: vec![
            field(11, MatchType::Exact(Exact { value: vec![12] })),
            field(13, MatchType::Ternary(Ternary { value: vec![14], mask: vec![15] })),
            field(16, MatchType::Lpm(Lpm { value: vec![17], prefix_len: 18 })),
            field(19, MatchType::Range(Range { low: vec![20], high: vec![21] })),
            field(22, MatchType::Optional(Optional { value: vec![23], is_valid: true })),
        ],
    }
}

fn data() -> TableData {
    let field = |field_id, value| DataField { field_id, value: Some(value) };
    TableData {
        action_id: 30,
        fields: vec![
            field(31, Value::Stream(vec![32])),
            field(33, Value::FloatVal(1.5)),
            field(34, Value::StrVal("text".into())),
            field(35, Value::IntArrVal(IntArray { val: vec![36, 300] })),
            field(37, Value::BoolArrVal(BoolArray { val: vec![true, false] })),
            field(38, Value::BoolVal(true)),
            field(39, Value::StrArrVal(StrArray { val: vec!["a".into()] })),
        ],
    }
}

fn target(first: u32) -> TargetDevice {
    TargetDevice { device_id: first, pipe_id: first + 1, direction: first + 2, prsr_id: first + 3 }
}

fn entry(value: table_entry::Value) -> Entity {
    let flags =
        TableFlags { from_hw: true, key_only: true, mod_del: true, reset_ttl: true, reset_stats: true };
    let entry = TableEntry {
        table_id: 10,
        data: Some(data()),
        is_default_entry: true,
        entry_tgt: Some(target(40)),
        table_flags: Some(flags),
        value: Some(value),
    };
    Entity { entity: Some(entity::Entity::TableEntry(entry)) }
}

fn write() -> WriteRequest {
    let operation = TableOperation { table_id: 50, table_operations_type: "Sync".into() };
    let entity = Entity { entity: Some(entity::Entity::TableOperation(operation)) };
    let types = [
        update::Type::Insert,
        update::Type::Modify,
        update::Type::ModifyInc,
        update::Type::Delete,
        update::Type::InsertOrModify,
        update::Type::Reset,
    ];
    let of_operation = types.map(|kind| Update { r#type: kind.into(), entity: Some(entity.clone()) });
    let entity = Some(entry(table_entry::Value::Key(key())));
    let of_entry = Update { r#type: update::Type::InsertOrModify.into(), entity };
    WriteRequest {
        target: Some(target(60)),
        client_id: 70,
        updates: of_operation.into_iter().chain([of_entry]).collect(),
        atomicity: write_request::Atomicity::DataplaneAtomic.into(),
        p4_name: "program".into(),
    }
}

fn error() -> Error {
    Error { canonical_code: 6, message: "message".into(), space: "space".into(), code: 7 }
}

fn config() -> ForwardingPipelineConfig {
    let pipe_scope = vec![0, 1, 2, 3];
    ForwardingPipelineConfig {
        p4_name: "program".into(),
        bfruntime_info: vec![1],
        profiles: vec![Profile {
            profile_name: "pipe".into(),
            context: vec![2],
            binary: vec![3],
            pipe_scope,
        }],
    }
}

fn set_config(action: Action) -> SetForwardingPipelineConfigRequest {
    SetForwardingPipelineConfigRequest {
        device_id: 1,
        client_id: 2,
        action: action.into(),
        dev_init_mode: DevInitMode::Hitless.into(),
        base_path: "path".into(),
        config: vec![config()],
    }
}

fn subscribe() -> Subscribe {
    let notifications = subscribe::Notifications {
        enable_learn_notifications: true,
        enable_idletimeout_notifications: true,
        enable_port_status_change_notifications: true,
        enable_entry_active_notifications: true,
    };
    let status = rpc::Status { code: 5, message: "status".into(), details: vec![] };
    Subscribe { device_id: 1, notifications: Some(notifications), status: Some(status) }
}

#[test]
fn messages_are_those_of_the_published_definitions() {
    let mut encoded = Vec::new();
    let mut add = |name: &str, message: &[u8]| {
        let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        encoded.push(format!("{name} {hex}"));
    };
    add("WriteRequest", &write().encode_to_vec());
    add("WriteResponse", &WriteResponse { status: vec![error()] }.encode_to_vec());
    let read = ReadRequest {
        target: Some(target(60)),
        client_id: 70,
        entities: vec![entry(table_entry::Value::HandleId(71))],
        p4_name: "program".into(),
    };
    add("ReadRequest", &read.encode_to_vec());
    let entities = vec![entry(table_entry::Value::Key(key()))];
    add("ReadResponse", &ReadResponse { entities, status: vec![error()] }.encode_to_vec());
    add("Error", &error().encode_to_vec());
    for action in [
        Action::Bind,
        Action::Verify,
        Action::VerifyAndWarmInitBegin,
        Action::VerifyAndWarmInitBeginAndEnd,
        Action::WarmInitEnd,
        Action::ReconcileAndWarmInitEnd,
    ] {
        add("SetForwardingPipelineConfigRequest", &set_config(action).encode_to_vec());
    }
    let finished = SetForwardingPipelineConfigResponse {
        set_forwarding_pipeline_config_response_type:
            SetForwardingPipelineConfigResponseType::WarmInitFinished.into(),
    };
    add("SetForwardingPipelineConfigResponse", &finished.encode_to_vec());
    let get = GetForwardingPipelineConfigRequest { device_id: 1, client_id: 2 };
    add("GetForwardingPipelineConfigRequest", &get.encode_to_vec());
    let non_p4_config = Some(NonP4Config { bfruntime_info: vec![4] });
    let got = GetForwardingPipelineConfigResponse { config: vec![config()], non_p4_config };
    add("GetForwardingPipelineConfigResponse", &got.encode_to_vec());
    let update = Some(stream_message_request::Update::Subscribe(subscribe()));
    add("StreamMessageRequest", &StreamMessageRequest { client_id: 9, update }.encode_to_vec());
    for update in [
        stream_message_response::Update::Subscribe(subscribe()),
        stream_message_response::Update::SetForwardingPipelineConfigResponse(finished),
    ] {
        add("StreamMessageResponse", &StreamMessageResponse { update: Some(update) }.encode_to_vec());
    }
    let published: Vec<&str> = include_str!("published.txt").lines().collect();
    assert_eq!(encoded.len(), published.len());
    for (encoded, published) in encoded.iter().zip(published) {
        assert_eq!(encoded, published);
    }
}
