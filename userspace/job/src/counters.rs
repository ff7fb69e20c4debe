//! Declarations of a job's counters: the field, its kind, its text and its name for Prometheus stand once.

/// The kind of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// It only grows.
    Counter,
    /// It only grows, and counts bytes.
    Bytes,
    /// It has a present value.
    Gauge,
}

/// The declaration of one counter among the statistics `S`.
#[derive(Debug)]
pub struct DeclaredCounter<S> {
    /// The name for Prometheus, without the suffixes of unit and kind.
    pub metric: &'static str,
    pub kind: CounterKind,
    /// Its text, without a full stop.
    pub help: &'static str,
    pub read: fn(&S) -> u64,
}

/// Returns a doc comment without the space before it and the full stop behind.
#[must_use]
pub const fn help(doc: &'static str) -> &'static str {
    let doc = doc.trim_ascii();
    doc.split_at(doc.len() - 1).0
}

/// Defines statistics: the counters that add up, each with its kind and its name for Prometheus, behind
/// other fields.
#[macro_export]
macro_rules! statistics {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$other_attribute:meta])* pub $other:ident: $type:ty,)* }
        $($(#[doc = $doc:literal])+ $counter:ident: $kind:ident $metric:literal,)*
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$other_attribute])* pub $other: $type,)*
            $($(#[doc = $doc])+ pub $counter: u64,)*
        }

        impl $name {
            /// The declarations of the counters.
            pub const DECLARED: &[$crate::counters::DeclaredCounter<$name>] =
                &[$($crate::counters::DeclaredCounter {
                    metric: $metric,
                    kind: $crate::counters::CounterKind::$kind,
                    help: $crate::counters::help(concat!($($doc),+)),
                    read: |statistics| statistics.$counter,
                },)*];

            /// Adds another thread's counters.
            pub fn add(&mut self, other: &$name) {
                $(self.$counter += other.$counter;)*
            }
        }
    };
}
