//! The messages of the local API.
