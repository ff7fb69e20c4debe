// The number of a packet's last block of 64 elements (blocks.p4).

control LastBlock(inout headers_t hdr) {
    action set_last(bit<8> last) {
        hdr.bridge.last = last;
    }
    table last_blocks {
        key = { hdr.sumac.elements : ternary; }
        actions = { set_last; }
        const default_action = set_last(3);
        const entries = {
            0 &&& 0xffc0 : set_last(0);
            64 : set_last(0);
            64 &&& 0xffc0 : set_last(1);
            128 : set_last(1);
            128 &&& 0xffc0 : set_last(2);
            192 : set_last(2);
        }
    }

    apply {
        last_blocks.apply();
    }
}
