//! The control plane between daemons and the aggregator.
