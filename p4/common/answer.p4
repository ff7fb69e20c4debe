// Makes a packet the answer to itself: wire/src/slot/answer.rs and wire/src/dynamic/mod.rs. What is not written stays as its sender wrote
// it. Addresses are the egress's (addresses.p4).

// From whom to whom: the fields in which all answers of one direction differ from their request.
control Envelope(inout headers_t hdr, inout metadata_t meta) {
    action to_workers() {
        hdr.sumac.kind = KIND_RESULT;
        hdr.sumac.token = meta.result_token;
        hdr.sumac.contributors = meta.contributors;
        hdr.sumac.fan_in_0 = meta.world;
        hdr.sumac.bitmap_0 = meta.all;
        hdr.sumac.bitmap_1 = 0;
        hdr.sumac.level = 0;
    }
    // The answer to a query keeps the bit of the worker that asked.
    action to_one_worker() {
        hdr.sumac.kind = KIND_RESULT;
        hdr.sumac.token = meta.result_token;
        hdr.sumac.contributors = meta.contributors;
        hdr.sumac.fan_in_0 = meta.world;
        hdr.sumac.bitmap_1 = 0;
        hdr.sumac.level = 0;
    }
    action to_racks() {
        hdr.sumac.kind = KIND_RESULT;
        hdr.sumac.token = meta.result_token;
        hdr.sumac.contributors = meta.contributors;
        hdr.sumac.bitmap_1 = meta.all;
        hdr.sumac.level = 1;
    }
    action to_root() {
        hdr.sumac.kind = KIND_CONTRIBUTION;
        hdr.sumac.fan_in_1 = meta.racks;
        hdr.sumac.bitmap_0 = meta.all;
        hdr.sumac.bitmap_1 = meta.rack_bit;
        hdr.sumac.level = 1;
    }
    action query_to_root() {
        hdr.sumac.kind = KIND_CONTRIBUTION;
        hdr.sumac.fan_in_1 = meta.racks;
        hdr.sumac.bitmap_1 = meta.rack_bit;
        hdr.sumac.level = 1;
    }
    action report() {
        hdr.sumac.kind = KIND_REPORT;
        hdr.sumac.token = meta.result_token;
    }
    // Of a dynamic job, towards its parameter host.
    action up() {
        hdr.sumac.level = 1;
    }
    // Of a dynamic job, from its parameter host to one worker.
    action down() {
        hdr.sumac.level = 0;
    }
    table envelopes {
        key = { meta.answer : exact; meta.is_root : ternary; meta.is_dynamic : ternary; }
        actions = { to_workers; to_one_worker; to_racks; to_root; query_to_root; report; up; down; NoAction; }
        const default_action = NoAction;
        const entries = {
            (ANSWER_RESULT, 0, _) : to_workers();
            (ANSWER_RESULT, 1, _) : to_racks();
            (ANSWER_AGREED, 0, _) : to_workers();
            (ANSWER_AGREED, 1, _) : to_racks();
            (ANSWER_REFUSAL, 0, _) : to_workers();
            (ANSWER_REFUSAL, 1, _) : to_racks();
            (ANSWER_WANTED, 0, _) : to_one_worker();
            (ANSWER_WANTED, 1, _) : to_racks();
            (ANSWER_QUESTION, _, _) : query_to_root();
            (ANSWER_PART, _, _) : to_root();
            (ANSWER_PART_OF_ROUND, _, _) : to_root();
            (ANSWER_REPORT, _, 0) : report();
            (ANSWER_REPORT, _, 1) : down();
            (ANSWER_UNKNOWN_JOB, _, _) : report();
            (ANSWER_PASSED, _, _) : up();
            (ANSWER_COLLIDED, _, _) : up();
            (ANSWER_SUM, _, _) : up();
            (ANSWER_FLUSHED, _, _) : up();
        }
    }

    apply {
        envelopes.apply();
    }
}

// The fields of each kind of answer.
control Content(inout headers_t hdr, inout metadata_t meta) {
    bit<1> has_flags = 0;

    action result() {
        has_flags = 1;
        hdr.sumac.flag_reserved = 0;
        hdr.sumac.empty = 0;
        hdr.sumac.unknown_job = 0;
        hdr.sumac.query = 0;
        hdr.sumac.mismatch = 0;
        hdr.sumac.exponent_round = 0;
        hdr.sumac.maximum = 0;
        hdr.sumac.raw_float = 0;
        hdr.sumac.partial = 0;
        hdr.sumac.collision = 0;
        hdr.sumac.resend = 0;
        hdr.sumac.next_seq = meta.next_seq;
        hdr.sumac.next_exponent = meta.next_exponent;
    }
    // Flags of an answer without values.
    action clear_flags() {
        hdr.sumac.flag_reserved = 0;
        hdr.sumac.empty = 0;
        hdr.sumac.unknown_job = 0;
        hdr.sumac.not_finite = 0;
        hdr.sumac.maximum = 0;
        hdr.sumac.raw_float = 0;
        hdr.sumac.partial = 0;
        hdr.sumac.overflow = 0;
        hdr.sumac.collision = 0;
        hdr.sumac.resend = 0;
    }
    action agreed() {
        has_flags = 1;
        clear_flags();
        hdr.sumac.query = 0;
        hdr.sumac.mismatch = 0;
        hdr.sumac.exponent_round = 1;
        hdr.sumac.exponent = meta.exponent;
    }
    action refusal() {
        clear_flags();
        hdr.sumac.ecn_echo = 0;
        hdr.sumac.mismatch = 1;
        hdr.sumac.tensor = meta.tensor;
    }
    action wanted() {
        clear_flags();
        hdr.sumac.ecn_echo = 0;
        hdr.sumac.query = 1;
        hdr.sumac.mismatch = 0;
        hdr.sumac.exponent_round = 0;
    }
    // Flags of what goes up to a root, which keeps `resend` and `maximum`.
    action clear_flags_up() {
        hdr.sumac.flag_reserved = 0;
        hdr.sumac.empty = 0;
        hdr.sumac.unknown_job = 0;
        hdr.sumac.mismatch = 0;
        hdr.sumac.raw_float = 0;
        hdr.sumac.partial = 0;
        hdr.sumac.collision = 0;
    }
    action question() {
        clear_flags_up();
        hdr.sumac.query = 1;
        hdr.sumac.exponent_round = 0;
        hdr.sumac.overflow = 0;
        hdr.sumac.ecn_echo = 0;
        hdr.sumac.not_finite = 0;
    }
    action part() {
        has_flags = 1;
        clear_flags_up();
        hdr.sumac.query = 0;
        hdr.sumac.exponent_round = 0;
        hdr.sumac.next_exponent = meta.next_exponent;
    }
    action part_of_round() {
        has_flags = 1;
        clear_flags_up();
        hdr.sumac.query = 0;
        hdr.sumac.exponent_round = 1;
        hdr.sumac.overflow = 0;
        hdr.sumac.not_finite = 0;
        hdr.sumac.next_exponent = meta.exponent;
    }
    action unknown_job() {
        clear_flags();
        hdr.sumac.query = 0;
        hdr.sumac.mismatch = 0;
        hdr.sumac.exponent_round = 0;
        hdr.sumac.ecn_echo = 0;
        hdr.sumac.pool_version = 0;
        hdr.sumac.unknown_job = 1;
    }
#ifndef STATIC_ONLY
    action collided() {
        hdr.sumac.resend = 1;
        hdr.sumac.collision = 1;
    }
    action sum() {
        has_flags = 1;
        hdr.sumac.next_exponent = meta.next_exponent;
        hdr.sumac.received = meta.received;
    }
    action flushed() {
        sum();
        hdr.sumac.resend = 1;
    }
#endif
    table contents {
        key = { meta.answer : exact; }
        actions = {
            result; agreed; refusal; wanted; question; part; part_of_round; unknown_job; NoAction;
#ifndef STATIC_ONLY
            collided; sum; flushed;
#endif
        }
        const default_action = NoAction;
        const entries = {
            ANSWER_RESULT : result();
            ANSWER_AGREED : agreed();
            ANSWER_REFUSAL : refusal();
            ANSWER_WANTED : wanted();
            ANSWER_QUESTION : question();
            ANSWER_PART : part();
            ANSWER_PART_OF_ROUND : part_of_round();
            ANSWER_UNKNOWN_JOB : unknown_job();
#ifndef STATIC_ONLY
            ANSWER_COLLIDED : collided();
            ANSWER_SUM : sum();
            ANSWER_FLUSHED : flushed();
#endif
        }
    }

    action merge_flags(bit<1> overflow, bit<1> ecn_echo, bit<1> not_finite) {
        hdr.sumac.overflow = overflow;
        hdr.sumac.ecn_echo = ecn_echo;
        hdr.sumac.not_finite = not_finite;
    }
    // The flags that a slot merges. A round has the ECN echo only.
    table merged {
        key = { meta.answer : ternary; meta.flags : ternary; }
        actions = { merge_flags; }
        const default_action = merge_flags(0, 0, 0);
        const entries = {
            (ANSWER_AGREED, 4 &&& 4) : merge_flags(0, 1, 0);
            (ANSWER_AGREED, _) : merge_flags(0, 0, 0);
            (ANSWER_PART_OF_ROUND, 4 &&& 4) : merge_flags(0, 1, 0);
            (ANSWER_PART_OF_ROUND, _) : merge_flags(0, 0, 0);
            (_, 2) : merge_flags(0, 0, 1);
            (_, 4) : merge_flags(0, 1, 0);
            (_, 6) : merge_flags(0, 1, 1);
            (_, 8) : merge_flags(1, 0, 0);
            (_, 10) : merge_flags(1, 0, 1);
            (_, 12) : merge_flags(1, 1, 0);
            (_, 14) : merge_flags(1, 1, 1);
        }
    }

    apply {
        contents.apply();
        if (has_flags == 1) {
            merged.apply();
        }
#ifndef STATIC_ONLY
        // The bits of those whose values the sum of a dynamic job holds.
        if (meta.answer == ANSWER_SUM || meta.answer == ANSWER_FLUSHED) {
            if (meta.is_second == 1) {
                hdr.sumac.bitmap_1 = meta.bitmap;
            } else {
                hdr.sumac.bitmap_0 = meta.bitmap;
            }
        }
#endif
    }
}
