// The first reason against a packet, if there is one: the checks of wire/src/frame.rs, header.rs and admit.rs.
// Three tables, independent of each other, for the form, the sender and the request; the first that objects counts. The first entry of
// a table that matches counts: an entry with a requirement less than the one above says what follows when it is not met.

control Admission(inout headers_t hdr, inout metadata_t meta) {
    bit<1> is_bad_form = 0;
    bit<1> is_stranger = 0;
    bit<1> is_bad_request = 0;
    bit<6> form = 0;
    bit<6> stranger = 0;
    bit<6> request = 0;

    action bad_form(bit<6> reason) {
        is_bad_form = 1;
        form = reason;
    }
    table forms {
        key = {
            hdr.ipv4.fragment : ternary;
            meta.ip_excess : ternary;
            meta.too_short : ternary;
            meta.payload_excess : ternary;
            meta.is_truncated : ternary;
            hdr.sumac.isValid() : ternary;
            meta.version : ternary;
            hdr.sumac.kind : ternary;
            hdr.sumac.format : ternary;
            meta.is_known : ternary;
        }
        actions = { bad_form; NoAction; }
        const default_action = bad_form(REASON_BAD_LENGTH);
        const entries = {
            // fragment         ip short payload cut sumac version kind        format    known
            (0x2000 &&& 0x2000, _, _,    _,      _,  _,    _,      _,          _,        _) : bad_form(REASON_FRAGMENT);
            (_,                 0, 0,    0,      1,  true, _,      _,          _,        _) : bad_form(REASON_TRUNCATED);
            (_,                 0, 0,    _,      _, false, _,      _,          _,        _) : bad_form(REASON_TRUNCATED);
            (_,                 0, 0,    0,      _,  true, 3,      1,          0 &&& 0xfe, 1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      1,          2,        1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      2 &&& 0xe,  0 &&& 0xfe, 1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      2 &&& 0xe,  2,        1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      4 &&& 0xe,  0 &&& 0xfe, 1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      4 &&& 0xe,  2,        1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      7,          0 &&& 0xfe, 1) : NoAction();
            (_,                 0, 0,    0,      _,  true, 3,      7,          2,        1) : NoAction();
            (_,                 0, 0,    _,      _,  true, 3,      0,          _,        _) : bad_form(REASON_BAD_TYPE);
            (_,                 0, 0,    _,      _,  true, 3,      6,          _,        _) : bad_form(REASON_BAD_TYPE);
            (_,                 0, 0,    _,      _,  true, 3,      8 &&& 8,    _,        _) : bad_form(REASON_BAD_TYPE);
            (_,                 0, 0,    0,      _,  true, 3,      _,          0 &&& 0xfe, _) : bad_form(REASON_UNKNOWN_JOB);
            (_,                 0, 0,    0,      _,  true, 3,      _,          2,        _) : bad_form(REASON_UNKNOWN_JOB);
            (_,                 0, 0,    _,      _,  true, 3,      _,          0 &&& 0xfe, _) : bad_form(REASON_BAD_LENGTH);
            (_,                 0, 0,    _,      _,  true, 3,      _,          2,        _) : bad_form(REASON_BAD_LENGTH);
            (_,                 0, 0,    _,      _,  true, 3,      _,          _,        _) : bad_form(REASON_BAD_FORMAT);
            (_,                 0, _,    _,      _,  _,    3,      _,          _,        _) : bad_form(REASON_BAD_LENGTH);
            (_,                 0, _,    _,      _,  _,    _,      _,          _,        _) : bad_form(REASON_BAD_VERSION);
        }
    }

    action member() {}
    action from_parents() {
        meta.is_parents = 1;
    }
    action former_member() {
        meta.is_told = 1;
    }
    action refuse_sender(bit<6> reason) {
        is_stranger = 1;
        stranger = reason;
    }
    table identities {
        key = {
            meta.is_former : ternary;
            meta.is_dynamic : ternary;
            meta.is_child : ternary;
            hdr.sumac.kind : ternary;
            hdr.sumac.level : ternary;
            meta.has_token : ternary;
            meta.has_result_token : ternary;
            meta.other_epoch : ternary;
            meta.is_sender : ternary;
            meta.is_bound : ternary;
            meta.is_side : ternary;
            meta.is_parent_source : ternary;
            meta.is_uplink : ternary;
            meta.is_past : ternary;
        }
        actions = { member; from_parents; former_member; refuse_sender; }
        const default_action = refuse_sender(REASON_BAD_TOKEN);
        const entries = {
            // Former members.
            // former dyn child kind level token result epoch sender bound side psource uplink past
            (1, _, _, 1, _, 1, _, 0, 1, 1, 1, _, _, _) : former_member();
            (1, _, _, 3, _, 1, _, 0, 1, 1, 1, _, _, _) : former_member();
            // Static: the root's packets to a rack.
            (0, 0, 1, _, 1, _, 1, 0, _, _, _, 1, _, _) : from_parents();
            (0, 0, 1, _, 1, _, 1, 0, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_SOURCE);
            (0, 0, 1, _, 1, _, 1, _, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_EPOCH);
            (0, 0, 1, _, 1, _, _, _, _, _, _, _, _, _) : refuse_sender(REASON_BAD_TOKEN);
            // Dynamic: results and reports. A parameter host may have a worker's address.
            (0, 1, 1, 2, _, _, _, _, _, _, _, _, 0, _) : refuse_sender(REASON_FOREIGN);
            (0, 1, 1, 4, _, _, _, _, _, _, _, _, 0, _) : refuse_sender(REASON_FOREIGN);
            (0, 1, _, 2, _, _, _, _, _, _, _, 1, 0, _) : refuse_sender(REASON_FOREIGN);
            (0, 1, _, 4, _, _, _, _, _, _, _, 1, 0, _) : refuse_sender(REASON_FOREIGN);
            (0, 1, _, 2, _, _, 1, 0, _, _, _, 1, _, _) : from_parents();
            (0, 1, _, 4, _, _, 1, 0, _, _, _, 1, _, _) : from_parents();
            (0, 1, _, 2, _, _, 1, 0, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_SOURCE);
            (0, 1, _, 4, _, _, 1, 0, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_SOURCE);
            (0, 1, _, 2, _, _, 1, _, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_EPOCH);
            (0, 1, _, 4, _, _, 1, _, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_EPOCH);
            (0, 1, _, 2, _, _, _, _, _, _, _, _, _, _) : refuse_sender(REASON_BAD_TOKEN);
            (0, 1, _, 4, _, _, _, _, _, _, _, _, _, _) : refuse_sender(REASON_BAD_TOKEN);
            // Workers, and racks at the root.
            (0, _, _, _, _, 1, _, 0, 1, 1, 1, _, _, _) : member();
            (0, _, _, _, _, 1, _, 0, 1, 1, _, _, _, _) : refuse_sender(REASON_FOREIGN);
            (0, _, _, _, _, 1, _, 0, 1, _, _, _, _, _) : refuse_sender(REASON_WRONG_SOURCE);
            // To the parameter host past the aggregator.
            (0, 1, _, _, _, _, _, _, _, _, _, _, _, 1) : refuse_sender(REASON_FOREIGN);
            (0, _, _, _, _, 1, _, 0, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_WORKER);
            (0, _, _, _, _, 1, _, _, _, _, _, _, _, _) : refuse_sender(REASON_WRONG_EPOCH);
        }
    }

    action bad_request(bit<6> reason) {
        is_bad_request = 1;
        request = reason;
    }
    table requests {
        key = {
            meta.is_dynamic : ternary;
            meta.is_child : ternary;
            meta.is_root : ternary;
            hdr.sumac.kind : ternary;
            hdr.sumac.level : ternary;
            hdr.sumac.exponent_round : ternary;
            hdr.sumac.query : ternary;
            hdr.sumac.mismatch : ternary;
            hdr.sumac.partial : ternary;
            hdr.sumac.resend : ternary;
            hdr.sumac.maximum : ternary;
            hdr.sumac.raw_float : ternary;
            meta.is_placed : ternary;
            meta.has_no_slot : ternary;
            hdr.sumac.elements : ternary;
            meta.too_long : ternary;
            hdr.sumac.bitmap_0 : ternary;
            meta.receiver : ternary;
            meta.ahead : ternary;
        }
        actions = { bad_request; NoAction; }
        const default_action = bad_request(REASON_BAD_TYPE);
        const entries = {
            // Static: the root's results.
            // dyn child root kind level exp query mism part resend max raw placed none elements long bitmap_0 receiver ahead
            (0, 1, _, 2, 1, _, _, _, _, _, _, _, 0, _, _, _, _, _, _) : bad_request(REASON_WRONG_SLOT);
            (0, 1, _, 2, 1, 0, 0, _, _, _, _, _, _, _, 0, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (0, 1, _, 2, 1, 0, 0, _, _, _, _, _, _, _, _, 0, _, _, _) : NoAction();
            (0, 1, _, 2, 1, 0, 0, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (0, 1, _, 2, 1, _, 1, _, _, _, _, _, _, _, 0, _, _, 0, _) : bad_request(REASON_WRONG_WORKER);
            (0, 1, _, 2, 1, _, _, _, _, _, _, _, _, _, 0, _, _, _, _) : NoAction();
            (0, 1, _, 2, 1, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (0, 1, _, _, 1, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            // Dynamic: reports and results.
            (1, _, _, 4, _, _, _, _, _, _, _, _, _, _, _, 0, _, 0, _) : bad_request(REASON_WRONG_WORKER);
            (1, _, _, 4, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _) : NoAction();
            (1, _, _, 4, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (1, _, _, 2, _, _, _, _, _, _, _, _, 1, _, _, 0, _, _, _) : NoAction();
            (1, _, _, 2, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _) : bad_request(REASON_WRONG_SLOT);
            (1, _, _, 2, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            // Probes.
            (_, _, _, 3, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _) : NoAction();
            (_, _, _, 3, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            // Contributions to any job.
            (_, _, _, 1, _, _, _, 1, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (_, _, _, 1, _, _, _, _, 1, _, 1, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            // Dynamic ones.
            (1, _, _, 1, _, 1, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (1, _, _, 1, _, _, 1, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (1, _, _, 1, _, _, _, _, 1, 0, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (1, _, _, 1, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _) : bad_request(REASON_WRONG_SLOT);
            (1, _, _, 1, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (1, _, _, 1, _, _, _, _, _, 0, _, 1, _, _, _, 0, _, _, _) : bad_request(REASON_BAD_TYPE);
            (1, _, _, 1, _, _, _, _, _, 0, _, _, _, 1, _, 0, _, _, _) : bad_request(REASON_BAD_TYPE);
            (1, _, 1, 1, _, _, _, _, _, _, _, _, _, _, _, 0, 0, _, _) : bad_request(REASON_WRONG_WORKER);
            (1, _, _, 1, _, _, _, _, _, _, _, _, _, _, _, 0, _, _, _) : NoAction();
            (1, _, _, 1, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            // Static ones: exponent rounds and queries have no elements.
            (0, _, _, 1, _, 1, 1, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (0, _, _, 1, _, 1, _, _, 1, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            (0, _, _, 1, _, _, 1, _, 1, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_BAD_TYPE);
            // A flush of an operation that begins later.
            (0, _, _, 1, _, _, _, _, 1, _, _, _, _, _, _, _, _, _, 0x80000000 &&& 0x80000000) : bad_request(REASON_OUT_OF_TURN);
            (0, _, _, 1, _, _, _, _, _, _, _, _, 0, _, _, _, _, _, _) : bad_request(REASON_WRONG_SLOT);
            (0, _, _, 1, _, 0, 0, _, _, _, _, _, _, _, 0, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (0, _, _, 1, _, 0, 0, _, _, _, _, _, _, _, _, 0, _, _, _) : NoAction();
            (0, _, _, 1, _, 0, 0, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
            (0, _, _, 1, _, _, _, _, _, _, _, _, _, _, 0, _, _, _, _) : NoAction();
            (0, _, _, 1, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _) : bad_request(REASON_WRONG_ELEMENTS);
        }
    }

    apply {
        forms.apply();
        identities.apply();
        requests.apply();
        if (is_bad_form == 1) {
            meta.reason = form;
        } else if (is_stranger == 1) {
            meta.reason = stranger;
        } else if (is_bad_request == 1) {
            meta.reason = request;
        } else {
            meta.is_admitted = 1;
        }
    }
}
