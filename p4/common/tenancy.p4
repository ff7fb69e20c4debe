// Shared slots: who has a slot, and since when nobody has added to it (ATP, sections 3.5 and 3.7).

control Tenancy(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    // By slot: the tick SLOT_TIMEOUT after the last contribution, and the digest of the chunk; 0: it is free. A tick before now: others
    // may take the slot. The chunk itself leaves such a tick as it is, whether it has been silent or its sum has left.
    SIGNED_PAIR_REGISTER(stamps, SHARED_SLOTS)
    SIGNED_PAIR_ACTION(bit<8>, stamps, take_stamp,
        if (value.hi != slot.digest && value.lo - slot.now < 0) { result = 1; } else { result = 0; }
        if ((value.hi == slot.digest && !(value.lo - slot.now < 0)) || (value.hi != slot.digest && value.lo - slot.now < 0)) {
            value.lo = slot.now + SLOT_TIMEOUT;
            value.hi = slot.digest;
        })
    SIGNED_PAIR_UPDATE(stamps, touch_stamp,
        if (value.hi == slot.digest && !(value.lo - slot.now < 0)) { value.lo = slot.now + SLOT_TIMEOUT; })
    // Frees it of this chunk. One that is free already gets a new stamp, so that ticks may wrap.
    SIGNED_PAIR_ACTION(bit<8>, stamps, free_stamp,
        if (value.hi == slot.digest) { result = 1; } else { result = 0; }
        if (value.hi == slot.digest || value.hi == 0) { value.lo = slot.now - 1; value.hi = 0; })
    // Others may take it; it still is the chunk's.
    SIGNED_PAIR_ACTION(bit<8>, stamps, expire_stamp,
        if (value.hi == slot.digest) { result = 1; } else { result = 0; }
        if (value.hi == slot.digest) { value.lo = slot.now - 1; })

    REGISTER(bit<32>, shared_holders, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, look_shared_holder, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, set_shared_holder, result = value; value = meta.owner;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, clear_shared_holder, result = value; value = 0;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_holders, mark_shared_holder, result = value; value = value | SUMMED;)
    REGISTER(bit<32>, shared_chunks, SHARED_SLOTS)
    REGISTER_ACTION(bit<32>, bit<32>, shared_chunks, look_shared_chunk, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, shared_chunks, set_shared_chunk, result = value; value = hdr.sumac.seq;)

    action take() {
        EXECUTE(take_stamp, meta.slot, slot.is_stamped);
        slot.may_take = 1;
    }
    action touch() {
        EXECUTE_UPDATE(touch_stamp, meta.slot);
        slot.has_refused = 1;
    }
    action free() {
        EXECUTE(free_stamp, meta.slot, slot.is_stamped);
    }
    action expire() {
        EXECUTE(expire_stamp, meta.slot, slot.is_stamped);
    }
    action refused_again() {
        slot.has_refused = 1;
    }
    // wire's REFUSED_CHUNKS is 2^14.
    table stamp_orders {
        key = { slot.role : ternary; slot.is_refused_lane : ternary; slot.refused_behind : ternary; }
        actions = { take; touch; free; expire; refused_again; NoAction; }
        const default_action = NoAction;
        const entries = {
            (ROLE_OFFER, 1, 0 &&& 0xffffc000) : touch();
            (ROLE_OFFER, _, _) : take();
            (ROLE_ALONE, 1, 0 &&& 0xffffc000) : refused_again();
            (ROLE_AGAIN, 1, 0 &&& 0xffffc000) : refused_again();
            (ROLE_FREE, _, _) : free();
            (ROLE_FREE_REFUSE, _, _) : free();
            (ROLE_SUMMED, _, _) : expire();
        }
    }

    action look_at_holder() {
        EXECUTE(look_shared_holder, meta.slot, slot.holder);
    }
    action begin_holder() {
        EXECUTE(set_shared_holder, meta.slot, slot.holder);
    }
    action end_holder() {
        EXECUTE(clear_shared_holder, meta.slot, slot.holder);
    }
    action mark_holder() {
        EXECUTE(mark_shared_holder, meta.slot, slot.holder);
    }
    table holder_orders {
        key = { slot.role : ternary; slot.may_take : ternary; slot.is_stamped : ternary; }
        actions = { look_at_holder; begin_holder; end_holder; mark_holder; NoAction; }
        const default_action = NoAction;
        const entries = {
            (ROLE_NONE, _, _) : NoAction();
            (_, 1, 1) : begin_holder();
            (ROLE_FREE, _, 1) : end_holder();
            (ROLE_FREE_REFUSE, _, 1) : end_holder();
            (ROLE_SUMMED, _, 1) : mark_holder();
            (_, _, _) : look_at_holder();
        }
    }

    action look_at_chunk() {
        EXECUTE(look_shared_chunk, meta.slot, slot.chunk);
    }
    action begin_chunk() {
        EXECUTE(set_shared_chunk, meta.slot, slot.chunk);
    }
    table chunk_orders {
        key = { slot.role : ternary; slot.may_take : ternary; slot.is_stamped : ternary; }
        actions = { look_at_chunk; begin_chunk; NoAction; }
        const default_action = NoAction;
        const entries = {
            (ROLE_NONE, _, _) : NoAction();
            (_, 1, 1) : begin_chunk();
            (_, _, _) : look_at_chunk();
        }
    }

    action compare() {
        slot.other_holder = slot.holder ^ meta.owner;
        slot.other_chunk = slot.chunk ^ hdr.sumac.seq;
    }
    action holds() {
        slot.holds = 1;
    }
    action taken() {
        slot.is_taken = 1;
    }
    action taken_free() {
        slot.is_taken = 1;
        slot.was_free = 1;
    }
    table tenants {
        key = {
            slot.role : ternary;
            slot.other_holder : ternary;
            slot.other_chunk : ternary;
            slot.holder : ternary;
            slot.may_take : ternary;
            slot.is_stamped : ternary;
        }
        actions = { holds; taken; taken_free; NoAction; }
        const default_action = NoAction;
        const entries = {
            (ROLE_NONE, _, _, _, _, _) : NoAction();
            (_, 0 &&& ~SUMMED, 0, _, _, _) : holds();
            (_, _, _, 0, 1, 1) : taken_free();
            (_, _, _, SUMMED &&& SUMMED, 1, 1) : taken_free();
            (_, _, _, _, 1, 1) : taken();
        }
    }

    apply {
        stamp_orders.apply();
        holder_orders.apply();
        chunk_orders.apply();
        compare();
        tenants.apply();
    }
}
