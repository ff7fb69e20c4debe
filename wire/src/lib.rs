//! The packet of Sumac and the decisions of a slot.
