//! Loads the host's XDP program.
