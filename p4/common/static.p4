// Static jobs (SwitchML): what a packet does to its slot. wire/src/slot has the same as one function; here it is cut into what a
// switch can do in one pass, each step on a register of its own, and what takes a second pass.

#include "slot.p4"
#include "turn.p4"
#include "lane.p4"
#include "chunk.p4"
#include "version.p4"
#include "elements.p4"
#include "seen.p4"
#include "merged.p4"
#include "static_decision.p4"

control Static(inout headers_t hdr, inout metadata_t meta) {
    slot_t slot;
    bit<32> first_chunk;

    Turn() turn;
    Lane() lane;
    Chunk() chunk;
    VersionState() version;
    Elements() elements;
    Seen() seen;
    Merged() merged;
    StaticDecision() decision;

    apply {
        slot = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        meta.owner = hdr.sumac.job ++ hdr.sumac.epoch;
        slot.number = hdr.sumac.seq;
        if (hdr.bridge.pass == PASS_NONE) {
            slot.takes = ~meta.is_parents & ~hdr.sumac.query;
        } else if (hdr.bridge.pass == PASS_CONCLUDE || hdr.bridge.pass == PASS_CONCLUDE_ROOTS) {
            slot.is_concluding = 1;
            slot.state = STATE_FINAL;
            slot.turn = 31w0 ++ ~hdr.sumac.pool_version;
        } else if (hdr.bridge.pass == PASS_AGREE) {
            slot.is_agreeing = 1;
            slot.state = STATE_AGREED;
        }
        first_chunk = meta.slot_in_lane;
        if (hdr.sumac.pool_version == 1) {
            first_chunk = meta.slot_in_lane + meta.lane_slots;
        }
        if (first_chunk == hdr.sumac.seq) {
            slot.is_first_chunk = 1;
        }
        if (hdr.bridge.pass == PASS_CONCLUDE) {
            lane.apply(hdr, meta, slot);
        } else if (hdr.bridge.pass == PASS_CONCLUDE_ROOTS) {
            slot.number = hdr.sumac.next_seq;
        }
        turn.apply(hdr, meta, slot);
        if (slot.turn == 31w0 ++ hdr.sumac.pool_version && slot.next == hdr.sumac.seq) {
            slot.in_turn = 1;
        }
        chunk.apply(hdr, meta, slot);
        version.apply(hdr, meta, slot);
        slot.is_round = slot.state[2:2];
        elements.apply(hdr, meta, slot);
        if (slot.takes == 1) {
            if (slot.is_new == 1) {
                slot.is_taken = 1;
            } else if (slot.is_same == 1 && slot.is_alike == 1) {
                if (hdr.sumac.exponent_round == 1) {
                    slot.is_taken = slot.is_round;
                } else if (slot.is_round == 0 && (slot.is_empty == 1 || (slot.is_same_size == 1 && slot.is_other_kind == 0))) {
                    slot.is_taken = 1;
                }
            }
        }
        seen.apply(hdr, meta, slot);
        slot.is_added = slot.is_taken & ~slot.is_in;
        // In an exponent round there are no elements yet.
        slot.is_first = slot.is_new | (slot.is_empty & ~hdr.sumac.exponent_round);
        merged.apply(hdr, meta, slot);
        if (hdr.bridge.pass == PASS_NONE) {
            meta.next_seq = slot.next;
            decision.apply(hdr, meta, slot);
        } else if (hdr.bridge.pass == PASS_AGREE) {
            hdr.bridge.pass = PASS_NONE;
        } else {
            if (slot.is_concluding == 1) {
                hdr.sumac.next_seq = slot.number;
            }
            if (hdr.bridge.pass == PASS_FETCH && slot.is_same == 0) {
                // The version has another chunk by now.
                hdr.bridge.operation = OPERATION_NONE;
                hdr.bridge.pass = PASS_END;
            } else if (hdr.bridge.operation == OPERATION_MAXIMUM) {
                hdr.bridge.operation = OPERATION_READ_FIRST;
                hdr.bridge.pass = PASS_FETCH;
            } else {
                hdr.bridge.operation = OPERATION_READ_SECOND;
                hdr.bridge.pass = PASS_SEND;
            }
        }
    }
}
