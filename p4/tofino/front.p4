// The pipes with ports. The ingress finds out what an arriving packet is, sends what may touch a slot to the pipe of the slots, and makes
// answers of what comes back. The egress writes the headers of what leaves.

#include "../common/reasons.p4"
#include "../common/lookup.p4"
#include "../common/admission.p4"
#include "../common/drops.p4"
#include "../common/own.p4"
#include "../common/ways.p4"
#include "../common/answer.p4"
#include "../common/place.p4"
#include "../common/egress.p4"
#include "../common/queues.p4"
#include "colours.p4"
#if BLOCKS > 1
#include "../common/last_block.p4"
#endif
#if BOUNDS
#include "../common/budget.p4"
#endif

parser FrontIngressParser(
    packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Headers() headers;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        transition select(intrinsic.ingress_port) {
            FRONT_PORT : again;
            default : arrival;
        }
    }
    state again {
        packet.extract(hdr.bridge);
        packet.extract(hdr.outcome);
        packet.extract(hdr.frame);
        packet.extract(hdr.sumac);
        meta.is_ours = 1;
        transition accept;
    }
    state arrival {
        meta.is_first_pass = 1;
        headers.apply(packet, hdr, meta);
        transition accept;
    }
}

// Metadata that no table sets is 0.
@pa_auto_init_metadata
// A container has one writer in a stage: what tables find out side by side has containers of its own.
@pa_solitary("ingress", "meta.is_bound")
@pa_solitary("ingress", "meta.is_side")
@pa_solitary("ingress", "meta.has_token")
@pa_solitary("ingress", "meta.has_result_token")
@pa_solitary("ingress", "meta.is_sender")
@pa_solitary("ingress", "meta.is_parent_source")
@pa_solitary("ingress", "meta.is_uplink")
@pa_solitary("ingress", "meta.is_past")
@pa_solitary("ingress", "meta.is_placed")
@pa_solitary("ingress", "meta.has_no_slot")
@pa_solitary("ingress", "meta.is_injected")
@pa_solitary("ingress", "meta.is_truncated")
@pa_solitary("ingress", "meta.is_told")
@pa_solitary("ingress", "meta.is_parents")
@pa_solitary("ingress", "meta.is_first_chunk")
@pa_solitary("ingress", "meta.is_known")
@pa_solitary("ingress", "meta.is_former")
control FrontIngress(
    inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
    in ingress_intrinsic_metadata_from_parser_t from_parser, inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
    inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Lookup() lookup;
    Place() place;
    Admission() admission;
    Drops() drops;
    Own() own;
    Ways() ways;
    Hosts() hosts;
    Envelope() envelope;
    Content() content;
    Queues() queues;
    Queues() queues_of_others;
    Selective() selective;
    Colours() colours;
    Colours() colours_of_others;
#if BLOCKS > 1
    LastBlock() last_block;
#endif
#if BOUNDS
    Budget() budget;
    LeftOut() left_out;
#endif
    bit<1> is_selective = 0;
    bit<16> counted = 0;
    bit<16> reason_index;
    // By job and reason: what did not get to a slot.
    COUNTER(reasons, JOBS * 64)

    // The packet's form, before any table is asked.
    action measure() {
        hdr.bridge.setValid();
        hdr.bridge.pass = PASS_NONE;
        hdr.bridge.operation = OPERATION_NONE;
#if BLOCKS > 1
        hdr.bridge.block = BLOCK_ALL;
        hdr.bridge.number = 0;
#endif
        hdr.frame.setValid();
        hdr.frame.is_tagged = 0;
        meta.shard = hdr.udp.dst_port & (SHARDS - 1);
        meta.ip_excess = hdr.ipv4.total_len - hdr.udp.len;
        meta.too_short = 72 |-| hdr.udp.len;
        meta.payload_excess = hdr.udp.len - 72;
        meta.elements_len = hdr.sumac.elements << 2;
        meta.ahead = hdr.sumac.seq - hdr.sumac.next_seq;
        hdr.frame.shard = hdr.udp.dst_port & (SHARDS - 1);
        hdr.frame.tag = hdr.vlan.tag;
        hdr.frame.dscp = hdr.ipv4.dscp;
        hdr.frame.ecn = hdr.ipv4.ecn;
        hdr.frame.total_len = hdr.ipv4.total_len;
        hdr.frame.id = hdr.ipv4.id;
        hdr.frame.fragment = hdr.ipv4.fragment;
    }
    action measure_elements() {
        meta.ip_excess = meta.ip_excess - 20;
        meta.payload_excess = meta.payload_excess - meta.elements_len;
    }
    action echo_mark() {
        hdr.sumac.ecn_echo = 1;
        hdr.frame.ecn = ECN_CAPABLE;
    }
    action recall() {
        meta.shard = hdr.frame.shard;
        meta.answer = hdr.outcome.answer;
        meta.flags = hdr.outcome.flags;
        meta.exponent = hdr.outcome.exponent;
        meta.next_exponent = hdr.outcome.next_exponent;
        meta.next_seq = hdr.outcome.next_seq;
        meta.tensor = hdr.outcome.tensor;
#ifndef STATIC_ONLY
        meta.is_second = hdr.outcome.is_second[0:0];
        meta.bitmap = hdr.outcome.bitmap;
        meta.received = hdr.outcome.received;
#endif
#if BOUNDS
        meta.missing = hdr.outcome.missing;
#endif
        hdr.outcome.setInvalid();
    }
    action to_slots() {
        meta.is_to_slots = 1;
        for_tm.ucast_egress_port = SLOTS_PORT;
        for_tm.qid = 0;
        for_tm.packet_color = GREEN;
        hdr.context.setValid();
#if BLOCKS > 1
        hdr.context.place = meta.place;
#endif
        hdr.context.is_dynamic = 7w0 ++ meta.is_dynamic;
        hdr.context.is_child = 7w0 ++ meta.is_child;
        hdr.context.is_parents = 7w0 ++ meta.is_parents;
        hdr.context.is_first_chunk = 7w0 ++ meta.is_first_chunk;
#ifndef STATIC_ONLY
        hdr.context.is_root = 7w0 ++ meta.is_root;
        hdr.context.has_no_slot = 7w0 ++ meta.has_no_slot;
#endif
#if BOUNDS
        hdr.context.is_bounded = 7w0 ++ meta.is_bounded;
#endif
        hdr.context.slot = meta.slot;
        hdr.context.owner = meta.owner;
        hdr.context.number = meta.number;
        hdr.context.all = meta.all;
        hdr.context.bit_ = meta.bit_;
        hdr.context.parent = meta.parent;
        hdr.context.sender = meta.sender;
        hdr.context.rank = meta.sender - 1;
        hdr.context.receiver = meta.receiver;
    }
    // The headers that the frame header stands for.
    action strip() {
        hdr.ethernet.setInvalid();
        hdr.vlan.setInvalid();
        hdr.ipv4.setInvalid();
        hdr.udp.setInvalid();
    }
    action foreign() {
        hdr.frame.setInvalid();
        hdr.bridge.setValid();
        hdr.bridge.pass = PASS_FORWARD;
        meta.is_for_others = 1;
    }
    action number_reason() {
        reason_index = counted[9:0] ++ meta.reason;
    }
    action find_cell() {
        hdr.bridge.cell = CELL_OF(meta.place);
    }
#if BLOCKS > 1
    action find_block() {
        hdr.bridge.cell = hdr.bridge.cell + hdr.bridge.number;
    }
#endif
#ifndef STATIC_ONLY
    action find_shared_cell() {
        hdr.bridge.cell = SHARED_CELL_OF(meta.slot);
    }
#endif
    action to_sender() {
        hdr.bridge.destination = meta.sender;
    }
    action inject() {
        meta.reason = REASON_INJECTED_DROP;
        hdr.bridge.pass = PASS_END;
    }
    action tell() {
        meta.answer = ANSWER_UNKNOWN_JOB;
        hdr.bridge.pass = PASS_SEND;
    }
    action report() {
        meta.reason = REASON_PROBED;
        meta.answer = ANSWER_REPORT;
        hdr.bridge.pass = PASS_SEND;
    }
    action refuse() {
        hdr.bridge.pass = PASS_END;
    }
    // The way of an arriving packet that does not go to a slot.
    table routes {
        key = {
            meta.is_admitted : ternary;
            meta.is_told : ternary;
            meta.is_injected : ternary;
            meta.is_dynamic : ternary;
            meta.reason : ternary;
            hdr.sumac.kind : ternary;
            hdr.frame.ecn : ternary;
        }
        actions = { inject; tell; report; refuse; foreign; echo_mark; NoAction; }
        const default_action = NoAction;
        const entries = {
            // admitted told injected dynamic reason kind ecn
            (1, _, 1, _, _, _, _) : inject();
            (_, 1, _, _, _, _, _) : tell();
            (0, _, _, _, REASON_FOREIGN, _, _) : foreign();
            (0, _, _, _, REASON_TRUNCATED, _, _) : foreign();
            (0, _, _, _, REASON_BAD_LENGTH, _, _) : foreign();
            (0, _, _, _, REASON_FRAGMENT, _, _) : foreign();
            (0, _, _, _, REASON_BAD_VERSION, _, _) : foreign();
            (0, _, _, _, REASON_BAD_TYPE, _, _) : foreign();
            (0, _, _, _, REASON_BAD_FORMAT, _, _) : foreign();
            (0, _, _, _, REASON_UNKNOWN_JOB, _, _) : foreign();
            (0, _, _, _, _, _, _) : refuse();
            (_, _, _, 0, _, KIND_PROBE, _) : report();
            (_, _, _, _, _, _, ECN_MARKED) : echo_mark();
        }
    }
    action drop() {
        for_deparser.drop_ctl = 1;
    }
    action to_port() {
        for_tm.ucast_egress_port = meta.port;
    }
    action to_group() {
        for_tm.mcast_grp_a = meta.group;
    }
    table exits {
        key = { meta.is_to_slots : ternary; meta.has_port : ternary; meta.group : ternary; }
        actions = { to_port; to_group; drop; NoAction; }
        const default_action = NoAction;
        const entries = {
            (1, _, _) : NoAction();
            (_, 1, _) : to_port();
            (_, _, 0) : drop();
            (_, _, _) : to_group();
        }
    }

    apply {
        meta.ingress_port = intrinsic.ingress_port;
        selective.apply(is_selective);
        if (meta.is_ours == 1) {
            if (meta.is_first_pass == 1) {
                measure();
                measure_elements();
#if BLOCKS > 1
                last_block.apply(hdr);
#endif
                if (hdr.vlan.isValid()) {
                    hdr.frame.is_tagged = 1;
                }
                if (from_parser.parser_err != 0) {
                    meta.is_truncated = 1;
                }
                drops.apply(hdr, meta);
            } else {
                recall();
            }
            queues.apply(hdr.frame.dscp, for_tm.qid);
            colours.apply(is_selective, hdr.frame.dscp, hdr.frame.ecn, for_tm.packet_color);
            lookup.apply(hdr, meta);
            if (meta.is_known == 1) {
                counted = hdr.sumac.job;
            }
            place.apply(hdr, meta);
#ifndef STATIC_ONLY
            if (meta.is_dynamic == 1) {
                find_shared_cell();
            } else {
                find_cell();
            }
#else
            find_cell();
#endif
#if BLOCKS > 1
            find_block();
#endif
            if (meta.is_first_pass == 1) {
                admission.apply(hdr, meta);
                to_sender();
                routes.apply();
            }
            envelope.apply(hdr, meta);
            content.apply(hdr, meta);
#if BOUNDS
            budget.apply(hdr, meta);
            left_out.apply(hdr, meta);
#endif
        } else {
            meta.reason = REASON_FOREIGN;
            own.apply(hdr, meta);
            foreign();
            if (hdr.ipv4.isValid()) {
                queues_of_others.apply(hdr.ipv4.dscp, for_tm.qid);
                colours_of_others.apply(is_selective, hdr.ipv4.dscp, hdr.ipv4.ecn, for_tm.packet_color);
            }
        }
        number_reason();
        if (meta.is_for_others == 1) {
            if (meta.has_port == 0) {
                hosts.apply(hdr, meta);
            }
        } else {
            strip();
            if (hdr.bridge.pass == PASS_SEND) {
                ways.apply(hdr, meta);
            } else if (hdr.bridge.pass != PASS_END && (meta.is_first_pass == 1
                // Else the job was removed, or began anew, between two passes: the slot may be another job's.
                || (meta.is_known == 1 && meta.is_placed == 1 && meta.other_epoch == 0))) {
                to_slots();
            }
        }
#ifndef DYNAMIC_ONLY
        if (IS_UNREPEATED(hdr.bridge.pass)) {
            for_tm.qid = UNREPEATED_QUEUE;
        }
#endif
        exits.apply();
        if ((meta.is_first_pass == 1 && meta.is_to_slots == 0) || meta.is_counted == 1) {
            COUNT(reasons, reason_index);
        }
    }
}

control FrontIngressDeparser(
    packet_out packet, inout headers_t hdr, in metadata_t meta, in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}

parser FrontEgressParser(
    packet_in packet, out headers_t hdr, out metadata_t meta, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        transition select(hdr.bridge.pass) {
            PASS_SEND : leaving;
            default : accept;
        }
    }
    state leaving {
        packet.extract(hdr.frame);
        packet.extract(hdr.sumac);
        transition accept;
    }
}

control FrontEgress(
    inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
    in egress_intrinsic_metadata_from_parser_t from_parser, inout egress_intrinsic_metadata_for_deparser_t for_deparser,
    inout egress_intrinsic_metadata_for_output_port_t for_port) {
    Leaving() leaving;
    bit<16> destination;
    bit<1> is_dropped;

    action rebuild() {
        hdr.ethernet.setValid();
        hdr.ethernet.ethertype = ETHERTYPE_IPV4;
        hdr.ipv4.setValid();
        hdr.ipv4.version_ihl = 0x45;
        hdr.ipv4.dscp = hdr.frame.dscp;
        hdr.ipv4.ecn = hdr.frame.ecn;
        hdr.ipv4.total_len = hdr.frame.total_len;
        hdr.ipv4.id = hdr.frame.id;
        hdr.ipv4.fragment = hdr.frame.fragment;
        hdr.ipv4.protocol = PROTOCOL_UDP;
        hdr.udp.setValid();
        hdr.udp.len = hdr.frame.total_len - 20;
        meta.shard = hdr.frame.shard;
        destination = hdr.bridge.destination;
    }
    action rebuild_tag() {
        hdr.vlan.setValid();
        hdr.vlan.tag = hdr.frame.tag;
        hdr.vlan.ethertype = ETHERTYPE_IPV4;
        hdr.ethernet.ethertype = ETHERTYPE_VLAN;
    }
    action finish() {
        hdr.bridge.setInvalid();
        hdr.frame.setInvalid();
    }

    apply {
        // Packets from the slots go on to the ingress.
        if (intrinsic.egress_port != FRONT_PORT) {
            if (hdr.frame.isValid()) {
                rebuild();
                if (hdr.frame.is_tagged == 1) {
                    rebuild_tag();
                }
                if (destination == DEST_ALL) {
                    destination = intrinsic.egress_rid;
                }
                leaving.apply(hdr, meta.shard, destination, is_dropped);
                if (is_dropped == 1) {
                    for_deparser.drop_ctl = 1;
                }
            }
            finish();
        }
    }
}

control FrontEgressDeparser(
    packet_out packet, inout headers_t hdr, in metadata_t meta, in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = checksum.update({
                hdr.ipv4.version_ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.fragment,
                hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            });
        }
        packet.emit(hdr);
    }
}
