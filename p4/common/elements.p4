// Static slots: how many elements a version's chunk has, and whether they are summed or the largest is kept. 0: no elements yet.

control Elements(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    REGISTER(bit<16>, sizes, VERSIONS)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, look_size, result = value;)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, set_size, result = value; value = slot.mine;)
    REGISTER_ACTION(bit<16>, bit<16>, sizes, begin_size, result = value; if (value == 0) { value = slot.mine; })

    action look() {
        EXECUTE(look_size, meta.place, slot.size);
    }
    action set() {
        EXECUTE(set_size, meta.place, slot.size);
    }
    action begin() {
        EXECUTE(begin_size, meta.place, slot.size);
    }
    table size_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.takes : ternary;
            slot.is_new : ternary;
            slot.is_same : ternary;
            slot.is_alike : ternary;
            slot.state : ternary;
            hdr.sumac.exponent_round : ternary;
        }
        actions = { look; set; begin; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_AGREE, _, _, _, _, _, _) : set();
            (_, 1, 1, _, _, _, _) : set();
            (_, 1, _, 1, 1, 0 &&& STATE_ROUND, 0) : begin();
            (_, _, _, _, _, _, _) : look();
        }
    }

    action compare() {
        slot.size_difference = slot.size ^ slot.mine;
    }
    action empty() {
        slot.is_empty = 1;
    }
    action same_size() {
        slot.is_same_size = 1;
    }
    action other_kind() {
        slot.is_other_kind = 1;
    }
    action only_other_kind() {
        slot.is_other_kind = 1;
        slot.is_same_size = 1;
    }
    table size_verdicts {
        key = { slot.size : ternary; slot.size_difference : ternary; }
        actions = { empty; same_size; only_other_kind; other_kind; NoAction; }
        const default_action = NoAction;
        const entries = {
            (0, _) : empty();
            (_, 0) : same_size();
            // A root's result does not say whether it is a sum.
            (_, 0x8000) : only_other_kind();
            (_, 0x8000 &&& 0x8000) : other_kind();
        }
    }

    apply {
        size_orders.apply();
        compare();
        size_verdicts.apply();
    }
}
