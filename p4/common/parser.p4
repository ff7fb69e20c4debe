// The elements behind the Sumac header: the headers of their number's binary digits, the largest first; of 64 and more all headers.
parser Payload(packet_in packet, inout headers_t hdr) {
    state start {
#if BLOCKS > 1
        transition select(hdr.bridge.block, hdr.sumac.elements) {
            (BLOCK_ALL, 0 &&& 0xffc0) : digit_32;
            (BLOCK_LAST, 0 &&& 0x003f) : all;
            (BLOCK_LAST, _) : digit_32;
            (BLOCK_FULL_NEW, _) : accept;
            (BLOCK_LAST_NEW, _) : accept;
            (BLOCK_NONE, _) : accept;
            default : all;
        }
#else
        transition select(hdr.sumac.elements) {
            0 &&& 0xffc0 : digit_32;
            default : all;
        }
#endif
    }
    state all {
        packet.extract(hdr.values_32);
        packet.extract(hdr.values_16);
        packet.extract(hdr.values_8);
        packet.extract(hdr.values_4);
        packet.extract(hdr.values_2);
        packet.extract(hdr.values_1);
        packet.extract(hdr.values_last);
        transition accept;
    }
    state digit_32 {
        transition select(hdr.sumac.elements) {
            32 &&& 32 : take_32;
            default : digit_16;
        }
    }
    state take_32 {
        packet.extract(hdr.values_32);
        transition digit_16;
    }
    state digit_16 {
        transition select(hdr.sumac.elements) {
            16 &&& 16 : take_16;
            default : digit_8;
        }
    }
    state take_16 {
        packet.extract(hdr.values_16);
        transition digit_8;
    }
    state digit_8 {
        transition select(hdr.sumac.elements) {
            8 &&& 8 : take_8;
            default : digit_4;
        }
    }
    state take_8 {
        packet.extract(hdr.values_8);
        transition digit_4;
    }
    state digit_4 {
        transition select(hdr.sumac.elements) {
            4 &&& 4 : take_4;
            default : digit_2;
        }
    }
    state take_4 {
        packet.extract(hdr.values_4);
        transition digit_2;
    }
    state digit_2 {
        transition select(hdr.sumac.elements) {
            2 &&& 2 : take_2;
            default : digit_1;
        }
    }
    state take_2 {
        packet.extract(hdr.values_2);
        transition digit_1;
    }
    state digit_1 {
        transition select(hdr.sumac.elements) {
            1 &&& 1 : take_1;
            default : accept;
        }
    }
    state take_1 {
        packet.extract(hdr.values_1);
        transition accept;
    }
}

// Finds a Sumac packet in a frame (wire/src/frame.rs): Ethernet, at most one 802.1Q tag, IPv4 without options, UDP to one of the
// aggregator's ports; and ARP and ICMP, which are answered for the switch's own addresses. Everything else is somebody else's.

parser Headers(packet_in packet, inout headers_t hdr, inout metadata_t meta) {
#ifndef WITHOUT_PAYLOAD
    Payload() payload;

#endif
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4 : ipv4;
            ETHERTYPE_ARP : arp;
            ETHERTYPE_VLAN : vlan;
            default : accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ethertype) {
            ETHERTYPE_IPV4 : ipv4;
            ETHERTYPE_ARP : arp;
            default : accept;
        }
    }
    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        // Without options; no later fragment, which has no ports.
        transition select(hdr.ipv4.version_ihl, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (0x45, 0x0000 &&& 0x1fff, PROTOCOL_UDP) : udp;
            (0x45, 0x0000 &&& 0x1fff, PROTOCOL_ICMP) : icmp;
            default : accept;
        }
    }
    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            BASE_PORT &&& PORT_MASK : ours;
            default : accept;
        }
    }
    state ours {
        meta.is_ours = 1;
        meta.version = packet.lookahead<bit<4>>();
        packet.extract(hdr.sumac);
#ifndef WITHOUT_PAYLOAD
        payload.apply(packet, hdr);
#endif
        transition accept;
    }
}
