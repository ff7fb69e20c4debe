// Shared slots: the chunk that a slot refused last. Its later packets are refused too, also when the slot has become free.

control Refused(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    REGISTER(bit<32>, refused_owners, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<8>, refused_owners, is_refused_owner,
        if (value == meta.owner) { result = 1; } else { result = 0; })
    REGISTER_UPDATE(bit<32>, refused_owners, set_refused_owner, value = meta.owner;)
    REGISTER(bit<32>, refused_chunks, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, refused_chunks, look_refused_chunk, result = value;)
    REGISTER_UPDATE(bit<32>, refused_chunks, set_refused_chunk, value = hdr.sumac.seq;)

    action ask_owner() {
        EXECUTE(is_refused_owner, meta.slot, slot.is_refused_lane);
    }
    action note_owner() {
        EXECUTE_UPDATE(set_refused_owner, meta.slot);
    }
    table refused_owner_orders {
        key = { slot.role : ternary; }
        actions = { ask_owner; note_owner; NoAction; }
        const default_action = NoAction;
        const entries = {
            ROLE_NONE : NoAction();
            ROLE_REFUSE : note_owner();
            ROLE_FREE_REFUSE : note_owner();
            _ : ask_owner();
        }
    }

    action look() {
        EXECUTE(look_refused_chunk, meta.slot, slot.refused_behind);
    }
    action note() {
        EXECUTE_UPDATE(set_refused_chunk, meta.slot);
    }
    table refused_chunk_orders {
        key = { slot.role : ternary; }
        actions = { look; note; NoAction; }
        const default_action = NoAction;
        const entries = {
            ROLE_NONE : NoAction();
            ROLE_REFUSE : note();
            ROLE_FREE_REFUSE : note();
            _ : look();
        }
    }

    action compare() {
        slot.refused_behind = slot.refused_behind - hdr.sumac.seq;
    }

    apply {
        refused_owner_orders.apply();
        refused_chunk_orders.apply();
        compare();
    }
}
