// Static jobs with loss bounds: the terms of a lane's latest operation, and the chunks of it that were flushed (wire/src/lane_budget.rs;
// docs/protocol.md, "Bounded loss"). One count for all workers: nobody is left out of more chunks than were flushed.

#include "contributors.p4"

// The sign of a difference between chunks.
const bit<32> EARLIER = 0x80000000;

control Budget(inout headers_t hdr, inout metadata_t meta) {
    // The packet states terms; it is a flush whose contribution is in.
    bit<8> states = 0;
    bit<8> asks = 0;
    bit<8> is_held = 0;
    // The operation that the packet names, the lane's, and how far the one is later.
    int<32> operation = 0;
    int<32> latest = 0;
    bit<32> later = 0;
    // The packet's chunk; and the end that it states, or the operation that it asks for a chunk of.
    int<32> chunk;
    int<32> next;
    bit<8> is_owner = 0;
    bit<8> have_stated = 0;
    bit<8> is_within = 0;
    bit<16> limit = 0;
    // Twice the senders that are missing, and by how many more than all.
    bit<16> missing = 0;
    bit<16> excess = 0;
    bit<8> is_granted = 0;
    bit<8> is_spent_of = 0;
    bit<8> is_spent = 0;

    CountMissing() count_missing;

    // By lane.
    REGISTER(bit<32>, terms_owners, LANES)
    REGISTER_ACTION(bit<32>, bit<8>, terms_owners, ask_owner, if (value == meta.owner) { result = 1; } else { result = 0; })
    REGISTER_ACTION(bit<32>, bit<8>, terms_owners, take_owner,
        if (value == meta.owner) { result = 1; } else { result = 0; }
        value = meta.owner;)
    // Chunks are numbered around 2^32, so the sign of a difference says which is later.
    SIGNED_REGISTER(32, terms_operations, LANES)
    SIGNED_ACTION(32, terms_operations, look_operation, result = value;)
    SIGNED_ACTION(32, terms_operations, later_operation,
        result = value;
        if (value - operation < 0) { value = operation; })
    SIGNED_ACTION(32, terms_operations, new_operation, result = value; value = operation;)
    REGISTER(bit<32>, terms_workers, LANES)
    REGISTER_UPDATE(bit<32>, terms_workers, set_worker, value = meta.bit_;)
    REGISTER_UPDATE(bit<32>, terms_workers, add_worker, value = value | meta.bit_;)
    REGISTER_ACTION(bit<32>, bit<8>, terms_workers, ask_workers, if (value == meta.all) { result = 1; } else { result = 0; })
    REGISTER(bit<16>, terms_limits, LANES)
    REGISTER_UPDATE(bit<16>, terms_limits, set_limit, value = hdr.sumac.contributors;)
    REGISTER_UPDATE(bit<16>, terms_limits, lower_limit,
        if (value > hdr.sumac.contributors) { value = hdr.sumac.contributors; })
    REGISTER_ACTION(bit<16>, bit<16>, terms_limits, look_limit, result = value;)
    SIGNED_REGISTER(32, terms_ends, LANES)
    SIGNED_UPDATE(32, terms_ends, set_end, value = next;)
    SIGNED_UPDATE(32, terms_ends, lower_end, if (value - next > 0) { value = next; })
    SIGNED_TEST(32, terms_ends, ask_end, if (value - chunk > 0) { result = 1; } else { result = 0; })
    // The operation that the count is of, and the count.
    REGISTER(bit<32>, spent_operations, LANES)
    REGISTER_UPDATE(bit<32>, spent_operations, set_none, value = 0xffffffff;)
    REGISTER_ACTION(bit<32>, bit<8>, spent_operations, spend_of,
        if (value == hdr.sumac.next_seq) { result = 1; } else { result = 0; }
        value = hdr.sumac.next_seq;)
    REGISTER(bit<16>, spent_chunks, LANES)
    REGISTER_UPDATE(bit<16>, spent_chunks, clear, value = 0;)
    REGISTER_UPDATE(bit<16>, spent_chunks, begin, value = 1;)
    REGISTER_ACTION(bit<16>, bit<8>, spent_chunks, spend,
        if (value < limit) { result = 1; } else { result = 0; }
        if (value < limit) { value = value + 1; })

    action terms() {
        states = 1;
        operation = (int<32>) hdr.sumac.seq;
    }
    action flush() {
        asks = 1;
        operation = (int<32>) hdr.sumac.next_seq;
    }
    action held_flush() {
        flush();
        is_held = 1;
    }
    table roles {
        key = {
            meta.is_bounded : ternary;
            hdr.bridge.pass : ternary;
            meta.is_first_pass : ternary;
            meta.is_admitted : ternary;
            meta.is_injected : ternary;
            hdr.sumac.kind : ternary;
            hdr.sumac.partial : ternary;
            hdr.sumac.exponent_round : ternary;
            hdr.sumac.query : ternary;
            hdr.sumac.contributors : ternary;
        }
        actions = { terms; flush; held_flush; NoAction; }
        const default_action = NoAction;
        const entries = {
            // bounded pass first admitted injected kind partial round query contributors
            (0, _, _, _, _, _, _, _, _, _) : NoAction();
            (_, _, 1, 1, 0, KIND_CONTRIBUTION, 0, 0, 0, 0) : NoAction();
            (_, _, 1, 1, 0, KIND_CONTRIBUTION, 0, 0, 0, _) : terms();
            (_, PASS_GRANT, 0, _, _, _, _, _, _, _) : flush();
            (_, PASS_GRANT_HELD, 0, _, _, _, _, _, _, _) : held_flush();
        }
    }
    action take() {
        EXECUTE(take_owner, meta.lane, is_owner);
    }
    action ask() {
        EXECUTE(ask_owner, meta.lane, is_owner);
    }
    table owner_orders {
        key = { states : exact; asks : exact; }
        actions = { take; ask; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 0) : take();
            (0, 1) : ask();
        }
    }
    action look() {
        EXECUTE(look_operation, meta.lane, latest);
    }
    action move_on() {
        EXECUTE(later_operation, meta.lane, latest);
    }
    action begin_operation() {
        EXECUTE(new_operation, meta.lane, latest);
    }
    table operation_orders {
        key = { states : exact; asks : exact; is_owner : exact; }
        actions = { look; move_on; begin_operation; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 0, 0) : begin_operation();
            (1, 0, 1) : move_on();
            (0, 1, 1) : look();
        }
    }
    action compare() {
        later = (bit<32>) operation - (bit<32>) latest;
    }

    action first_worker() {
        EXECUTE_UPDATE(set_worker, meta.lane);
    }
    action one_more_worker() {
        EXECUTE_UPDATE(add_worker, meta.lane);
    }
    action all_workers() {
        EXECUTE(ask_workers, meta.lane, have_stated);
    }
    table worker_orders {
        key = { states : ternary; asks : ternary; is_owner : ternary; later : ternary; }
        actions = { first_worker; one_more_worker; all_workers; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, 0, _) : first_worker();
            (1, _, _, 0) : one_more_worker();
            (1, _, _, EARLIER &&& EARLIER) : NoAction();
            (1, _, _, _) : first_worker();
            (_, 1, 1, 0) : all_workers();
        }
    }
    action first_limit() {
        EXECUTE_UPDATE(set_limit, meta.lane);
    }
    action smaller_limit() {
        EXECUTE_UPDATE(lower_limit, meta.lane);
    }
    action its_limit() {
        EXECUTE(look_limit, meta.lane, limit);
    }
    table limit_orders {
        key = { states : ternary; asks : ternary; is_owner : ternary; later : ternary; }
        actions = { first_limit; smaller_limit; its_limit; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, 0, _) : first_limit();
            (1, _, _, 0) : smaller_limit();
            (1, _, _, EARLIER &&& EARLIER) : NoAction();
            (1, _, _, _) : first_limit();
            (_, 1, 1, 0) : its_limit();
        }
    }
    action first_end() {
        EXECUTE_UPDATE(set_end, meta.lane);
    }
    action earlier_end() {
        EXECUTE_UPDATE(lower_end, meta.lane);
    }
    action its_end() {
        EXECUTE(ask_end, meta.lane, is_within);
    }
    table end_orders {
        key = { states : ternary; asks : ternary; is_owner : ternary; later : ternary; }
        actions = { first_end; earlier_end; its_end; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, 0, _) : first_end();
            (1, _, _, 0) : earlier_end();
            (1, _, _, EARLIER &&& EARLIER) : NoAction();
            (1, _, _, _) : first_end();
            (_, 1, 1, 0) : its_end();
        }
    }

    action double_missing() {
        missing = meta.count_missing + meta.count_missing;
    }
    // At least half of the workers are in: one level, where the job's workers are all below the switch.
    action compare_missing() {
        excess = missing |-| meta.contributors;
    }
    action grant() {
        is_granted = 1;
    }
    table grants {
        key = { asks : exact; have_stated : exact; is_within : exact; excess : exact; }
        actions = { grant; NoAction; }
        const default_action = NoAction;
        const entries = { (1, 1, 1, 0) : grant(); }
    }
    action none_spent() {
        EXECUTE_UPDATE(set_none, meta.lane);
    }
    action of_operation() {
        EXECUTE(spend_of, meta.lane, is_spent_of);
    }
    table spent_operation_orders {
        key = { states : exact; is_owner : exact; is_granted : exact; }
        actions = { none_spent; of_operation; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 0, 0) : none_spent();
            (0, 1, 1) : of_operation();
        }
    }
    action no_chunks() {
        EXECUTE_UPDATE(clear, meta.lane);
    }
    action first_chunk() {
        EXECUTE_UPDATE(begin, meta.lane);
        is_spent = 1;
    }
    action next_chunk() {
        EXECUTE(spend, meta.lane, is_spent);
    }
    table spent_chunk_orders {
        key = { states : ternary; is_owner : ternary; is_granted : ternary; is_spent_of : ternary; }
        actions = { no_chunks; first_chunk; next_chunk; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 0, _, _) : no_chunks();
            (_, _, 1, 0) : first_chunk();
            (_, _, 1, 1) : next_chunk();
        }
    }

    action claim() {
        hdr.bridge.pass = PASS_CLAIM;
        hdr.bridge.operation = OPERATION_NONE;
    }
    action end(bit<6> reason) {
        hdr.bridge.pass = PASS_END;
        hdr.bridge.operation = OPERATION_NONE;
        meta.is_counted = 1;
        meta.reason = reason;
    }
    table verdicts {
        key = { asks : exact; is_spent : exact; is_held : exact; }
        actions = { claim; end; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, 1, 0) : claim();
            (1, 1, 1) : claim();
            (1, 0, 0) : end(REASON_ADDED);
            (1, 0, 1) : end(REASON_DUPLICATE);
        }
    }

    apply {
        chunk = (int<32>) hdr.sumac.seq;
        next = (int<32>) hdr.sumac.next_seq;
        roles.apply();
        owner_orders.apply();
        operation_orders.apply();
        compare();
        worker_orders.apply();
        limit_orders.apply();
        end_orders.apply();
        count_missing.apply(meta.missing, meta.count_missing);
        double_missing();
        compare_missing();
        grants.apply();
        spent_operation_orders.apply();
        spent_chunk_orders.apply();
        verdicts.apply();
    }
}

// A result without some workers has the bits of those in it.
control LeftOut(inout headers_t hdr, inout metadata_t meta) {
    action leave_out() {
        hdr.sumac.partial = 1;
        hdr.sumac.bitmap_0 = hdr.sumac.bitmap_0 ^ meta.missing;
        hdr.sumac.contributors = hdr.sumac.contributors - meta.count_missing;
    }

    apply {
        if (meta.answer == ANSWER_RESULT && meta.is_bounded == 1 && meta.missing != 0) {
            leave_out();
        }
    }
}
