// Static jobs with loss bounds: the senders that may lack the result of a version's chunk. A version takes a new chunk when nobody does:
// that the other version is final shows nothing, where sums are without some workers.

control Received(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    int<32> others;
    int<32> known;
    int<32> lacking_first = 0;
    int<32> lacking_second = 0;
    // The packet's version has a result of its job's, which some may lack.
    bit<8> is_used = 0;

    // By version: the owner of its result.
    REGISTER(bit<32>, concluders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<8>, concluders, is_concluder, if (value == meta.owner) { result = 1; } else { result = 0; })
    REGISTER_UPDATE(bit<32>, concluders, become_concluder, value = meta.owner;)

    // By slot, of each version: the senders that may lack the result, and its chunk. Chunks are numbered around 2^32, so the sign of a
    // difference says which is later.
    SIGNED_PAIR_REGISTER(lacking_0, STATIC_SLOTS)
    SIGNED_PAIR_ACTION(int<32>, lacking_0, note_0,
        if (value.hi - known < 0) { value.lo = value.lo & others; }
        result = value.lo;)
    SIGNED_PAIR_UPDATE(lacking_0, note_only_0, if (value.hi - known < 0) { value.lo = value.lo & others; })
    SIGNED_PAIR_UPDATE(lacking_0, all_lack_0, value.lo = others; value.hi = known;)
    SIGNED_PAIR_REGISTER(lacking_1, STATIC_SLOTS)
    SIGNED_PAIR_ACTION(int<32>, lacking_1, note_1,
        if (value.hi - known < 0) { value.lo = value.lo & others; }
        result = value.lo;)
    SIGNED_PAIR_UPDATE(lacking_1, note_only_1, if (value.hi - known < 0) { value.lo = value.lo & others; })
    SIGNED_PAIR_UPDATE(lacking_1, all_lack_1, value.lo = others; value.hi = known;)

    action ask_concluder() {
        EXECUTE(is_concluder, meta.place, is_used);
    }
    action conclude() {
        EXECUTE_UPDATE(become_concluder, meta.place);
    }
    table concluder_orders {
        key = { meta.is_bounded : exact; hdr.bridge.pass : exact; }
        actions = { ask_concluder; conclude; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, PASS_NONE) : ask_concluder();
            (1, PASS_CONCLUDE) : conclude();
        }
    }

    action ask_0() {
        EXECUTE(note_0, meta.slot, lacking_first);
    }
    action update_0() {
        EXECUTE_UPDATE(note_only_0, meta.slot);
    }
    action final_0() {
        EXECUTE_UPDATE(all_lack_0, meta.slot);
    }
    table lacking_0_orders {
        key = { meta.is_bounded : exact; hdr.bridge.pass : exact; hdr.sumac.pool_version : exact; }
        actions = { ask_0; update_0; final_0; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, PASS_NONE, 0) : ask_0();
            (1, PASS_NONE, 1) : update_0();
            (1, PASS_CONCLUDE, 0) : final_0();
        }
    }
    action ask_1() {
        EXECUTE(note_1, meta.slot, lacking_second);
    }
    action update_1() {
        EXECUTE_UPDATE(note_only_1, meta.slot);
    }
    action final_1() {
        EXECUTE_UPDATE(all_lack_1, meta.slot);
    }
    table lacking_1_orders {
        key = { meta.is_bounded : exact; hdr.bridge.pass : exact; hdr.sumac.pool_version : exact; }
        actions = { ask_1; update_1; final_1; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, PASS_NONE, 1) : ask_1();
            (1, PASS_NONE, 0) : update_1();
            (1, PASS_CONCLUDE, 1) : final_1();
        }
    }
    action nobody() {}
    action postpone() {
        slot.is_turn = 0;
    }
    table turns_of_all {
        key = { is_used : ternary; lacking_first : ternary; lacking_second : ternary; }
        actions = { nobody; postpone; }
        const default_action = postpone;
        const entries = {
            (0, _, _) : nobody();
            (_, 0, 0) : nobody();
        }
    }

    apply {
        others = (int<32>) slot.others;
        known = (int<32>) slot.known;
        concluder_orders.apply();
        lacking_0_orders.apply();
        lacking_1_orders.apply();
        turns_of_all.apply();
    }
}
