// The number of senders that are missing in a sum, by their bits. A switch has no instruction for that.
#ifndef CONTRIBUTORS_P4
#define CONTRIBUTORS_P4

#define BITS_4(ACTION, KEY, COUNT) \
    (KEY) : ACTION(COUNT); (KEY + 1) : ACTION(COUNT + 1); (KEY + 2) : ACTION(COUNT + 1); (KEY + 3) : ACTION(COUNT + 2);
#define BITS_16(ACTION, KEY, COUNT) \
    BITS_4(ACTION, KEY, COUNT) BITS_4(ACTION, KEY + 4, COUNT + 1) BITS_4(ACTION, KEY + 8, COUNT + 1) BITS_4(ACTION, KEY + 12, COUNT + 2)
#define BITS_64(ACTION, KEY, COUNT) \
    BITS_16(ACTION, KEY, COUNT) BITS_16(ACTION, KEY + 16, COUNT + 1) \
    BITS_16(ACTION, KEY + 32, COUNT + 1) BITS_16(ACTION, KEY + 48, COUNT + 2)
#define BITS_256(ACTION) \
    BITS_64(ACTION, 0, 0) BITS_64(ACTION, 64, 1) BITS_64(ACTION, 128, 1) BITS_64(ACTION, 192, 2)

control CountMissing(in bit<32> senders, inout bit<16> count) {
    bit<16> second = 0;
    bit<16> third = 0;
    bit<16> fourth = 0;

    action set_first(bit<16> bits) {
        count = bits;
    }
    action set_second(bit<16> bits) {
        second = bits;
    }
    action set_third(bit<16> bits) {
        third = bits;
    }
    action set_fourth(bit<16> bits) {
        fourth = bits;
    }
    table first_bits {
        key = { senders[7:0] : exact; }
        actions = { set_first; }
        const default_action = set_first(0);
        const entries = { BITS_256(set_first) }
    }
    table second_bits {
        key = { senders[15:8] : exact; }
        actions = { set_second; }
        const default_action = set_second(0);
        const entries = { BITS_256(set_second) }
    }
    table third_bits {
        key = { senders[23:16] : exact; }
        actions = { set_third; }
        const default_action = set_third(0);
        const entries = { BITS_256(set_third) }
    }
    table fourth_bits {
        key = { senders[31:24] : exact; }
        actions = { set_fourth; }
        const default_action = set_fourth(0);
        const entries = { BITS_256(set_fourth) }
    }
    action add_pairs() {
        count = count + second;
        third = third + fourth;
    }
    action add_halves() {
        count = count + third;
    }

    apply {
        first_bits.apply();
        second_bits.apply();
        third_bits.apply();
        fourth_bits.apply();
        add_pairs();
        add_halves();
    }
}

#endif
