-- Wireshark dissector of Sumac's packets. docs/monitoring.md, "Wireshark", says how to load it.
--
-- Fields have the names of docs/protocol.md; spaces and hyphens are underscores in filters: sumac.fan_in_0. The tables
-- below repeat what the crate `wire` defines; wire/tests/dissector.rs compares them. One row a line: the test reads them.
-- The mode of a job is not in its packets. Names are those of the static mode; direct jobs are recognised by their control packets.

local sumac = Proto("sumac", "Sumac in-network aggregation")

local VERSION = 3
local HEADER_LEN = 64
local ELEMENT_LEN = 4
local MAX_JOBS = 1024
local NO_SLOT = 0xffffffff
local EXPONENT_NONE = -128
local EXPONENT_UNKNOWN = 127
local PORTS = "48700-48763"

local TYPES = {
    [1] = "contribution",
    [2] = "result",
    [3] = "probe",
    [4] = "report",
    [5] = "stop",
    [7] = "control",
}
local CONTRIBUTION, RESULT, PROBE, REPORT, STOP, CONTROL = 1, 2, 3, 4, 5, 7

local FORMATS = {
    [0] = "int32",
    [1] = "int16",
    [2] = "raw",
}
local INT32 = 0

-- Name, bit, meaning.
local FLAGS = {
    { "resend", 0, "A retransmission, or a query for one" },
    { "collision", 1, "Dynamic mode: a slot was busy; in a result bitmap 0 is the new one" },
    { "overflow", 2, "A value exceeded the range and was clamped" },
    { "partial", 3, "A contribution: a flush; a result: some workers are not in it" },
    { "raw float", 4, "Dynamic mode: the words are float32" },
    { "ECN echo", 5, "The network marked congestion, or lost a packet" },
    { "level", 6, "Between two aggregators" },
    { "pool version", 7, "The slot's version that the chunk uses" },
    { "maximum", 8, "The larger of the signed words, instead of their sum" },
    { "exponent", 9, "An exponent round: no elements" },
    { "mismatch", 10, "In a result: the sender's packet, refused for its signature" },
    { "not finite", 11, "A value was NaN or infinite, and is zero" },
    { "query", 12, "A query without elements; in a result: the request to send the contribution" },
    { "unknown job", 13, "In a report: the aggregator does not have the job" },
    { "empty", 14, "A contribution without values: its elements are zeros" },
}

-- Name, offset, type, display base, meaning.
local FIELDS = {
    { "format", 1, "uint8", base.DEC, "The format of the elements", FORMATS },
    { "flags", 2, "uint16", base.HEX, "The flags" },
    { "job", 4, "uint16", base.DEC, "The job's number" },
    { "epoch", 6, "uint16", base.DEC, "The job's incarnation" },
    { "seq", 8, "uint32", base.DEC, "The chunk's number in its lane" },
    { "slot", 12, "uint32", base.DEC, "Relative to the job's first slot" },
    { "fan-in 0", 16, "uint8", base.DEC, "The workers of the sender's aggregator" },
    { "fan-in 1", 17, "uint8", base.DEC, "Between two aggregators: the number of racks" },
    { "elements", 18, "uint16", base.DEC, "Words in the payload" },
    { "bitmap 0", 20, "uint32", base.HEX, "The worker's bit; in a result the workers in it; with collision the new slot" },
    { "bitmap 1", 24, "uint32", base.HEX, "The rack's bit; in a result the racks, or the begun chunks" },
    { "contributors", 28, "uint16", base.DEC, "In a result: the workers in it; in a flush or an operation's terms: the limit; direct mode: the step" },
    { "exponent", 30, "int8", base.DEC, "Block floating point: the exponent that scales the chunk" },
    { "next exponent", 31, "int8", base.DEC, "The sender's exponent of the slot's next chunk; in a result the largest" },
    { "tensor", 32, "uint32", base.HEX, "The operation's signature; direct mode: its number" },
    { "offset", 36, "uint32", base.DEC, "The first element's index in its tensor" },
    { "timestamp", 40, "uint32", base.DEC, "The sender's clock in microseconds, echoed" },
    { "next seq", 44, "uint32", base.DEC, "The next chunk for the slot's version; in a flush the operation's first; direct mode: the packet's number" },
    { "token", 48, "uint64", base.HEX, "The job's secret number, or its result token" },
    { "received", 56, "uint32", base.DEC, "The sender has the results before this number" },
    { "lane", 60, "uint16", base.DEC, "The lane" },
    { "reserved", 62, "uint16", base.HEX, "Zero" },
}
local SIZES = { uint8 = 1, int8 = 1, uint16 = 2, uint32 = 4, uint64 = 8 }

-- Name and type of the words of a direct job's agreement.
local AGREEMENT = {
    { "signature", "uint32", base.HEX },
    { "type", "uint32", base.DEC },
    { "values", "uint32", base.DEC },
    { "values of a chunk", "uint32", base.DEC },
    { "loss bound", "float" },
}

local function filter(name)
    return (name:lower():gsub("[ -]", "_"))
end

local fields = {
    version = ProtoField.uint8("sumac.version", "version", base.DEC, nil, 0xf0),
    type = ProtoField.uint8("sumac.type", "type", base.DEC, TYPES, 0x0f),
    words = ProtoField.bytes("sumac.words", "words"),
    worker = ProtoField.uint32("sumac.worker", "worker", base.DEC, nil, nil, "The rank below the sender's aggregator"),
    answer_in = ProtoField.framenum("sumac.answer_in", "answered in", base.NONE, frametype.RESPONSE),
    answer_to = ProtoField.framenum("sumac.answer_to", "answer to", base.NONE, frametype.REQUEST),
    answer_time = ProtoField.double("sumac.answer_time", "time to the answer (s)"),
}
for _, row in ipairs(FIELDS) do
    local name, _, type, display, meaning, values = table.unpack(row)
    fields[name] = ProtoField[type]("sumac." .. filter(name), name, display, values, nil, meaning)
end
for _, row in ipairs(FLAGS) do
    local name, bit, meaning = table.unpack(row)
    fields["flag " .. name] = ProtoField.bool("sumac.flags." .. filter(name), name, 16, nil, 2 ^ bit, meaning)
end
for _, row in ipairs(AGREEMENT) do
    local name, type, display = table.unpack(row)
    fields["agreement " .. name] = ProtoField[type]("sumac.agreement." .. filter(name), name, display)
end
sumac.fields = fields

-- Named as the counters of aggregators and daemons (docs/protocol.md, "Counters"), but `cut`, which is the capture's doing.
local MALFORMED = { "truncated", "bad_length", "bad_version", "bad_type", "bad_format" }
local experts = {
    cut = ProtoExpert.new("sumac.cut", "cut by the capture", expert.group.UNDECODED, expert.severity.NOTE),
    mismatch = ProtoExpert.new("sumac.mismatch", "refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
    unknown_job = ProtoExpert.new("sumac.unknown_job", "unknown job", expert.group.RESPONSE_CODE, expert.severity.WARN),
}
for _, name in ipairs(MALFORMED) do
    experts[name] = ProtoExpert.new("sumac." .. name, name, expert.group.MALFORMED, expert.severity.ERROR)
end
sumac.experts = experts

sumac.prefs.ports = Pref.range("UDP ports", PORTS, "The base port and those after it, one for each shard", 65535)

local udp_length = Field.new("udp.length")

-- Of the first pass: by chunk, probe or query the first request from each address, and the first answer to each.
local exchanges
-- Jobs in direct mode, by job and epoch.
local direct_jobs

function sumac.init()
    exchanges, direct_jobs = {}, {}
end

local function has(header, name)
    return header.set[name] == true
end

-- The number of the only bit that is set.
local function rank(bitmap)
    if bitmap == 0 then return nil end
    local bit = 0
    while bitmap % 2 == 0 do
        bitmap, bit = bitmap / 2, bit + 1
    end
    return bitmap == 1 and bit or nil
end

-- Adds the header's fields, as far as the capture has them, and returns their values.
local function read_header(tvb, tree)
    local header = { type = tvb(0, 1):bitfield(4, 4), set = {} }
    tree:add(fields.version, tvb(0, 1))
    tree:add(fields.type, tvb(0, 1))
    for _, row in ipairs(FIELDS) do
        local name, offset, type = table.unpack(row)
        local size = SIZES[type]
        if tvb:captured_len() < offset + size then break end
        local range = tvb(offset, size)
        local item = tree:add(fields[name], range)
        if type == "int8" then
            header[name] = range:int()
            if header[name] == EXPONENT_NONE then item:append_text(" (none)") end
            if header[name] == EXPONENT_UNKNOWN then item:append_text(" (unknown)") end
        elseif size < 8 then
            header[name] = range:uint()
        end
        if name == "slot" and header.slot == NO_SLOT then item:append_text(" (no aggregator)") end
        if name == "flags" then
            local names = {}
            for _, flag in ipairs(FLAGS) do
                item:add(fields["flag " .. flag[1]], range)
                if header.flags % 2 ^ (flag[2] + 1) >= 2 ^ flag[2] then
                    header.set[flag[1]] = true
                    names[#names + 1] = flag[1]
                end
            end
            header.names = table.concat(names, ", ")
            if #names > 0 then item:append_text(" (" .. header.names .. ")") end
        end
    end
    return header
end

-- The request's identity, which its answer has too; none of packets without answers.
local function exchange_of(header)
    local class
    if header.type == PROBE or header.type == REPORT then
        class = "probe " .. header.timestamp
    elseif header.is_direct or (header.type ~= CONTRIBUTION and header.type ~= RESULT) then
        return nil
    elseif has(header, "query") then
        class = "query"
    else
        class = has(header, "exponent") and "exponent" or "chunk"
    end
    return table.concat({ class, header.job, header.epoch, header.lane, header.seq }, " ")
end

-- Links contributions and probes with their answers.
local function link(header, pinfo, tree)
    local key = exchange_of(header)
    if not key then return end
    local is_request = header.type == CONTRIBUTION or header.type == PROBE
    local exchange = exchanges[key] or { requests = {}, answers = {}, times = {} }
    exchanges[key] = exchange
    local worker = tostring(is_request and pinfo.src or pinfo.dst)
    local mine = is_request and exchange.requests or exchange.answers
    if not pinfo.visited then
        mine[worker] = mine[worker] or pinfo.number
        -- A result to a multicast group, or broadcast over an aggregator's ports, answers all.
        if not is_request then exchange.any = exchange.any or pinfo.number end
        if is_request and mine[worker] == pinfo.number then exchange.times[worker] = pinfo.abs_ts end
    end
    if is_request then
        local answer = exchange.answers[worker] or exchange.any
        if answer and answer > pinfo.number then tree:add(fields.answer_in, answer):set_generated() end
    elseif exchange.requests[worker] then
        tree:add(fields.answer_to, exchange.requests[worker]):set_generated()
        local time = pinfo.abs_ts - exchange.times[worker]
        tree:add(fields.answer_time, time):set_generated()
    end
end

-- The line of a chunk of the static or dynamic mode.
local function chunk_info(header, place)
    local slot = header.slot == NO_SLOT and "none" or
        string.format("%d/%d", header.slot, has(header, "pool version") and 1 or 0)
    return string.format("%s lane %d slot %s seq %d", place, header.lane, slot, header.seq)
end

local function direct_info(header, place)
    local transfer = string.format("%s transfer 0x%x step %d", place, header.tensor, header.contributors)
    if header.type == CONTRIBUTION then
        return string.format("%s seq %d packet %d", transfer, header.seq, header["next seq"])
    elseif header.type == CONTROL then
        return transfer .. (header.format == INT32 and " agreement" or " acknowledgement")
    end
    return string.format("%s seq %d", transfer, header.seq)
end

-- The line of a packet with a whole header.
local function info(header)
    local place = string.format("%s job %d.%d", TYPES[header.type], header.job, header.epoch)
    local line = header.is_direct and direct_info(header, place) or chunk_info(header, place)
    if header.type == RESULT then
        line = string.format("%s workers %d next %d", line, header.contributors, header["next seq"])
    elseif header.worker then
        line = string.format("%s worker %d", line, header.worker)
    elseif has(header, "level") and rank(header["bitmap 1"]) then
        line = string.format("%s rack %d", line, rank(header["bitmap 1"]))
    end
    line = string.format("%s n=%d", line, header.elements)
    return header.names == "" and line or string.format("%s [%s]", line, header.names)
end

-- Adds the elements, as far as the capture has them.
local function read_words(tvb, header, tree)
    local captured = math.min(tvb:captured_len() - HEADER_LEN, header.elements * ELEMENT_LEN)
    if captured <= 0 then return end
    local range = tvb(HEADER_LEN, captured)
    local item = tree:add(fields.words, range)
    local cut = captured < header.elements * ELEMENT_LEN and string.format(", %d bytes captured", captured) or ""
    item:set_text(string.format("words: %d%s", header.elements, cut))
    if header.type == CONTROL and header.format == INT32 then
        for index, row in ipairs(AGREEMENT) do
            local at = (index - 1) * ELEMENT_LEN
            if captured < at + ELEMENT_LEN then break end
            item:add(fields["agreement " .. row[1]], range(at, ELEMENT_LEN))
        end
    end
end

local function refuse(tree, pinfo, reason, why)
    tree:add_proto_expert_info(experts[reason], reason .. ": " .. why)
    pinfo.cols.info = reason .. ": " .. why
end

-- The checks of `Header::read`, in its order: false ends the dissection.
local function check(header, tvb, pinfo, tree)
    local length = tvb:reported_len()
    local expected = header.elements and HEADER_LEN + header.elements * ELEMENT_LEN
    if length < HEADER_LEN then
        refuse(tree, pinfo, "bad_length", string.format("%d bytes, the header has %d", length, HEADER_LEN))
    elseif tvb:captured_len() < HEADER_LEN then
        local why = string.format("the capture has %d of %d bytes", tvb:captured_len(), length)
        tree:add_proto_expert_info(experts.cut, why)
        pinfo.cols.info = string.format("%s (%s)", TYPES[header.type] or "type " .. header.type, why)
    elseif not TYPES[header.type] then
        refuse(tree, pinfo, "bad_type", tostring(header.type))
    elseif not FORMATS[header.format] then
        refuse(tree, pinfo, "bad_format", tostring(header.format))
    elseif length ~= expected then
        local why = string.format("%d bytes, but %d elements make %d", length, header.elements, expected)
        refuse(tree, pinfo, "bad_length", why)
    else
        return true
    end
    return false
end

function sumac.dissector(tvb, pinfo, root)
    local length, captured = tvb:reported_len(), tvb:captured_len()
    pinfo.cols.protocol = "Sumac"
    local tree = root:add(sumac, tvb(0, captured))
    if captured == 0 then
        refuse(tree, pinfo, length == 0 and "bad_length" or "truncated", "no byte of the header")
        return captured
    end
    local version = tvb(0, 1):bitfield(0, 4)
    if version ~= VERSION then
        -- Other versions have headers of other lengths and fields.
        tree:add(fields.version, tvb(0, 1))
        refuse(tree, pinfo, "bad_version", string.format("%d, this dissector knows %d", version, VERSION))
        return captured
    end
    local header = read_header(tvb, tree)
    local announced = udp_length()
    if announced and announced.value - 8 > length then
        refuse(tree, pinfo, "truncated", string.format("%d of %d bytes", length, announced.value - 8))
        return captured
    end
    if not check(header, tvb, pinfo, tree) then return captured end
    local job = header.job .. "." .. header.epoch
    if header.type == STOP or header.type == CONTROL then direct_jobs[job] = true end
    header.is_direct = direct_jobs[job]
    if header.type ~= RESULT and not has(header, "level") then
        header.worker = rank(header["bitmap 0"])
        if header.worker then tree:add(fields.worker, header.worker):set_generated() end
    end
    read_words(tvb, header, tree)
    link(header, pinfo, tree)
    local line = info(header)
    tree:append_text(", " .. line)
    pinfo.cols.info = line
    if header.type == RESULT and has(header, "mismatch") then
        tree:add_proto_expert_info(experts.mismatch, "the slot has another operation's signature")
    elseif has(header, "unknown job") then
        tree:add_proto_expert_info(experts.unknown_job, "the aggregator does not have the job")
    end
    return captured
end

-- Other base ports: a packet that is Sumac's by version, type, format, job, reserved bytes and length.
local function is_sumac(tvb)
    if tvb:captured_len() < HEADER_LEN or tvb(0, 1):bitfield(0, 4) ~= VERSION then return false end
    local job = tvb(4, 2):uint()
    return TYPES[tvb(0, 1):bitfield(4, 4)] ~= nil and FORMATS[tvb(1, 1):uint()] ~= nil
        and job > 0 and job < MAX_JOBS and tvb(62, 2):uint() == 0
        and tvb:reported_len() == HEADER_LEN + tvb(18, 2):uint() * ELEMENT_LEN
end

sumac:register_heuristic("udp", function(tvb, pinfo, tree)
    if not is_sumac(tvb) then return false end
    sumac.dissector(tvb, pinfo, tree)
    return true
end)

local registered
function sumac.prefs_changed()
    local ports = DissectorTable.get("udp.port")
    if registered then ports:remove(registered, sumac) end
    registered = sumac.prefs.ports
    ports:add(registered, sumac)
end
registered = PORTS
DissectorTable.get("udp.port"):add(PORTS, sumac)
