// Selective dropping (MLT, section 4.2.2): the traffic manager drops red packets from a threshold of their queue on.

const bit<2> GREEN = 0;
const bit<2> RED = 3;

// Whether packets have colours. Not by default: a traffic manager whose thresholds nobody has set drops red packets early.
control Selective(out bit<1> is_selective) {
    action on() {
        is_selective = 1;
    }
    action off() {
        is_selective = 0;
    }
    table selective {
        actions = { on; off; }
        default_action = off();
        size = 1;
    }

    apply {
        selective.apply();
    }
}

// Red are packets of data that are not important: of an AF class those with drop precedence 3, of the others those that are not ECN-capable.
control Colours(in bit<1> is_selective, in bit<6> dscp, in bit<2> ecn, inout bit<2> colour) {
    action set_colour(bit<2> value) {
        colour = value;
    }
    table colours {
        key = { is_selective : ternary; dscp : ternary; ecn : ternary; }
        actions = { set_colour; }
        const default_action = set_colour(GREEN);
        const entries = {
            (0, _, _) : set_colour(GREEN);
            (_, 48, _) : set_colour(GREEN);
            (_, 10, _) : set_colour(GREEN);
            (_, 18, _) : set_colour(GREEN);
            (_, 26, _) : set_colour(GREEN);
            (_, 34, _) : set_colour(GREEN);
            (_, 14, _) : set_colour(RED);
            (_, 22, _) : set_colour(RED);
            (_, 30, _) : set_colour(RED);
            (_, 38, _) : set_colour(RED);
            (_, _, 0) : set_colour(RED);
        }
    }

    apply {
        colours.apply();
    }
}
