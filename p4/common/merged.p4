// Static slots: what a result has from all contributions: flags, the chunk's exponent and the largest of the slot's next chunk.

control Merged(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // Overflow, ECN echo, not finite, as in metadata_t.
    REGISTER(bit<8>, merged_flags, VERSIONS)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, look_flags, result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, set_flags, value = slot.flags; result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, merged_flags, merge_flags, value = value | slot.flags; result = value;)

    SIGNED_REGISTER(8, exponents, VERSIONS)
    SIGNED_ACTION(8, exponents, look_exponent, result = value;)
    SIGNED_ACTION(8, exponents, set_exponent, value = slot.exponent; result = value;)
    SIGNED_ACTION(8, exponents, merge_exponent, if (value < slot.exponent) { value = slot.exponent; } result = value;)

    SIGNED_REGISTER(8, next_exponents, VERSIONS)
    SIGNED_ACTION(8, next_exponents, look_next_exponent, result = value;)
    SIGNED_ACTION(8, next_exponents, set_next_exponent, value = hdr.sumac.next_exponent; result = value;)
    SIGNED_ACTION(8, next_exponents, merge_next_exponent,
        if (value < hdr.sumac.next_exponent) { value = hdr.sumac.next_exponent; }
        result = value;)

    action look_at_flags() {
        EXECUTE(look_flags, meta.place, meta.flags);
    }
    action begin_flags() {
        EXECUTE(set_flags, meta.place, meta.flags);
    }
    action add_flags() {
        EXECUTE(merge_flags, meta.place, meta.flags);
    }
    table flag_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.is_taken : ternary;
            slot.present : ternary;
            slot.is_new : ternary;
            slot.size : ternary;
            hdr.sumac.exponent_round : ternary;
        }
        actions = { look_at_flags; begin_flags; add_flags; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_AGREE, _, _, _, _, _) : begin_flags();
            (PASS_CONCLUDE, _, _, _, _, _) : begin_flags();
            (PASS_CONCLUDE_ROOTS, _, _, _, _, _) : begin_flags();
            (_, 1, 0, _, _, _) : look_at_flags();
            (_, 1, _, 1, _, _) : begin_flags();
            // The first elements after an exponent round.
            (_, 1, _, _, 0, 0) : begin_flags();
            (_, 1, _, _, _, _) : add_flags();
            (_, _, _, _, _, _) : look_at_flags();
        }
    }

    action look_at_exponent() {
        EXECUTE(look_exponent, meta.place, meta.exponent);
    }
    action begin_exponent() {
        EXECUTE(set_exponent, meta.place, meta.exponent);
    }
    action add_exponent() {
        EXECUTE(merge_exponent, meta.place, meta.exponent);
    }
    table exponent_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.is_taken : ternary;
            slot.present : ternary;
            slot.is_new : ternary;
            hdr.sumac.exponent_round : ternary;
        }
        actions = { look_at_exponent; begin_exponent; add_exponent; NoAction; }
        const default_action = NoAction;
        const entries = {
            // The root's; without a root it is the version's own.
            (PASS_AGREE, _, _, _, _) : begin_exponent();
            (_, 1, 0, _, _) : look_at_exponent();
            (_, 1, _, 1, 1) : begin_exponent();
            (_, 1, _, _, 1) : add_exponent();
            (_, _, _, _, _) : look_at_exponent();
        }
    }

    action look_at_next() {
        EXECUTE(look_next_exponent, meta.place, meta.next_exponent);
    }
    action begin_next() {
        EXECUTE(set_next_exponent, meta.place, meta.next_exponent);
    }
    action add_next() {
        EXECUTE(merge_next_exponent, meta.place, meta.next_exponent);
    }
    table next_exponent_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.is_taken : ternary;
            slot.present : ternary;
            slot.is_new : ternary;
            slot.size : ternary;
            hdr.sumac.exponent_round : ternary;
        }
        actions = { look_at_next; begin_next; add_next; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_CONCLUDE, _, _, _, _, _) : begin_next();
            (PASS_CONCLUDE_ROOTS, _, _, _, _, _) : begin_next();
            (_, 1, 0, _, _, _) : look_at_next();
            (_, 1, _, 1, _, 0) : begin_next();
            (_, 1, _, _, 0, 0) : begin_next();
            (_, 1, _, _, _, 0) : add_next();
            (_, _, _, _, _, _) : look_at_next();
        }
    }

    apply {
        flag_orders.apply();
        exponent_orders.apply();
        next_exponent_orders.apply();
    }
}
