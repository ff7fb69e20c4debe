//! The sans-IO engine.
