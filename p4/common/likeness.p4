// Shared slots: whether a packet's values may be added to those in the slot.

control Likeness(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    // Exponent, maximum, level and number of elements.
    REGISTER(bit<32>, kinds, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<8>, kinds, compare_kind, if (value == slot.kind) { result = 1; } else { result = 0; })
    REGISTER_UPDATE(bit<32>, kinds, set_kind, value = slot.kind;)
    REGISTER(bit<32>, shared_signatures, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<8>, shared_signatures, compare_shared_signature,
        if (value == hdr.sumac.tensor) { result = 1; } else { result = 0; })
    REGISTER_UPDATE(bit<32>, shared_signatures, set_shared_signature, value = hdr.sumac.tensor;)

    action ask_kind() {
        EXECUTE(compare_kind, meta.slot, slot.is_kind);
    }
    action begin_kind() {
        EXECUTE_UPDATE(set_kind, meta.slot);
    }
    table kind_orders {
        key = { slot.is_taken : exact; slot.holds : exact; }
        actions = { ask_kind; begin_kind; NoAction; }
        const default_action = NoAction;
        const entries = {
            (0, 1) : ask_kind();
            (1, 0) : begin_kind();
        }
    }

    action ask_signature() {
        EXECUTE(compare_shared_signature, meta.slot, slot.is_alike);
    }
    action begin_signature() {
        EXECUTE_UPDATE(set_shared_signature, meta.slot);
    }
    table shared_signature_orders {
        key = { slot.is_taken : exact; slot.holds : exact; }
        actions = { ask_signature; begin_signature; NoAction; }
        const default_action = NoAction;
        const entries = {
            (0, 1) : ask_signature();
            (1, 0) : begin_signature();
        }
    }

    apply {
        kind_orders.apply();
        shared_signature_orders.apply();
    }
}
