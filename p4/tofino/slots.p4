// The pipe of the slots, whose ports are not used. The egress decides about a packet's slot; the packet recirculates, and the ingress
// applies the operation decided to the values.

#include "../common/pair.p4"
#include "../common/values.p4"
#ifndef DYNAMIC_ONLY
#include "../common/static.p4"
#endif
#ifndef STATIC_ONLY
#include "../common/dynamic.p4"
#endif

parser SlotsEgressParser(
    packet_in packet, out headers_t hdr, out metadata_t meta, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        packet.extract(hdr.context);
        meta.is_dynamic = hdr.context.is_dynamic[0:0];
        meta.is_child = hdr.context.is_child[0:0];
        meta.is_parents = hdr.context.is_parents[0:0];
        meta.is_first_chunk = hdr.context.is_first_chunk[0:0];
#ifndef STATIC_ONLY
        meta.is_root = hdr.context.is_root[0:0];
        meta.has_no_slot = hdr.context.has_no_slot[0:0];
#endif
#if BOUNDS
        meta.is_bounded = hdr.context.is_bounded[0:0];
#endif
        meta.slot = hdr.context.slot;
        meta.owner = hdr.context.owner;
        meta.number = hdr.context.number;
        meta.all = hdr.context.all;
        meta.bit_ = hdr.context.bit_;
        meta.parent = hdr.context.parent;
        meta.sender = hdr.context.sender;
        meta.rank = hdr.context.rank;
        meta.receiver = hdr.context.receiver;
#if BLOCKS > 1
        meta.place = hdr.context.place;
#else
        meta.place = hdr.bridge.cell;
#endif
        packet.extract(hdr.frame);
        packet.extract(hdr.sumac);
        transition accept;
    }
}

// Metadata that no table sets is 0.
@pa_auto_init_metadata
control SlotsEgress(
    inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
    in egress_intrinsic_metadata_from_parser_t from_parser, inout egress_intrinsic_metadata_for_deparser_t for_deparser,
    inout egress_intrinsic_metadata_for_output_port_t for_port) {
#ifndef DYNAMIC_ONLY
    Static() static_;
#endif
#ifndef STATIC_ONLY
    Dynamic() dynamic;
#endif
    // By job, worker and EVENT_*.
    COUNTER(worker_events, JOBS * 128)
    // By job and reason: what was decided.
    COUNTER(decided_reasons, JOBS * 64)

    action keep() {
        hdr.context.setInvalid();
        hdr.outcome.setValid();
        hdr.outcome.answer = meta.answer;
        hdr.outcome.flags = meta.flags;
        hdr.outcome.exponent = meta.exponent;
        hdr.outcome.next_exponent = meta.next_exponent;
        hdr.outcome.next_seq = meta.next_seq;
        hdr.outcome.tensor = meta.tensor;
#if BOUNDS
        hdr.outcome.missing = meta.missing;
#endif
#ifndef STATIC_ONLY
        hdr.outcome.is_second = 7w0 ++ meta.is_second;
        hdr.outcome.bitmap = meta.bitmap;
        hdr.outcome.received = meta.received;
#endif
    }
    apply {
        if (hdr.bridge.pass == PASS_NONE) {
            meta.is_first_pass = 1;
        }
#ifndef STATIC_ONLY
        meta.now = from_parser.global_tstamp[47:16];
#endif
#ifndef DYNAMIC_ONLY
#ifndef STATIC_ONLY
        if (meta.is_dynamic == 0) {
            static_.apply(hdr, meta);
        } else {
            dynamic.apply(hdr, meta);
        }
#else
        static_.apply(hdr, meta);
#endif
#else
        dynamic.apply(hdr, meta);
#endif
        if (hdr.bridge.pass == PASS_NONE) {
            hdr.bridge.pass = PASS_SEND;
        }
        keep();
        if ((meta.is_first_pass == 1 && meta.is_uncounted == 0) || meta.is_counted == 1) {
            COUNT(decided_reasons, hdr.sumac.job[9:0] ++ meta.reason);
        }
        if (meta.is_first_pass == 1) {
            if (meta.has_event == 1) {
                COUNT(worker_events, hdr.sumac.job[8:0] ++ meta.rank[4:0] ++ meta.event);
            }
        }
    }
}

control SlotsEgressDeparser(
    packet_out packet, inout headers_t hdr, in metadata_t meta, in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}

parser SlotsIngressParser(
    packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Payload() payload;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.bridge);
        packet.extract(hdr.outcome);
        packet.extract(hdr.frame);
        packet.extract(hdr.sumac);
        payload.apply(packet, hdr);
        transition accept;
    }
}

control SlotsIngress(
    inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
    in ingress_intrinsic_metadata_from_parser_t from_parser, inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
    inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    Values() values;
#if BLOCKS > 1
    NewBlock() new_block;
    BlockDone() block_done;
#endif

    // A frame that is shorter than its elements ends in the parser.
    apply {
#if BLOCKS > 1
        new_block.apply(hdr);
#endif
        values.apply(hdr);
#if BLOCKS > 1
        block_done.apply(hdr);
#endif
        if (hdr.bridge.pass == PASS_END) {
            for_deparser.drop_ctl = 1;
        } else {
            for_tm.ucast_egress_port = FRONT_PORT;
        }
#ifndef DYNAMIC_ONLY
        if (IS_UNREPEATED(hdr.bridge.pass)) {
            for_tm.qid = UNREPEATED_QUEUE;
        }
#endif
    }
}

control SlotsIngressDeparser(
    packet_out packet, inout headers_t hdr, in metadata_t meta, in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}
