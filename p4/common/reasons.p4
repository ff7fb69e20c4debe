// Reasons: the index of a frame's counter (wire/src/reason.rs).
#ifndef REASONS_P4
#define REASONS_P4

const bit<6> REASON_FOREIGN = 0;
const bit<6> REASON_ADDED = 1;
const bit<6> REASON_COMPLETED = 2;
const bit<6> REASON_REPLIED = 3;
const bit<6> REASON_PROBED = 4;
const bit<6> REASON_STEERED = 5;
const bit<6> REASON_SENT = 6;
const bit<6> REASON_NO_SOCKET = 7;
const bit<6> REASON_DUPLICATE = 8;
const bit<6> REASON_STALE = 9;
const bit<6> REASON_NOT_FOR_PORT = 10;
const bit<6> REASON_FORWARDED = 11;
const bit<6> REASON_CONCLUDED = 12;
const bit<6> REASON_INJECTED_DROP = 13;
const bit<6> REASON_ANSWERED = 14;
const bit<6> REASON_SLOT_BUSY = 15;
const bit<6> REASON_TRUNCATED = 16;
const bit<6> REASON_BAD_LENGTH = 17;
const bit<6> REASON_FRAGMENT = 18;
const bit<6> REASON_BAD_VERSION = 19;
const bit<6> REASON_BAD_TYPE = 20;
const bit<6> REASON_BAD_FORMAT = 21;
const bit<6> REASON_UNKNOWN_JOB = 22;
const bit<6> REASON_WRONG_EPOCH = 23;
const bit<6> REASON_BAD_TOKEN = 24;
const bit<6> REASON_WRONG_WORKER = 25;
const bit<6> REASON_WRONG_SOURCE = 26;
const bit<6> REASON_WRONG_SLOT = 27;
const bit<6> REASON_WRONG_ELEMENTS = 28;
const bit<6> REASON_OUT_OF_TURN = 29;
const bit<6> REASON_BAD_CHECKSUM = 30;
const bit<6> REASON_WRONG_PLACE = 31;
const bit<6> REASON_MISMATCH = 32;
const bit<6> REASON_INTERNAL = 33;
const bit<6> REASON_WANTED = 34;
const bit<6> REASON_PASSED = 35;
const bit<6> REASON_COLLIDED = 36;
const bit<6> REASON_FLUSHED = 37;
const bit<6> REASON_ASKED_RAW = 38;
const bit<6> REASON_RECLAIMED = 39;
const bit<6> REASON_OVER_UDP = 40;

#endif
