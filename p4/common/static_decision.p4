// Static slots: the answer to a packet, as wire's `slot::decide` and `slot::conclude` have it. The first entry that matches counts.

control StaticDecision(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    action count(bit<6> reason) {
        meta.reason = reason;
        hdr.bridge.pass = PASS_END;
    }
    action count_of(bit<6> reason, bit<2> event) {
        meta.reason = reason;
        meta.has_event = 1;
        meta.event = event;
        hdr.bridge.pass = PASS_END;
    }
    // Into the values, and no more.
    action add(bit<8> operation) {
        meta.reason = REASON_ADDED;
        meta.has_event = 1;
        meta.event = EVENT_ADDED;
        hdr.bridge.operation = operation;
        hdr.bridge.pass = PASS_END;
    }
    action to_all(bit<6> reason, bit<8> answer, bit<8> operation, bit<8> pass) {
        meta.reason = reason;
        meta.answer = answer;
        hdr.bridge.operation = operation;
        hdr.bridge.pass = pass;
        hdr.bridge.destination = DEST_ALL;
    }
    // The last contribution of its chunk.
    action complete(bit<8> answer, bit<8> operation, bit<8> pass) {
        to_all(REASON_COMPLETED, answer, operation, pass);
        meta.has_event = 1;
        meta.event = EVENT_LAST;
    }
    action to_parent(bit<8> answer, bit<8> operation, bit<8> pass) {
        meta.reason = REASON_FORWARDED;
        meta.answer = answer;
        hdr.bridge.operation = operation;
        hdr.bridge.pass = pass;
        hdr.bridge.destination = meta.parent;
    }
    action complete_to_parent(bit<8> answer, bit<8> operation, bit<8> pass) {
        to_parent(answer, operation, pass);
        meta.has_event = 1;
        meta.event = EVENT_LAST;
    }
    action to_sender(bit<6> reason, bit<8> answer) {
        meta.reason = reason;
        meta.answer = answer;
        hdr.bridge.destination = meta.sender;
    }
    action reply(bit<8> answer, bit<8> operation, bit<8> pass) {
        to_sender(REASON_REPLIED, answer);
        hdr.bridge.operation = operation;
        hdr.bridge.pass = pass;
        meta.has_event = 1;
        meta.event = EVENT_REPLY;
    }
    action to_receiver(bit<6> reason, bit<8> answer) {
        meta.reason = reason;
        meta.answer = answer;
        hdr.bridge.destination = meta.receiver;
    }

    table contributions {
        key = {
            slot.is_new : ternary;
            slot.is_same : ternary;
            slot.is_stale : ternary;
            hdr.sumac.query : ternary;
            hdr.sumac.exponent_round : ternary;
            slot.is_alike : ternary;
            slot.state : ternary;
            slot.is_empty : ternary;
            slot.is_other_kind : ternary;
            slot.is_same_size : ternary;
            slot.is_in : ternary;
            slot.is_complete : ternary;
            slot.completes : ternary;
            meta.is_child : ternary;
        }
        actions = { count; count_of; add; to_all; complete; to_parent; complete_to_parent; to_sender; reply; }
        const default_action = count(REASON_INTERNAL);
        const entries = {
            // new same stale query round alike state empty kind size in complete completes child
            (1, _, _, 1, _, _, _, _, _, _, _, _, _, _) : to_sender(REASON_WANTED, ANSWER_WANTED);
            (1, _, _, _, 1, _, _, _, _, _, _, _, 1, 1) : complete_to_parent(ANSWER_PART_OF_ROUND, OPERATION_NONE, PASS_NONE);
            (1, _, _, _, 1, _, _, _, _, _, _, _, 1, _) : complete(ANSWER_AGREED, OPERATION_NONE, PASS_AGREE);
            (1, _, _, _, 1, _, _, _, _, _, _, _, _, _) : add(OPERATION_NONE);
            (1, _, _, _, _, _, _, _, _, _, _, _, 1, 1) : complete_to_parent(ANSWER_PART, OPERATION_STORE, PASS_SEND);
            (1, _, _, _, _, _, _, _, _, _, _, _, 1, _) : complete(ANSWER_RESULT, OPERATION_STORE, PASS_CONCLUDE);
            (1, _, _, _, _, _, _, _, _, _, _, _, _, _) : add(OPERATION_STORE);
            (_, 0, 1, _, _, _, _, _, _, _, _, _, _, _) : count(REASON_STALE);
            (_, 0, _, _, _, _, _, _, _, _, _, _, _, _) : count(REASON_OUT_OF_TURN);
            (_, _, _, _, _, 0, _, _, _, _, _, _, _, _) : to_sender(REASON_MISMATCH, ANSWER_REFUSAL);
            // An exponent round.
            (_, _, _, _, 1, _, 2 &&& 2, _, _, _, _, _, _, _) : reply(ANSWER_AGREED, OPERATION_NONE, PASS_NONE);
            (_, _, _, _, 1, _, 0 &&& 4, _, _, _, _, _, _, _) : count(REASON_OUT_OF_TURN);
            (_, _, _, _, 1, _, _, _, _, _, 0, _, 1, 1) : complete_to_parent(ANSWER_PART_OF_ROUND, OPERATION_NONE, PASS_NONE);
            (_, _, _, _, 1, _, _, _, _, _, 0, _, 1, _) : complete(ANSWER_AGREED, OPERATION_NONE, PASS_AGREE);
            (_, _, _, _, 1, _, _, _, _, _, 0, _, _, _) : add(OPERATION_NONE);
            (_, _, _, _, 1, _, _, _, _, _, _, 1, _, 1) : to_parent(ANSWER_PART_OF_ROUND, OPERATION_NONE, PASS_NONE);
            // Complete, and not agreed yet: the packet that completed it is on its way to its second pass, which must be the only one.
            (_, _, _, _, 1, _, _, _, _, _, _, _, _, _) : count_of(REASON_DUPLICATE, EVENT_DUPLICATE);
            (_, _, _, _, _, _, 4 &&& 4, _, _, _, _, _, _, _) : count(REASON_OUT_OF_TURN);
            // The first elements after an exponent round.
            (_, _, _, 1, _, _, _, 1, _, _, _, _, _, _) : to_sender(REASON_WANTED, ANSWER_WANTED);
            (_, _, _, _, _, _, _, 1, _, _, _, _, 1, 1) : complete_to_parent(ANSWER_PART, OPERATION_STORE, PASS_SEND);
            (_, _, _, _, _, _, _, 1, _, _, _, _, 1, _) : complete(ANSWER_RESULT, OPERATION_STORE, PASS_CONCLUDE);
            (_, _, _, _, _, _, _, 1, _, _, _, _, _, _) : add(OPERATION_STORE);
            (_, _, _, _, _, _, _, _, 1, _, _, _, _, _) : to_sender(REASON_MISMATCH, ANSWER_REFUSAL);
            // A query.
            (_, _, _, 1, _, _, _, _, _, _, 0, _, _, _) : to_sender(REASON_WANTED, ANSWER_WANTED);
            (_, _, _, 1, _, _, 1 &&& 1, _, _, _, _, _, _, _) : to_sender(REASON_WANTED, ANSWER_WANTED);
            (_, _, _, 1, _, _, _, _, _, _, _, 1, _, 1) : to_parent(ANSWER_QUESTION, OPERATION_NONE, PASS_NONE);
            (_, _, _, 1, _, _, _, _, _, _, _, _, _, _) : count_of(REASON_DUPLICATE, EVENT_DUPLICATE);
            // Elements.
            (_, _, _, _, _, _, _, _, _, 0, _, _, _, _) : count(REASON_WRONG_ELEMENTS);
            (_, _, _, _, _, _, 1 &&& 1, _, _, _, _, _, _, _) : reply(ANSWER_RESULT, OPERATION_READ_FIRST, PASS_FETCH);
            // A flush completes it.
            (_, _, _, _, _, _, STATE_CLAIMED &&& STATE_CLAIMED, _, _, _, _, _, _, _) : count_of(REASON_DUPLICATE, EVENT_DUPLICATE);
            (_, _, _, _, _, _, _, _, _, _, 0, _, 1, 1) : complete_to_parent(ANSWER_PART, OPERATION_ADD, PASS_FETCH);
            (_, _, _, _, _, _, _, _, _, _, 0, _, 1, _) : complete(ANSWER_RESULT, OPERATION_ADD, PASS_CONCLUDE);
            (_, _, _, _, _, _, _, _, _, _, 0, _, _, _) : add(OPERATION_ADD);
            (_, _, _, _, _, _, _, _, _, _, _, 1, _, 1) : to_parent(ANSWER_PART, OPERATION_READ_FIRST, PASS_FETCH);
            (_, _, _, _, _, _, _, _, _, _, _, _, _, _) : count_of(REASON_DUPLICATE, EVENT_DUPLICATE);
        }
    }

    table conclusions {
        key = {
            slot.is_same : ternary;
            hdr.sumac.exponent_round : ternary;
            slot.state : ternary;
            slot.is_complete : ternary;
            hdr.sumac.mismatch : ternary;
            hdr.sumac.query : ternary;
            slot.is_alike : ternary;
            slot.is_same_size : ternary;
        }
        actions = { count; to_all; to_receiver; }
        const default_action = count(REASON_INTERNAL);
        const entries = {
            // same round state complete mismatch query alike size
            (0, _, _,       _, _, _, _, _) : count(REASON_STALE);
            (_, 1, 2 &&& 2, _, _, _, _, _) : count(REASON_DUPLICATE);
            (_, 0, 1 &&& 1, _, _, _, _, _) : count(REASON_DUPLICATE);
            (_, 1, 0 &&& 4, _, _, _, _, _) : count(REASON_OUT_OF_TURN);
            (_, 0, 4 &&& 4, _, _, _, _, _) : count(REASON_OUT_OF_TURN);
            (_, _, _,       0, _, _, _, _) : count(REASON_OUT_OF_TURN);
            (_, _, _,       _, 1, _, _, _) : to_all(REASON_MISMATCH, ANSWER_REFUSAL, OPERATION_NONE, PASS_NONE);
            (_, _, _,       _, _, 1, _, _) : to_receiver(REASON_WANTED, ANSWER_WANTED);
            (_, _, _,       _, _, _, 0, _) : count(REASON_WRONG_PLACE);
            (_, 1, _,       _, _, _, _, _) : to_all(REASON_CONCLUDED, ANSWER_AGREED, OPERATION_NONE, PASS_AGREE);
            (_, _, _,       _, _, _, _, 0) : count(REASON_WRONG_ELEMENTS);
            (_, _, _,       _, _, _, _, _) : to_all(REASON_CONCLUDED, ANSWER_RESULT, OPERATION_NONE, PASS_CONCLUDE_ROOTS);
        }
    }

    apply {
        if (meta.is_parents == 1) {
            conclusions.apply();
        } else {
            contributions.apply();
        }
        if (hdr.bridge.operation == OPERATION_ADD && hdr.sumac.maximum == 1) {
            hdr.bridge.operation = OPERATION_MAXIMUM;
        }
    }
}
