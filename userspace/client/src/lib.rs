//! A trainer's client of the local API.
