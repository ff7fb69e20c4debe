// Static jobs with loss bounds: a flush, whose contribution was taken in like others, goes to the lane's budget (budget.p4), and comes back
// to claim its version. What has claimed a version concludes it as its last contribution does.

// Exponents: no number.
const int<8> EXPONENT_UNKNOWN = 127;

// After the decision about a flush. One that comes after its chunk is complete, or is claimed, asks for nothing.
control Flush(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    action ask(bit<8> pass) {
        hdr.bridge.pass = pass;
        meta.is_uncounted = 1;
    }
    table flushes {
        key = {
            meta.is_bounded : exact;
            hdr.sumac.partial : exact;
            hdr.bridge.pass : exact;
            meta.reason : exact;
            hdr.sumac.contributors : ternary;
            slot.state : ternary;
            slot.is_complete : ternary;
        }
        actions = { ask; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 1, PASS_END, REASON_ADDED, 0, _, _) : NoAction();
            (1, 1, PASS_END, REASON_ADDED, _, _, _) : ask(PASS_GRANT);
            (1, 1, PASS_END, REASON_DUPLICATE, 0, _, _) : NoAction();
            (1, 1, PASS_END, REASON_DUPLICATE, _, STATE_CLAIMED &&& STATE_CLAIMED, _) : NoAction();
            (1, 1, PASS_END, REASON_DUPLICATE, _, _, 1) : NoAction();
            (1, 1, PASS_END, REASON_DUPLICATE, _, _, _) : ask(PASS_GRANT_HELD);
        }
    }

    apply {
        flushes.apply();
    }
}

// In the pass that claims a version.
control Claim(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    action complete() {
        meta.reason = REASON_COMPLETED;
        meta.answer = ANSWER_RESULT;
        // The exponents of the workers that are left out are unknown.
        meta.next_exponent = EXPONENT_UNKNOWN;
        hdr.bridge.destination = DEST_ALL;
    }
    action conclude() {
        complete();
        hdr.bridge.operation = OPERATION_READ_FIRST;
        hdr.bridge.pass = PASS_CONCLUDE;
    }
#if BLOCKS > 1
    action wait_and_conclude() {
        complete();
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = PASS_WRITE;
        hdr.bridge.block = BLOCK_NONE;
        hdr.bridge.number = 0;
        hdr.bridge.then = PASS_CONCLUDE;
    }
#endif
    // Somebody has completed it meanwhile, or it has another chunk.
    action end() {
        meta.reason = REASON_ADDED;
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = PASS_END;
    }
    table claims {
        key = {
            slot.is_same : ternary;
            slot.state : ternary;
            slot.is_complete : ternary;
#if BLOCKS > 1
            hdr.bridge.last : ternary;
#endif
        }
        actions = {
            conclude; end;
#if BLOCKS > 1
            wait_and_conclude;
#endif
        }
        const default_action = end;
        const entries = {
#if BLOCKS > 1
            (1, 0 &&& (STATE_FINAL | STATE_ROUND | STATE_CLAIMED), 0, 0) : conclude();
            (1, 0 &&& (STATE_FINAL | STATE_ROUND | STATE_CLAIMED), 0, _) : wait_and_conclude();
#else
            (1, 0 &&& (STATE_FINAL | STATE_ROUND | STATE_CLAIMED), 0) : conclude();
#endif
        }
    }

    apply {
        meta.is_counted = 1;
        claims.apply();
    }
}

// The senders that a result is without, and those that are missing with a flush.
control Missing(inout headers_t hdr, inout metadata_t meta, inout slot_t slot) {
    action with_it() {
        meta.missing = slot.missing & slot.others;
    }
    action as_it_is() {
        meta.missing = slot.missing;
    }
    table missing_orders {
        key = {
            meta.is_bounded : ternary;
            slot.is_same : ternary;
            slot.state : ternary;
            hdr.sumac.partial : ternary;
            hdr.sumac.kind : ternary;
        }
        actions = { with_it; as_it_is; NoAction; }
        const default_action = NoAction;
        const entries = {
            (0, _, _, _, _) : NoAction();
            (_, 1, STATE_CLAIMED &&& STATE_CLAIMED, _, _) : as_it_is();
            (_, _, _, 1, KIND_CONTRIBUTION) : with_it();
        }
    }

    apply {
        missing_orders.apply();
    }
}
