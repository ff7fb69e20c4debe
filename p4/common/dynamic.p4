// Dynamic jobs (ATP): what a packet does to a slot that all of them share. wire/src/dynamic has the same as one function; here it is
// cut into what a switch can do in one pass.
//
// Sums leave after a second pass, in which their second half is read. Only if the slot holds the same contributions as in the first
// pass: otherwise the packet is dropped, as if the network had lost it. What frees a slot, or notes that it refused a chunk, is a
// second pass too.

#include "shared_slot.p4"
#include "tenancy.p4"
#include "refused.p4"
#include "likeness.p4"
#include "bitmap.p4"
#include "shared_merged.p4"
#include "dynamic_decision.p4"

control Dynamic(inout headers_t hdr, inout metadata_t meta) {
    shared_slot_t slot;
    bit<1> notes = 0;
    bit<1> is_contribution = 0;

    Tenancy() tenancy;
    Refused() refused;
    Likeness() likeness;
    Bitmap() bitmap;
    SharedMerged() merged;
    DynamicDecision() decision;

    apply {
        slot = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        meta.owner = hdr.sumac.lane[5:0] ++ hdr.sumac.job[9:0] ++ hdr.sumac.epoch;
        DIGEST(slot.digest, meta.owner, hdr.sumac.seq);
        slot.is_second = hdr.sumac.level;
        meta.is_second = hdr.sumac.level;
        slot.collided_below = hdr.sumac.level & hdr.sumac.collision;
        if ((hdr.sumac.level == 0 && hdr.sumac.fan_in_0[7:1] == 0) || (hdr.sumac.level == 1 && hdr.sumac.fan_in_1[7:1] == 0)) {
            slot.is_alone = 1;
        }
        if (meta.is_first_pass == 1 && hdr.sumac.kind == KIND_CONTRIBUTION) {
            is_contribution = 1;
        }
        // What this pass does to the slot.
        if (hdr.bridge.pass == PASS_REFUSE || hdr.bridge.pass == PASS_RELEASE_REFUSE) {
            notes = 1;
        }
        if (hdr.bridge.pass == PASS_RELEASE || hdr.bridge.pass == PASS_RELEASE_REFUSE || hdr.sumac.kind == KIND_RESULT) {
            slot.frees = 1;
        } else if (hdr.bridge.pass == PASS_FLUSH && hdr.bridge.operation != OPERATION_MAXIMUM) {
            slot.frees = 1;
        }
        if (meta.has_no_slot == 0 && hdr.sumac.kind != KIND_PROBE && hdr.sumac.kind != KIND_REPORT) {
            refused.apply(hdr, meta, slot, notes);
            if (is_contribution == 1 && hdr.sumac.resend == 0) {
                slot.touches = 1;
                slot.may_take = ~slot.has_refused & ~slot.is_alone;
            }
            tenancy.apply(hdr, meta, slot);
            likeness.apply(hdr, meta, slot);
            if (is_contribution == 1 && slot.holds == 1 && slot.is_alike == 1 && hdr.sumac.raw_float == 0
                && (hdr.sumac.resend == 0 || hdr.sumac.level == 0)) {
                slot.merges = 1;
            }
            bitmap.apply(hdr, meta, slot);
            merged.apply(hdr, meta, slot);
        }
        if (is_contribution == 1) {
            decision.apply(hdr, meta, slot);
        } else if (meta.is_first_pass == 1 && hdr.sumac.kind == KIND_PROBE) {
            meta.reason = REASON_PASSED;
            meta.answer = ANSWER_PASSED;
            hdr.bridge.destination = meta.parent;
        } else if (meta.is_first_pass == 1 && hdr.sumac.kind == KIND_REPORT) {
            meta.reason = REASON_PROBED;
            meta.answer = ANSWER_REPORT;
            hdr.bridge.destination = meta.receiver;
        } else if (meta.is_first_pass == 1) {
            meta.reason = REASON_CONCLUDED;
            hdr.bridge.destination = DEST_ALL;
        } else if (hdr.bridge.pass == PASS_SUM || hdr.bridge.pass == PASS_FLUSH) {
            if (slot.holds == 0 || (meta.is_root == 1 && meta.bitmap != hdr.sumac.bitmap_1)
                || (meta.is_root == 0 && meta.bitmap != hdr.sumac.bitmap_0)) {
                hdr.bridge.operation = OPERATION_NONE;
                hdr.bridge.pass = PASS_END;
            } else if (hdr.bridge.operation == OPERATION_MAXIMUM) {
                hdr.bridge.operation = OPERATION_READ_FIRST;
            } else {
                hdr.bridge.operation = OPERATION_READ_SECOND;
                hdr.bridge.pass = PASS_SEND;
            }
        } else {
            hdr.bridge.pass = PASS_NONE;
        }
    }
}
