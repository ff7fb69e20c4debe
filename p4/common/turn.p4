// Static slots: which version may take a new chunk, and which one.
//
// The versions of a slot alternate, and a version takes a new chunk only when the other is final (docs/protocol.md, "Slot"). So the
// packet that completes a version writes down, in its second pass, whose turn it is, and the chunk that takes the version next.

control Turn(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // By slot: owner, and the version that may take a new chunk.
    PAIR_REGISTER(turns, STATIC_SLOTS)
    PAIR_ACTION(bit<8>, turns, look_0,
        if (value.lo != meta.owner || value.hi == 0) { result = 1; } else { result = 0; }
        if (value.lo != meta.owner) { value.hi = 0; }
        value.lo = meta.owner;)
    PAIR_ACTION(bit<8>, turns, look_1,
        if (value.lo == meta.owner && value.hi == 1) { result = 1; } else { result = 0; }
        if (value.lo != meta.owner) { value.hi = 0; }
        value.lo = meta.owner;)
    PAIR_UPDATE(turns, give_0, value.lo = meta.owner; value.hi = 0;)
    PAIR_UPDATE(turns, give_1, value.lo = meta.owner; value.hi = 1;)

    // By version: owner, and the chunk that takes it next.
    PAIR_REGISTER(next_chunks, VERSIONS)
    PAIR_ACTION(bit<32>, next_chunks, is_next,
        if (value.lo == meta.owner && value.hi == meta.number) { result = 1; } else { result = 0; })
    // By the first chunk of the version.
    PAIR_ACTION(bit<32>, next_chunks, begin_next,
        if (value.lo != meta.owner || value.hi == meta.number) { result = 1; } else { result = 0; }
        if (value.lo != meta.owner) { value.hi = meta.number; }
        value.lo = meta.owner;)
    PAIR_ACTION(bit<32>, next_chunks, read_next, result = value.hi;)
    PAIR_UPDATE(next_chunks, give_next, value.lo = meta.owner; value.hi = meta.number;)

    action ask_0() {
        EXECUTE(look_0, meta.slot, slot.is_turn);
    }
    action ask_1() {
        EXECUTE(look_1, meta.slot, slot.is_turn);
    }
    action pass_to_0() {
        EXECUTE_UPDATE(give_0, meta.slot);
    }
    action pass_to_1() {
        EXECUTE_UPDATE(give_1, meta.slot);
    }
    table turn_orders {
        key = { hdr.bridge.pass : ternary; hdr.sumac.pool_version : ternary; }
        actions = { ask_0; ask_1; pass_to_0; pass_to_1; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_CONCLUDE, 0) : pass_to_1();
            (PASS_CONCLUDE, 1) : pass_to_0();
            (PASS_CONCLUDE_ROOTS, 0) : pass_to_1();
            (PASS_CONCLUDE_ROOTS, 1) : pass_to_0();
            (_, 0) : ask_0();
            (_, 1) : ask_1();
            (_, _) : ask_0();
        }
    }

    action ask_next() {
        EXECUTE(is_next, meta.place, slot.is_next);
    }
    action begin() {
        EXECUTE(begin_next, meta.place, slot.is_next);
    }
    action read() {
        EXECUTE(read_next, meta.place, slot.next);
    }
    action give() {
        EXECUTE_UPDATE(give_next, meta.place);
    }
    table next_orders {
        key = { hdr.bridge.pass : exact; meta.is_first_chunk : exact; }
        actions = { ask_next; begin; read; give; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_NONE, 0) : ask_next();
            (PASS_NONE, 1) : begin();
            (PASS_FETCH, 0) : read();
            (PASS_FETCH, 1) : read();
            (PASS_CONCLUDE, 0) : give();
            (PASS_CONCLUDE, 1) : give();
            (PASS_CONCLUDE_ROOTS, 0) : give();
            (PASS_CONCLUDE_ROOTS, 1) : give();
        }
    }

    apply {
        turn_orders.apply();
        next_orders.apply();
    }
}
