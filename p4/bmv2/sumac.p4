// The aggregator for the behavioural model (v1model): headers, parser and controls are those of the Tofino program.

#include <core.p4>
#include <v1model.p4>
#include "arch.p4"
#include "../common/sizes.p4"
#include "../common/headers.p4"
#include "../common/metadata.p4"

// A flush asks for its budget in a pass of its own, which only looks at the slot.
#define ASKS(PASS) (PASS == PASS_GRANT || PASS == PASS_GRANT_HELD)

#include "../common/parser.p4"
#include "../common/ingress.p4"
#include "../common/pair.p4"
#include "../common/values.p4"
#include "../common/egress.p4"
#include "../common/queues.p4"

// Not a port: packets that are to recirculate are queued for it, and never leave.
const bit<9> RECIRCULATION_PORT = 510;
// standard_metadata.instance_type of a packet that has recirculated.
const bit<32> IS_RECIRCULATED = 4;

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Headers() headers;

    state start {
        transition select(standard_metadata.instance_type) {
            IS_RECIRCULATED : again;
            default : arrival;
        }
    }
    state again {
        packet.extract(hdr.bridge);
        transition frame;
    }
    state arrival {
        hdr.bridge.setValid();
        hdr.bridge.pass = PASS_NONE;
        hdr.bridge.operation = OPERATION_NONE;
        hdr.bridge.cell = 0;
        hdr.bridge.destination = 0;
#if BLOCKS > 1
        hdr.bridge.block = BLOCK_ALL;
        hdr.bridge.number = 0;
        hdr.bridge.last = 0;
        hdr.bridge.then = PASS_NONE;
#endif
        transition frame;
    }
    state frame {
        headers.apply(packet, hdr, meta);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Aggregator() aggregator;
    Values() values;
    Queues() queues;
#if BLOCKS > 1
    NewBlock() new_block;
    BlockDone() block_done;
    bit<32> frame_len;
#endif

    apply {
        meta.ingress_port = standard_metadata.ingress_port;
        meta.now = standard_metadata.ingress_global_timestamp[37:6];
        if (standard_metadata.parser_error != error.NoError) {
            meta.is_truncated = 1;
        }
#if BLOCKS > 1
        // The parser looks at the first block.
        frame_len = (bit<32>) hdr.ipv4.total_len + 14;
        if (hdr.vlan.isValid()) {
            frame_len = frame_len + 4;
        }
        if (hdr.ipv4.isValid() && standard_metadata.packet_length < frame_len) {
            meta.is_truncated = 1;
        }
#endif
        aggregator.apply(hdr, meta);
        // No queue between the decision and the values: what one has counted the other must hold.
        if (hdr.bridge.operation != OPERATION_NONE) {
#if BLOCKS > 1
            new_block.apply(hdr);
#endif
            values.apply(hdr);
        }
#if BLOCKS > 1
        block_done.apply(hdr);
#endif
        // The model has no colours.
        if (hdr.ipv4.isValid()) {
            queues.apply(hdr.ipv4.dscp, standard_metadata.priority);
        }
        if (meta.has_port == 1) {
            standard_metadata.egress_spec = meta.port;
        } else if (hdr.bridge.pass != PASS_NONE && hdr.bridge.pass != PASS_END) {
            standard_metadata.egress_spec = RECIRCULATION_PORT;
            standard_metadata.priority = 0;
        } else if (meta.group != 0) {
            standard_metadata.mcast_grp = meta.group;
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Leaving() leaving;
    bit<16> destination;
    bit<1> is_dropped = 0;

    apply {
        if (standard_metadata.egress_port == RECIRCULATION_PORT) {
            recirculate_preserving_field_list(0);
        } else {
            if (hdr.bridge.pass == PASS_NONE && meta.is_ours == 1) {
                destination = hdr.bridge.destination;
                if (destination == DEST_ALL) {
                    destination = standard_metadata.egress_rid;
                }
                leaving.apply(hdr, meta.shard, destination, is_dropped);
                if (is_dropped == 1) {
                    mark_to_drop(standard_metadata);
                }
            }
            hdr.bridge.setInvalid();
        }
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.ipv4.isValid() && meta.is_ours == 1,
            {
                hdr.ipv4.version_ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.fragment,
                hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst
            },
            hdr.ipv4.checksum,
            HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Parse(), Verify(), SwitchIngress(), SwitchEgress(), Compute(), Deparse()) main;
