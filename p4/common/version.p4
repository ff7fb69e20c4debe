// Static slots: the state of a version's chunk, and the signature of its operation.

control VersionState(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    // STATE_* bits.
    REGISTER(bit<8>, states, VERSIONS)
    REGISTER_ACTION(bit<8>, bit<8>, states, look_state, result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, states, set_state, value = slot.mark; result = value;)
    REGISTER_ACTION(bit<8>, bit<8>, states, mark_state, value = value | slot.mark; result = value;)
#if BOUNDS
    REGISTER_ACTION(bit<8>, bit<8>, states, claim_state, result = value; value = value | slot.mark;)
#endif

    // The same signature twice: one is compared, the other is read.
    REGISTER(bit<32>, signatures, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<8>, signatures, compare_signature,
        if (value == hdr.sumac.tensor) { result = 1; } else { result = 0; })
    REGISTER_UPDATE(bit<32>, signatures, set_signature, value = hdr.sumac.tensor;)
    REGISTER(bit<32>, signature_words, VERSIONS)
    REGISTER_ACTION(bit<32>, bit<32>, signature_words, read_signature, result = value;)
    REGISTER_ACTION(bit<32>, bit<32>, signature_words, write_signature, value = hdr.sumac.tensor; result = value;)

    action same() {
        EXECUTE(look_state, meta.place, slot.state);
        slot.is_same = 1;
    }
    action stale() {
        EXECUTE(look_state, meta.place, slot.state);
        slot.is_stale = 1;
    }
    action other() {
        EXECUTE(look_state, meta.place, slot.state);
    }
    action new() {
        EXECUTE(set_state, meta.place, slot.state);
        slot.is_new = 1;
    }
    action wanted() {
        EXECUTE(look_state, meta.place, slot.state);
        slot.is_new = 1;
    }
    action agree() {
        EXECUTE(set_state, meta.place, slot.state);
    }
    action conclude() {
        EXECUTE(mark_state, meta.place, slot.state);
    }
#if BOUNDS
    action claim() {
        EXECUTE(claim_state, meta.place, slot.state);
        slot.is_same = 1;
    }
#endif
    table state_orders {
        key = {
            hdr.bridge.pass : ternary;
            slot.takes : ternary;
            slot.is_turn : ternary;
            slot.is_next : ternary;
            slot.is_owner : ternary;
            slot.behind : ternary;
        }
        actions = {
            same; stale; other; new; wanted; agree; conclude; NoAction;
#if BOUNDS
            claim;
#endif
        }
        const default_action = NoAction;
        const entries = {
            (PASS_CONCLUDE, _, _, _, _, _) : conclude();
            (PASS_CONCLUDE_ROOTS, _, _, _, _, _) : conclude();
            (PASS_AGREE, _, _, _, _, _) : agree();
#if BOUNDS
            (PASS_CLAIM, _, _, _, 1, 0) : claim();
#endif
            (_, _, _, _, 1, 0) : same();
            (PASS_NONE, 1, 1, 1, _, _) : new();
            (PASS_NONE, _, 1, 1, _, _) : wanted();
            (_, _, _, _, 1, 0x80000000 &&& 0x80000000) : stale();
            (_, _, _, _, _, _) : other();
        }
    }

    action compare() {
        EXECUTE(compare_signature, meta.place, slot.is_alike);
    }
    action sign() {
        EXECUTE_UPDATE(set_signature, meta.place);
        slot.is_alike = 1;
    }
    table signature_orders {
        key = { slot.takes : ternary; slot.is_turn : ternary; slot.is_next : ternary; slot.is_owner : ternary; slot.behind : ternary; }
        actions = { compare; sign; NoAction; }
        const default_action = NoAction;
        const entries = {
            (_, _, _, 1, 0) : compare();
            (1, 1, 1, _, _) : sign();
            (_, _, _, _, _) : compare();
        }
    }

    action read() {
        EXECUTE(read_signature, meta.place, meta.tensor);
    }
    action write() {
        EXECUTE(write_signature, meta.place, meta.tensor);
    }
    table word_orders {
        key = { slot.takes : ternary; slot.is_turn : ternary; slot.is_next : ternary; slot.is_owner : ternary; slot.behind : ternary; }
        actions = { read; write; NoAction; }
        const default_action = NoAction;
        const entries = {
            (_, _, _, 1, 0) : read();
            (1, 1, 1, _, _) : write();
            (_, _, _, _, _) : read();
        }
    }

    apply {
        state_orders.apply();
        signature_orders.apply();
        word_orders.apply();
    }
}
