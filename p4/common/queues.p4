// The queue of a packet that leaves, and whether it is dropped before others: wire/src/tos.rs has the rules, and a test of `sumac qos` compares.

// By its DSCP. All that is not Sumac's is in queue 0.
control Queues(in bit<6> dscp, inout queue_t queue) {
    action set_queue(queue_t number) {
        queue = number;
    }
    table queues {
        key = { dscp : ternary; }
        actions = { set_queue; }
        const default_action = set_queue(0);
        const entries = {
            // Control.
            48 : set_queue(6);
            // Classes of data: class selector, and AFx1 and AFx3 of the class that is the highest with them.
            40 : set_queue(5);
            34 : set_queue(5);
            38 : set_queue(5);
            32 : set_queue(4);
            26 : set_queue(4);
            30 : set_queue(4);
            24 : set_queue(3);
            16 : set_queue(2);
            18 : set_queue(2);
            22 : set_queue(2);
            8 : set_queue(1);
            10 : set_queue(1);
            14 : set_queue(1);
        }
    }

    apply {
        queues.apply();
    }
}
