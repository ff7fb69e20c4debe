//! The state machine by tables and random sequences.
