//! Generates the messages and the gRPC stubs of `proto/control.proto` (needs `protoc`).

fn main() -> std::io::Result<()> {
    tonic_prost_build::configure().compile_protos(&["proto/control.proto"], &["proto"])
}
