// Static slots: the senders whose values, or exponents, a version does not have yet.

control Seen(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    REGISTER(bit<32>, missing_senders, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, look_missing, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, set_missing, value = slot.others; result = meta.all;)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, set_all_missing, value = meta.all; result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, missing_senders, clear_missing, result = value; value = value & slot.others;)

    action look() {
        EXECUTE(look_missing, meta.place, slot.missing);
    }
    action begin() {
        EXECUTE(set_missing, meta.place, slot.missing);
        slot.is_taken = 1;
    }
    action add() {
        EXECUTE(clear_missing, meta.place, slot.missing);
        slot.is_taken = 1;
    }
    action begin_again() {
        EXECUTE(set_all_missing, meta.place, slot.missing);
    }
    table sender_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.takes : ternary;
            slot.is_new : ternary;
            slot.is_same : ternary;
            slot.is_alike : ternary;
            slot.state : ternary;
            hdr.sumac.exponent_round : ternary;
            slot.size : ternary;
            slot.size_difference : ternary;
        }
        actions = { look; begin; add; begin_again; NoAction; }
        const default_action = NoAction;
        const entries = {
            (PASS_AGREE, _, _, _, _, _, _, _, _) : begin_again();
            (_, 1, 1, _, _, _, _, _, _) : begin();
            (_, 1, _, 1, 1, STATE_ROUND &&& STATE_ROUND, 1, _, _) : add();
            (_, 1, _, 1, 1, STATE_CLAIMED &&& STATE_CLAIMED, _, _, _) : look();
            (_, 1, _, 1, 1, 0 &&& STATE_ROUND, 0, 0, _) : add();
            (_, 1, _, 1, 1, 0 &&& STATE_ROUND, 0, _, 0) : add();
            (_, _, _, _, _, _, _, _, _) : look();
        }
    }

    action compare() {
        slot.present = slot.missing & meta.bit_;
        slot.left = slot.missing ^ meta.bit_;
    }
    action is_in() {
        slot.is_in = 1;
    }
    action is_in_complete() {
        slot.is_in = 1;
        slot.is_complete = 1;
    }
    action completes() {
        slot.completes = 1;
    }
    table sender_verdicts {
        key = { slot.missing : ternary; slot.present : ternary; slot.left : ternary; }
        actions = { is_in; is_in_complete; completes; NoAction; }
        const default_action = NoAction;
        const entries = {
            (0, _, _) : is_in_complete();
            (_, 0, _) : is_in();
            (_, _, 0) : completes();
        }
    }

    apply {
        sender_orders.apply();
        compare();
        sender_verdicts.apply();
    }
}
