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

    Refused() refused;
    Tenancy() tenancy;
    Likeness() likeness;
    Bitmap() bitmap;
    SharedMerged() merged;
    DynamicDecision() decision;
    DIGESTS(chunk_digest)

    action prepare() {
        meta.owner = hdr.sumac.lane[5:0] ++ hdr.sumac.job[9:0] ++ hdr.sumac.epoch;
        slot.now = (int<32>) meta.now;
        slot.kind = (bit<8>) hdr.sumac.exponent ++ 6w0 ++ hdr.sumac.maximum ++ hdr.sumac.level ++ hdr.sumac.elements;
        meta.is_second = hdr.sumac.level;
    }

    action role(bit<8> number) {
        slot.role = number;
    }
    table roles {
        key = {
            hdr.bridge.pass : ternary;
            hdr.bridge.operation : ternary;
            hdr.sumac.kind : ternary;
            meta.has_no_slot : ternary;
            hdr.sumac.resend : ternary;
            hdr.sumac.level : ternary;
            hdr.sumac.fan_in_0 : ternary;
            hdr.sumac.fan_in_1 : ternary;
        }
        actions = { role; }
        const default_action = role(ROLE_NONE);
        const entries = {
            (PASS_NONE, _, _, 1, _, _, _, _) : role(ROLE_NONE);
            (PASS_NONE, _, KIND_CONTRIBUTION, _, 1, _, _, _) : role(ROLE_AGAIN);
            (PASS_NONE, _, KIND_CONTRIBUTION, _, _, 0, 0 &&& 0xfe, _) : role(ROLE_ALONE);
            (PASS_NONE, _, KIND_CONTRIBUTION, _, _, 1, _, 0 &&& 0xfe) : role(ROLE_ALONE);
            (PASS_NONE, _, KIND_CONTRIBUTION, _, _, _, _, _) : role(ROLE_OFFER);
            (PASS_NONE, _, KIND_RESULT, _, _, _, _, _) : role(ROLE_FREE);
            // Others may have the slot when the sum's second half is read, which is the last pass. At two levels the slot keeps its sum.
            (PASS_SUM, OPERATION_MAXIMUM, _, _, _, _, _, _) : role(ROLE_LOOK);
            (PASS_SUM, _, _, _, _, _, _, 0) : role(ROLE_SUMMED);
            (PASS_SUM, _, _, _, _, _, _, _) : role(ROLE_LOOK);
            // It is freed when its second half is read.
            (PASS_FLUSH, OPERATION_MAXIMUM, _, _, _, _, _, _) : role(ROLE_LOOK);
            (PASS_FLUSH, _, _, _, _, _, _, _) : role(ROLE_FREE);
            (PASS_RELEASE, _, _, _, _, _, _, _) : role(ROLE_FREE);
            (PASS_REFUSE, _, _, _, _, _, _, _) : role(ROLE_REFUSE);
            (PASS_RELEASE_REFUSE, _, _, _, _, _, _, _) : role(ROLE_FREE_REFUSE);
        }
    }

    action set_flags(bit<8> flags) {
        slot.flags = flags;
    }
    // The bits of metadata_t.flags.
    table flag_bits {
        key = { hdr.sumac.overflow : exact; hdr.sumac.ecn_echo : exact; hdr.sumac.not_finite : exact; }
        actions = { set_flags; }
        const default_action = set_flags(0);
        const entries = {
            (0, 0, 1) : set_flags(2);
            (0, 1, 0) : set_flags(4);
            (0, 1, 1) : set_flags(6);
            (1, 0, 0) : set_flags(8);
            (1, 0, 1) : set_flags(10);
            (1, 1, 0) : set_flags(12);
            (1, 1, 1) : set_flags(14);
        }
    }

    action probe() {
        meta.reason = REASON_PASSED;
        meta.answer = ANSWER_PASSED;
        hdr.bridge.destination = meta.parent;
    }
    action report() {
        meta.reason = REASON_PROBED;
        meta.answer = ANSWER_REPORT;
        hdr.bridge.destination = meta.receiver;
    }
    action result() {
        meta.reason = REASON_CONCLUDED;
        hdr.bridge.destination = DEST_ALL;
    }
    action end() {
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.pass = PASS_END;
    }
    action read_first() {
        hdr.bridge.operation = OPERATION_READ_FIRST;
    }
    action read_second() {
        hdr.bridge.operation = OPERATION_READ_SECOND;
        hdr.bridge.pass = PASS_SEND;
    }
    action send() {
        hdr.bridge.pass = PASS_NONE;
    }
    // Probes, reports and results, and all passes after the first.
    table others {
        key = {
            hdr.bridge.pass : ternary;
            hdr.bridge.operation : ternary;
            hdr.sumac.kind : ternary;
            slot.holds : ternary;
            slot.changed : ternary;
        }
        actions = { probe; report; result; end; read_first; read_second; send; }
        const default_action = send;
        const entries = {
            (PASS_NONE, _, KIND_PROBE, _, _) : probe();
            (PASS_NONE, _, KIND_REPORT, _, _) : report();
            (PASS_NONE, _, _, _, _) : result();
            (PASS_SUM, OPERATION_MAXIMUM, _, 1, 0) : read_first();
            (PASS_FLUSH, OPERATION_MAXIMUM, _, 1, 0) : read_first();
            (PASS_SUM, _, _, 1, 0) : read_second();
            (PASS_FLUSH, _, _, 1, 0) : read_second();
            (PASS_SUM, _, _, _, _) : end();
            (PASS_FLUSH, _, _, _, _) : end();
        }
    }

    apply {
        slot = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        prepare();
        roles.apply();
        flag_bits.apply();
        DIGEST(chunk_digest, slot.digest, meta.owner, hdr.sumac.seq);
        refused.apply(hdr, meta, slot);
        tenancy.apply(hdr, meta, slot);
        likeness.apply(hdr, meta, slot);
        bitmap.apply(hdr, meta, slot);
        merged.apply(hdr, meta, slot);
        if (hdr.bridge.pass == PASS_NONE && hdr.sumac.kind == KIND_CONTRIBUTION) {
            decision.apply(hdr, meta, slot);
        } else {
            others.apply();
        }
    }
}
