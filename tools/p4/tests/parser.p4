// A small program with every kind of select, for the tests of tools/p4.
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

header ethernet_t { bit<48> dst; bit<48> src; bit<16> ethertype; }
header arp_t { bit<32> kinds; bit<16> lengths; bit<16> operation; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> len; bit<16> id; bit<16> fragment; bit<8> ttl; bit<8> protocol;
    bit<16> checksum; bit<32> src; bit<32> dst;
}
header udp_t { bit<16> src; bit<16> dst; bit<16> len; bit<16> checksum; }
header sumac_t { bit<8> version; bit<8> kind; bit<16> job; bit<32> slot; bit<32> value; }
struct headers_t { ethernet_t ethernet; arp_t arp; ipv4_t ipv4; udp_t udp; sumac_t sumac; }
struct metadata_t { bit<8> reason; }

parser IngressParser(packet_in packet, out headers_t h, out metadata_t m, out ingress_intrinsic_metadata_t ig) {
    state start {
        m.reason = 0;
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(h.ethernet);
        transition select(h.ethernet.ethertype) { 0x0800: ipv4; 0x0806: arp; default: accept; }
    }
    state arp { packet.extract(h.arp); transition accept; }
    state ipv4 {
        packet.extract(h.ipv4);
        // A mask, and fields that are no whole bytes.
        transition select(h.ipv4.version, h.ipv4.ihl, h.ipv4.fragment, h.ipv4.protocol) {
            (4, 5, 0 &&& 0x3fff, 17): udp;
            default: accept;
        }
    }
    state udp { packet.extract(h.udp); transition select(h.udp.dst) { 48700 &&& 0xfffe: sumac; default: accept; } }
    state sumac {
        packet.extract(h.sumac);
        // A range, which becomes two patterns.
        transition select(h.sumac.version, h.sumac.kind) { (7, 1): one; (7, 3..5): three; (7, _): other; default: accept; }
    }
    state one { m.reason = 1; transition accept; }
    state three { m.reason = 3; transition accept; }
    state other { m.reason = 7; transition accept; }
}

control Ingress(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t ig,
        in ingress_intrinsic_metadata_from_parser_t from_parser, inout ingress_intrinsic_metadata_for_deparser_t deparser,
        inout ingress_intrinsic_metadata_for_tm_t tm) {
    Register<bit<32>, bit<16>>(4096, 0) values;
    RegisterAction<bit<32>, bit<16>, bit<32>>(values) add = {
        void apply(inout bit<32> value, out bit<32> sum) { value = value + h.sumac.value; sum = value; }
    };
    action forward(PortId_t port) { tm.ucast_egress_port = port; }
    action drop() { deparser.drop_ctl = 1; }
    table hosts { key = { h.ethernet.dst: exact; } actions = { forward; drop; } size = 1024; default_action = drop(); }
    table jobs { key = { h.sumac.job: ternary; m.reason: ternary; } actions = { drop; NoAction; } size = 512; default_action = NoAction(); }
    apply {
        hosts.apply();
        if (h.sumac.isValid()) {
            jobs.apply();
            h.sumac.value = add.execute(h.sumac.slot[15:0]);
        }
    }
}

control IngressDeparser(packet_out packet, inout headers_t h, in metadata_t m, in ingress_intrinsic_metadata_for_deparser_t deparser) {
    apply { packet.emit(h); }
}

struct no_headers_t {}
struct no_metadata_t {}

parser EgressParser(packet_in packet, out no_headers_t h, out no_metadata_t m, out egress_intrinsic_metadata_t eg) {
    state start { packet.extract(eg); transition accept; }
}

control Egress(inout no_headers_t h, inout no_metadata_t m, in egress_intrinsic_metadata_t eg,
        in egress_intrinsic_metadata_from_parser_t from_parser, inout egress_intrinsic_metadata_for_deparser_t deparser,
        inout egress_intrinsic_metadata_for_output_port_t port) {
    apply {}
}

control EgressDeparser(packet_out packet, inout no_headers_t h, in no_metadata_t m, in egress_intrinsic_metadata_for_deparser_t deparser) {
    apply { packet.emit(h); }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
