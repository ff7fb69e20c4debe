// Static jobs (SwitchML): what a packet does to its slot. wire/src/slot has the same as one function; here it is cut into what a
// switch can do in one pass, each step on a register of its own, and what takes a second pass. place.p4 comes before.

#include "slot.p4"
#include "turn.p4"
#include "chunk.p4"
#include "version.p4"
#include "elements.p4"
#include "seen.p4"
#include "merged.p4"
#include "static_decision.p4"
#if BLOCKS > 1
#include "blocks.p4"
#endif
#if BOUNDS
#include "received.p4"
#include "flush.p4"
#endif

control Static(inout headers_t hdr, inout metadata_t meta) {
    slot_t slot;

    Turn() turn;
    Chunk() chunk;
    VersionState() version;
    Elements() elements;
    Seen() seen;
    Merged() merged;
    StaticDecision() decision;
#if BLOCKS > 1
    Blocks() blocks;
#endif
#if BOUNDS
    Received() received;
    Flush() flush;
    Claim() claim_;
    Missing() missing;
#endif

    action take_sum(bit<8> takes) {
        slot.takes = takes;
        slot.mine = hdr.sumac.elements;
        slot.exponent = hdr.sumac.next_exponent;
    }
    action take_maximum(bit<8> takes) {
        slot.takes = takes;
        slot.mine = hdr.sumac.elements | 0x8000;
        slot.exponent = hdr.sumac.next_exponent;
    }
    action take_round(bit<8> takes) {
        slot.takes = takes;
        slot.mark = STATE_ROUND;
        slot.mine = 0;
        slot.exponent = hdr.sumac.next_exponent;
    }
    action conclude() {
        slot.mark = STATE_FINAL;
    }
    action claim() {
        slot.mark = STATE_CLAIMED;
    }
    action agree() {
        slot.mark = STATE_AGREED;
        slot.mine = 0;
        slot.exponent = hdr.sumac.exponent;
    }
    // The values that the packet writes into the slot, if any.
    table steps {
        key = {
            hdr.bridge.pass : ternary;
            meta.is_parents : ternary;
            hdr.sumac.query : ternary;
            hdr.sumac.exponent_round : ternary;
            hdr.sumac.maximum : ternary;
        }
        actions = { take_sum; take_maximum; take_round; conclude; claim; agree; }
        const default_action = conclude;
        const entries = {
            (PASS_NONE, 0, 0, 1, _) : take_round(1);
            (PASS_NONE, 0, 0, _, 1) : take_maximum(1);
            (PASS_NONE, 0, 0, _, _) : take_sum(1);
            (PASS_NONE, _, _, 1, _) : take_round(0);
            (PASS_NONE, _, _, _, 1) : take_maximum(0);
            (PASS_NONE, _, _, _, _) : take_sum(0);
            (PASS_AGREE, _, _, _, _) : agree();
            (PASS_CLAIM, _, _, _, _) : claim();
        }
    }
    action set_flags(bit<8> flags) {
        slot.flags = flags;
    }
    // The bits of metadata_t.flags. An exponent round has only the ECN echo.
    table flag_bits {
        key = { hdr.sumac.exponent_round : exact; hdr.sumac.overflow : exact; hdr.sumac.ecn_echo : exact; hdr.sumac.not_finite : exact; }
        actions = { set_flags; }
        const default_action = set_flags(0);
        const entries = {
            (0, 0, 0, 1) : set_flags(2);
            (0, 0, 1, 0) : set_flags(4);
            (0, 0, 1, 1) : set_flags(6);
            (0, 1, 0, 0) : set_flags(8);
            (0, 1, 0, 1) : set_flags(10);
            (0, 1, 1, 0) : set_flags(12);
            (0, 1, 1, 1) : set_flags(14);
            (1, 0, 1, 0) : set_flags(4);
            (1, 0, 1, 1) : set_flags(4);
            (1, 1, 1, 0) : set_flags(4);
            (1, 1, 1, 1) : set_flags(4);
        }
    }
    action prepare() {
        slot.others = meta.all ^ meta.bit_;
        slot.known = hdr.sumac.received;
    }
#if BOUNDS
    // Before the chunk's result has left, every worker lacks it.
    action prepare_end() {
        slot.others = meta.all;
        slot.known = hdr.sumac.seq;
    }
#endif

    action send() {
        hdr.bridge.pass = PASS_NONE;
    }
    action end() {
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = PASS_END;
    }
    action concluded_maximum() {
        hdr.sumac.next_seq = meta.number;
        hdr.bridge.operation = OPERATION_READ_FIRST;
        hdr.bridge.pass = PASS_FETCH;
    }
    action concluded() {
        hdr.sumac.next_seq = meta.number;
        hdr.bridge.operation = OPERATION_READ_SECOND;
        hdr.bridge.pass = PASS_SEND;
    }
    // A root's values. In the pass that marks the version final: who reads the second half of the rack's sum writes its first half.
    action stored() {
        hdr.bridge.operation = OPERATION_STORE;
        hdr.bridge.pass = PASS_SEND;
    }
    action fetched_maximum() {
        hdr.bridge.operation = OPERATION_READ_FIRST;
        hdr.bridge.pass = PASS_FETCH;
    }
    action fetched() {
        hdr.bridge.operation = OPERATION_READ_SECOND;
        hdr.bridge.pass = PASS_SEND;
    }
    // Of a result.
    action fetched_result() {
        hdr.sumac.next_seq = slot.next;
        hdr.bridge.operation = OPERATION_READ_SECOND;
        hdr.bridge.pass = PASS_SEND;
    }
    // The passes after the first.
    table later_passes {
        key = {
            hdr.bridge.pass : ternary;
            slot.is_same : ternary;
            hdr.bridge.operation : ternary;
            hdr.sumac.kind : ternary;
            slot.state : ternary;
        }
        actions = { send; end; concluded; concluded_maximum; stored; fetched; fetched_maximum; fetched_result; }
        const default_action = end;
        const entries = {
            (PASS_AGREE, _, _, _, _) : send();
            (PASS_CONCLUDE, _, OPERATION_MAXIMUM, _, _) : concluded_maximum();
            (PASS_CONCLUDE, _, _, _, _) : concluded();
            (PASS_CONCLUDE_ROOTS, _, _, _, _) : stored();
            // The version has another chunk by now.
            (PASS_FETCH, 0, _, _, _) : end();
            // It has the root's result by now.
            (PASS_FETCH, _, _, KIND_CONTRIBUTION, STATE_FINAL &&& STATE_FINAL) : end();
            (PASS_FETCH, _, OPERATION_MAXIMUM, _, _) : fetched_maximum();
            (PASS_FETCH, _, OPERATION_READ_FIRST, KIND_RESULT, _) : fetched_result();
            (PASS_FETCH, _, _, _, _) : fetched();
        }
    }

    // A root's result stays as it is.
    action roots() {
        meta.flags = slot.flags;
        meta.exponent = hdr.sumac.exponent;
        meta.next_exponent = hdr.sumac.next_exponent;
        meta.next_seq = hdr.sumac.next_seq;
        meta.tensor = hdr.sumac.tensor;
    }

    apply {
        slot = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        steps.apply();
        flag_bits.apply();
#if BOUNDS
        if (hdr.bridge.pass == PASS_CONCLUDE) {
            prepare_end();
        } else {
            prepare();
        }
#else
        prepare();
#endif
        turn.apply(hdr, meta, slot);
#if BOUNDS
        received.apply(hdr, meta, slot);
#endif
        chunk.apply(hdr, meta, slot);
        version.apply(hdr, meta, slot);
        elements.apply(hdr, meta, slot);
        seen.apply(hdr, meta, slot);
        merged.apply(hdr, meta, slot);
        if (hdr.bridge.pass == PASS_NONE) {
            decision.apply(hdr, meta, slot);
            if (meta.is_parents == 1) {
                roots();
            }
#if BOUNDS
            flush.apply(hdr, meta, slot);
        } else if (hdr.bridge.pass == PASS_CLAIM) {
            slot.is_apart = 1;
            claim_.apply(hdr, meta, slot);
        } else if (ASKS(hdr.bridge.pass)) {
            slot.is_apart = 1;
#endif
#if BLOCKS > 1
        } else if (hdr.bridge.last == 0) {
            later_passes.apply();
        }
        if (hdr.bridge.last != 0 && slot.is_apart == 0) {
            blocks.apply(hdr, meta, slot);
        }
#else
        } else {
            later_passes.apply();
        }
#endif
#if BOUNDS
        missing.apply(hdr, meta, slot);
#endif
    }
}
