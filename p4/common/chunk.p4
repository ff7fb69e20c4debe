// Static slots: the chunk that a version holds.

control Chunk(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // By version: the owner, and the chunk.
    REGISTER(bit<32>, holders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<8>, holders, is_holder, if (value == meta.owner) { result = 1; } else { result = 0; })
    REGISTER_ACTION(bit<32>, bit<8>, holders, take_over,
        if (value == meta.owner) { result = 1; } else { result = 0; }
        value = meta.owner;)
    REGISTER(bit<32>, chunks, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, chunks, look_chunk, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, chunks, take_chunk, result = value; value = hdr.sumac.seq;)

    action ask_holder() {
        EXECUTE(is_holder, meta.place, slot.is_owner);
    }
    action become_holder() {
        EXECUTE(take_over, meta.place, slot.is_owner);
    }
    table holder_orders {
        key = { slot.takes : ternary; slot.is_turn : ternary; slot.is_next : ternary; }
        actions = { ask_holder; become_holder; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 1, 1) : become_holder();
            (_, _, _) : ask_holder();
        }
    }

    action look() {
        EXECUTE(look_chunk, meta.place, slot.held);
    }
    action take() {
        EXECUTE(take_chunk, meta.place, slot.held);
    }
    table chunk_orders {
        key = { slot.takes : ternary; slot.is_turn : ternary; slot.is_next : ternary; }
        actions = { look; take; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 1, 1) : take();
            (_, _, _) : look();
        }
    }

    action compare() {
        slot.behind = hdr.sumac.seq - slot.held;
    }

    apply {
        holder_orders.apply();
        chunk_orders.apply();
        compare();
    }
}
