//! The names of a job's options and operations in JSON.

use crate::{
    AggregatorKind, CollectiveKind, DType, Importance, Mode, NonFinitePolicy, OperationOrder, Reduction,
    Topology, WireFormat,
};

macro_rules! names {
    ($($type:ident { $($variant:ident: $name:literal),* $(,)? })*) => {
        $(
            impl $type {
                /// All values, in the order of their declaration.
                pub const ALL: [$type; [$($name),*].len()] = [$($type::$variant),*];

                /// The name in JSON.
                #[must_use]
                pub const fn name(self) -> &'static str {
                    match self { $($type::$variant => $name),* }
                }
            }
        )*

        #[test]
        fn names_are_those_in_json() {
            $(
                for value in $type::ALL {
                    assert_eq!(serde_json::to_value(value).unwrap(), value.name());
                }
            )*
        }
    };
}

names! {
    DType { Float32: "float32", Float16: "float16", Bfloat16: "bfloat16", Int32: "int32" }
    Reduction { Sum: "sum", Mean: "mean", Min: "min", Max: "max" }
    Importance { None: "none", Magnitude: "magnitude", High: "high", Low: "low" }
    CollectiveKind {
        Allreduce: "allreduce", Broadcast: "broadcast", Reduce: "reduce", ReduceScatter: "reduce_scatter",
        Allgather: "allgather",
    }
    Mode { Static: "static", Dynamic: "dynamic", Direct: "direct" }
    Topology { Owners: "owners", Ring: "ring" }
    WireFormat { Int32: "int32", Int16: "int16", Auto: "auto" }
    NonFinitePolicy { Error: "error", Carry: "carry", Raw: "raw" }
    OperationOrder { Submission: "submission", Name: "name" }
    AggregatorKind { Ebpf: "ebpf", Host: "host", P4: "p4", None: "none", Parameter: "parameter" }
}
