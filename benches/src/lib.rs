//! Holds the benchmarks beside it; has no code of its own.
