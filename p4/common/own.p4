// Answers ARP and ICMP echo requests for addresses that are the switch's.

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;
const bit<8> ICMP_ECHO_REQUEST = 8;
const bit<8> ICMP_ECHO_REPLY = 0;

control Own(inout headers_t hdr, inout metadata_t meta) {
    bit<48> mac = 0;
    bit<32> ip;
    bit<1> is_own = 0;

    action set_own(bit<48> own_mac) {
        is_own = 1;
        mac = own_mac;
    }
    table own {
        key = { ip : exact @name("ip"); }
        actions = { set_own; @defaultonly NoAction; }
        default_action = NoAction;
        size = OWN_ADDRESSES;
    }

    action back() {
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        meta.has_port = 1;
        meta.port = meta.ingress_port;
        meta.reason = REASON_ANSWERED;
    }

    apply {
        ip = hdr.ipv4.dst;
        if (hdr.arp.isValid()) {
            ip = hdr.arp.target_ip;
        }
        own.apply();
        if (is_own == 1 && hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            back();
            hdr.arp.operation = ARP_REPLY;
            hdr.arp.target_mac = hdr.arp.sender_mac;
            hdr.arp.target_ip = hdr.arp.sender_ip;
            hdr.arp.sender_mac = mac;
            hdr.arp.sender_ip = ip;
        } else if (is_own == 1 && hdr.icmp.isValid() && hdr.icmp.kind == ICMP_ECHO_REQUEST) {
            back();
            hdr.icmp.kind = ICMP_ECHO_REPLY;
            // RFC 1624: the checksum of a word that fell by 8 * 256.
            hdr.icmp.checksum = hdr.icmp.checksum + 0x0800;
            if (hdr.icmp.checksum < 0x0800) {
                hdr.icmp.checksum = hdr.icmp.checksum + 1;
            }
            hdr.ipv4.dst = hdr.ipv4.src;
            hdr.ipv4.src = ip;
        }
    }
}
