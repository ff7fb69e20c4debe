//! Loads and feeds the eBPF aggregator.
