// Shared slots: what becomes of a contribution, as wire's `dynamic::decide` has it. The first entry that matches counts.

control DynamicDecision(inout headers_t hdr, inout metadata_t meta, inout shared_slot_t slot) {
    action drop_(bit<6> reason, bit<2> event) {
        meta.reason = reason;
        meta.has_event = 1;
        meta.event = event;
        hdr.bridge.pass = PASS_END;
    }
    action store(bit<6> reason) {
        drop_(reason, EVENT_ADDED);
        hdr.bridge.operation = OPERATION_STORE;
    }
    action add() {
        drop_(REASON_ADDED, EVENT_ADDED);
        hdr.bridge.operation = OPERATION_ADD_SATURATING;
    }
    action up(bit<6> reason, bit<8> answer, bit<8> pass) {
        meta.reason = reason;
        meta.answer = answer;
        hdr.bridge.destination = meta.parent;
        hdr.bridge.pass = pass;
    }
    action complete() {
        up(REASON_FORWARDED, ANSWER_SUM, PASS_SUM);
        hdr.bridge.operation = OPERATION_ADD_SATURATING;
        meta.has_event = 1;
        meta.event = EVENT_LAST;
    }
    action flush(bit<8> operation) {
        up(REASON_FLUSHED, ANSWER_FLUSHED, PASS_FLUSH);
        hdr.bridge.operation = operation;
    }
    action flush_added() {
        flush(OPERATION_ADD_SATURATING);
        meta.has_event = 1;
        meta.event = EVENT_ADDED;
    }

    table shared_contributions {
        key = {
            slot.role : ternary;
            slot.holds : ternary;
            slot.is_taken : ternary;
            hdr.sumac.raw_float : ternary;
            slot.is_kind : ternary;
            slot.is_alike : ternary;
            hdr.sumac.level : ternary;
            hdr.sumac.collision : ternary;
            slot.present : ternary;
            slot.missing : ternary;
            slot.has_refused : ternary;
            slot.was_free : ternary;
        }
        actions = { drop_; store; add; up; complete; flush; flush_added; }
        const default_action = up(REASON_PASSED, ANSWER_PASSED, PASS_NONE);
        const entries = {
            // role holds taken raw kind alike level collision present missing refused free
            (_, 1, _, 1, _, _, _, _, _, _, _, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_RELEASE);
            (_, 1, _, _, 0, _, _, _, _, _, _, _) : up(REASON_COLLIDED, ANSWER_COLLIDED, PASS_NONE);
            (_, 1, _, _, _, 0, _, _, _, _, _, _) : up(REASON_COLLIDED, ANSWER_COLLIDED, PASS_NONE);
            (ROLE_AGAIN, 1, _, _, _, _, 1, 1, _, _, 0, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_RELEASE_REFUSE);
            (ROLE_AGAIN, 1, _, _, _, _, 1, _, _, _, _, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_RELEASE);
            (ROLE_AGAIN, 1, _, _, _, _, _, _, 0, _, _, _) : flush_added();
            (ROLE_AGAIN, 1, _, _, _, _, _, _, _, _, _, _) : flush(OPERATION_READ_FIRST);
            (_, 1, _, _, _, _, _, _, 0, 0, _, _) : complete();
            (_, 1, _, _, _, _, _, _, 0, _, _, _) : add();
            (_, 1, _, _, _, _, _, _, _, _, _, _) : drop_(REASON_DUPLICATE, EVENT_DUPLICATE);
            // A packet that is sent again, or alone at its level, is not aggregated. One that a slot below has refused is refused here too.
            (ROLE_AGAIN, _, _, _, _, _, 1, 1, _, _, 0, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_REFUSE);
            (ROLE_ALONE, _, _, _, _, _, 1, 1, _, _, 0, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_REFUSE);
            (ROLE_AGAIN, _, _, _, _, _, _, _, _, _, _, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_NONE);
            (ROLE_ALONE, _, _, _, _, _, _, _, _, _, _, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_NONE);
            (ROLE_NONE, _, _, _, _, _, _, _, _, _, _, _) : up(REASON_PASSED, ANSWER_PASSED, PASS_NONE);
            (_, _, 1, _, _, _, _, _, _, _, _, 1) : store(REASON_ADDED);
            (_, _, 1, _, _, _, _, _, _, _, _, _) : store(REASON_RECLAIMED);
            (_, _, _, _, _, _, _, _, _, _, 1, _) : up(REASON_COLLIDED, ANSWER_COLLIDED, PASS_NONE);
            (_, _, _, _, _, _, _, _, _, _, _, _) : up(REASON_COLLIDED, ANSWER_COLLIDED, PASS_REFUSE);
        }
    }

    apply {
        shared_contributions.apply();
        if (hdr.bridge.operation == OPERATION_ADD_SATURATING && hdr.sumac.maximum == 1) {
            hdr.bridge.operation = OPERATION_MAXIMUM;
        }
    }
}
