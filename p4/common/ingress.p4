// The aggregator's ingress: what a packet is, what it does to its slot, and where it goes.

#include "reasons.p4"
#include "lookup.p4"
#include "admission.p4"
#include "drops.p4"
#include "own.p4"
#include "ways.p4"
#include "answer.p4"
#include "place.p4"
#if BLOCKS > 1
#include "last_block.p4"
#endif
#if BOUNDS
#include "budget.p4"
#endif
#ifndef DYNAMIC_ONLY
#include "static.p4"
#endif
#ifndef STATIC_ONLY
#include "dynamic.p4"
#endif

control Aggregator(inout headers_t hdr, inout metadata_t meta) {
    bit<16> job = 0;

    Lookup() lookup;
    Admission() admission;
    Drops() drops;
    Own() own;
    Ways() ways;
    Hosts() hosts;
    Envelope() envelope;
    Content() content;
#ifndef DYNAMIC_ONLY
    Place() place;
    Static() static_;
#if BOUNDS
    Budget() budget;
    LeftOut() left_out;
#endif
#if BLOCKS > 1
    LastBlock() last_block;
#endif
#endif
#ifndef STATIC_ONLY
    Dynamic() dynamic;
#endif
    // By job and reason.
    COUNTER(reasons, JOBS * 64)
    // By job, worker and EVENT_*.
    COUNTER(worker_events, JOBS * 128)

    // The packet's form, before any table is asked.
    action measure() {
        meta.shard = hdr.udp.dst_port - BASE_PORT;
        meta.ip_excess = hdr.ipv4.total_len - hdr.udp.len - 20;
        meta.too_short = 72 |-| hdr.udp.len;
        meta.payload_excess = hdr.udp.len - 72 - (hdr.sumac.elements << 2);
        meta.ahead = hdr.sumac.seq - hdr.sumac.next_seq;
    }

    apply {
        if (meta.is_ours == 0) {
            meta.reason = REASON_FOREIGN;
            own.apply(hdr, meta);
            meta.is_first_pass = 1;
            meta.is_for_others = ~meta.has_port;
        } else {
            measure();
            lookup.apply(hdr, meta);
            // The job was removed, or began anew, between two passes: the slot may be another job's.
            if (hdr.bridge.pass != PASS_NONE && hdr.bridge.pass != PASS_SEND
                && (meta.is_known == 0 || meta.is_placed == 0 || meta.other_epoch != 0)) {
                hdr.bridge.pass = PASS_END;
                hdr.bridge.operation = OPERATION_NONE;
            }
            if (hdr.bridge.pass == PASS_NONE) {
                admission.apply(hdr, meta);
                meta.is_first_pass = 1;
                if (meta.is_admitted == 1) {
                    drops.apply(hdr, meta);
                }
            }
            if (hdr.bridge.pass == PASS_END) {
            } else if (meta.is_injected == 1) {
                meta.reason = REASON_INJECTED_DROP;
                hdr.bridge.pass = PASS_END;
            } else if (meta.is_told == 1) {
                meta.answer = ANSWER_UNKNOWN_JOB;
                hdr.bridge.destination = meta.sender;
            } else if (meta.is_first_pass == 1 && meta.is_admitted == 0) {
                hdr.bridge.pass = PASS_END;
                if (meta.reason == REASON_FOREIGN || meta.reason == REASON_TRUNCATED || meta.reason == REASON_BAD_LENGTH
                    || meta.reason == REASON_FRAGMENT || meta.reason == REASON_BAD_VERSION || meta.reason == REASON_BAD_TYPE
                    || meta.reason == REASON_BAD_FORMAT || meta.reason == REASON_UNKNOWN_JOB) {
                    meta.is_for_others = 1;
                }
            } else if (hdr.bridge.pass == PASS_SEND) {
                hdr.bridge.pass = PASS_NONE;
                hdr.bridge.operation = OPERATION_NONE;
#ifndef DYNAMIC_ONLY
            } else if (meta.is_dynamic == 0) {
                if (hdr.sumac.kind == KIND_PROBE) {
                    meta.reason = REASON_PROBED;
                    meta.answer = ANSWER_REPORT;
                    hdr.bridge.destination = meta.sender;
                } else {
                    if (meta.is_first_pass == 1 && hdr.ipv4.ecn == ECN_MARKED) {
                        hdr.sumac.ecn_echo = 1;
                        hdr.ipv4.ecn = ECN_CAPABLE;
                    }
                    place.apply(hdr, meta);
                    hdr.bridge.cell = CELL_OF(meta.place);
#if BLOCKS > 1
                    if (meta.is_first_pass == 1) {
                        last_block.apply(hdr);
                    }
                    hdr.bridge.cell = hdr.bridge.cell + hdr.bridge.number;
#endif
                    static_.apply(hdr, meta);
#if BOUNDS
                    budget.apply(hdr, meta);
#endif
                }
#endif
#ifndef STATIC_ONLY
            } else {
                if (meta.is_first_pass == 1 && hdr.ipv4.ecn == ECN_MARKED) {
                    hdr.sumac.ecn_echo = 1;
                    hdr.ipv4.ecn = ECN_CAPABLE;
                }
                meta.slot = meta.first + meta.slot_in_lane[15:0];
                hdr.bridge.cell = SHARED_CELL_OF(meta.slot);
                dynamic.apply(hdr, meta);
#endif
            }
            envelope.apply(hdr, meta);
            content.apply(hdr, meta);
#if BOUNDS
            left_out.apply(hdr, meta);
#endif
            if (meta.has_event == 1 && meta.is_first_pass == 1) {
                meta.rank = meta.sender - 1;
                COUNT(worker_events, hdr.sumac.job[8:0] ++ meta.rank[4:0] ++ meta.event);
            }
        }
        if (meta.is_for_others == 1) {
            hosts.apply(hdr, meta);
        } else if (meta.is_ours == 1 && hdr.bridge.pass == PASS_NONE) {
            ways.apply(hdr, meta);
        }
        if ((meta.is_first_pass == 1 && meta.is_uncounted == 0) || meta.is_counted == 1) {
            if (meta.is_known == 1) {
                job = hdr.sumac.job;
            }
            COUNT(reasons, job[9:0] ++ meta.reason);
        }
    }
}
