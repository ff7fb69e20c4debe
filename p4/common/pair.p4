// A register of two elements of each cell, and the operations on it.
//
// A register has four actions, and returns one word. So reading is an operation that changes nothing: the first half is read by adding
// zeros; the second by a maximum with the least number, while the packet has the first half, which is the register's own.

const int<32> LEAST = -2147483648;

control Pair(inout int<32> first, inout int<32> second, in bool is_present, in bridge_t bridge) {
    SIGNED_PAIR_REGISTER(sums, CELLS)
    SIGNED_PAIR_UPDATE(sums, sums_store, value.lo = first; value.hi = second;)
    SIGNED_PAIR_ACTION(int<32>, sums, sums_add,
        value.lo = value.lo + first;
        value.hi = value.hi + second;
        result = value.lo;
    )
    SIGNED_PAIR_ACTION(int<32>, sums, sums_add_saturating,
        value.lo = value.lo |+| first;
        value.hi = value.hi |+| second;
        result = value.lo;
    )
    SIGNED_PAIR_ACTION(int<32>, sums, sums_maximum,
        if (value.lo < first) { value.lo = first; }
        if (value.hi < second) { value.hi = second; }
        result = value.hi;
    )

    action store() {
        EXECUTE_UPDATE(sums_store, bridge.cell);
    }
    action add() {
        EXECUTE(sums_add, bridge.cell, first);
    }
    action add_saturating() {
        EXECUTE(sums_add_saturating, bridge.cell, first);
    }
    action maximum() {
        EXECUTE(sums_maximum, bridge.cell, second);
    }
    table operations {
        key = {
            bridge.operation : exact;
            is_present : exact;
        }
        actions = { store; add; add_saturating; maximum; NoAction; }
        const default_action = NoAction();
        size = 8;
        const entries = {
            (OPERATION_STORE, true) : store();
            (OPERATION_ADD, true) : add();
            (OPERATION_READ_FIRST, true) : add();
            (OPERATION_ADD_SATURATING, true) : add_saturating();
            (OPERATION_READ_SECOND, true) : maximum();
            (OPERATION_MAXIMUM, true) : maximum();
        }
    }

    apply {
        operations.apply();
    }
}
