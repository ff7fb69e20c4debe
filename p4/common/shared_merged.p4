// Shared slots: what a sum has from all contributions: flags, the largest exponent of a later chunk, and what all senders have received.

control SharedMerged(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    int<32> received;

    // Overflow, ECN echo, not finite, as in metadata_t.
    REGISTER(bit<8>, shared_flags, SHARED_SLOTS)
    REGISTER_UPDATE(bit<8>, shared_flags, set_shared_flags, value = slot.flags;)
    REGISTER_ACTION(bit<8>, bit<8>, shared_flags, merge_shared_flags, value = value | slot.flags; result = value;)

    SIGNED_REGISTER(8, shared_next_exponents, SHARED_SLOTS)
    SIGNED_UPDATE(8, shared_next_exponents, set_shared_next_exponent, value = hdr.sumac.next_exponent;)
    SIGNED_ACTION(8, shared_next_exponents, merge_shared_next_exponent,
        if (value < hdr.sumac.next_exponent) { value = hdr.sumac.next_exponent; }
        result = value;)

    SIGNED_REGISTER(32, received_by_all, SHARED_SLOTS)
    SIGNED_UPDATE(32, received_by_all, set_received, value = received;)
    SIGNED_ACTION(32, received_by_all, merge_received,
        if (value - received >= 0) { value = received; }
        result = value;)

    action begin_flags() {
        EXECUTE_UPDATE(set_shared_flags, meta.slot);
    }
    action add_flags() {
        EXECUTE(merge_shared_flags, meta.slot, meta.flags);
    }
    table shared_flag_orders {
        key = { slot.is_taken : exact; slot.merges : exact; }
        actions = { begin_flags; add_flags; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 0) : begin_flags();
            (0, 1) : add_flags();
        }
    }

    // A packet that is a duplicate, and not sent again, adds its marks of congestion only.
    action begin_exponent() {
        EXECUTE_UPDATE(set_shared_next_exponent, meta.slot);
    }
    action add_exponent() {
        EXECUTE(merge_shared_next_exponent, meta.slot, meta.next_exponent);
    }
    table shared_exponent_orders {
        key = { slot.is_taken : ternary; slot.merges : ternary; slot.role : ternary; slot.present : ternary; }
        actions = { begin_exponent; add_exponent; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, _, _) : begin_exponent();
            (_, 1, ROLE_AGAIN, _) : add_exponent();
            (_, 1, _, 0) : add_exponent();
        }
    }

    action begin_received() {
        EXECUTE_UPDATE(set_received, meta.slot);
    }
    action add_received() {
        EXECUTE(merge_received, meta.slot, received);
    }
    table received_orders {
        key = { slot.is_taken : ternary; slot.merges : ternary; slot.role : ternary; slot.present : ternary; }
        actions = { begin_received; add_received; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, _, _) : begin_received();
            (_, 1, ROLE_AGAIN, _) : add_received();
            (_, 1, _, 0) : add_received();
        }
    }

    apply {
        received = (int<32>) hdr.sumac.received;
        shared_flag_orders.apply();
        shared_exponent_orders.apply();
        received_orders.apply();
        meta.received = (bit<32>) received;
    }
}
