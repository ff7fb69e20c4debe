//! The queues of the ports in loopback: queue 1 has the packets that nothing repeats (`UNREPEATED_QUEUE` in
//! p4/tofino/carried.p4), so it comes first, and has a buffer of its own.

use crate::{
    proto::bfrt_proto::{DataField, TableData, TableEntry, Update, data_field::Value, update::Type},
    sizes::Compiled,
    target::{Key, Match, SwitchError},
};

use super::{
    entry::{bytes, number, of_entry, with_key, wrong},
    groups::{data, exact, list},
    schema::Table,
    session::Session,
};

/// A chip's traffic manager.
struct Chip {
    /// The first component of its tables' names.
    name: &'static str,
    /// The port of a pipe to which the program sends packets: RECIRCULATION_PORT in p4/tofino/pipelines.p4.
    recirculation: u32,
    /// Bytes of a cell of its buffer.
    cell: u32,
}

const CHIPS: [Chip; 2] =
    [Chip { name: "tf1", recirculation: 68, cell: 80 }, Chip { name: "tf2", recirculation: 6, cell: 176 }];
/// Of a port's number, the bits below its pipe.
const PORT_BITS: u32 = 7;
const UNREPEATED: usize = 1;
/// Bytes of a block's values in a packet, and of all headers that it has inside the switch, at most.
const BLOCK: u32 = 256;
const HEADERS: u32 = 176;
/// The action of a queue's buffer that leaves it its part of the shared pool.
const SHARED: &str = "shared_pool";

/// Sets the queues. A switch that refuses goes on with the queues that it has, and with a warning.
pub async fn set(session: &mut Session) {
    if session.compiled.static_slots == 0 {
        return;
    }
    let pipes: Vec<u32> =
        session.front_pipe.into_iter().chain(session.compiled.slots_pipes.iter().copied()).collect();
    for pipe in pipes {
        if let Err(error) = set_in(session, pipe).await {
            tracing::warn!(pipe, %error,
                "the switch refuses a setting of the queues of the pipe's port in loopback: packets that \
                nothing repeats may be lost; set them by hand (docs/p4.md, \"On a switch\")");
        }
    }
}

async fn set_in(session: &mut Session, pipe: u32) -> Result<(), SwitchError> {
    let schema = session.schema.clone();
    let has = |chip: &&Chip| schema.table(&format!("{}.tm.port.cfg", chip.name)).is_ok();
    let unknown = || SwitchError::Unknown { kind: "table", name: "tm.port.cfg".into() };
    let chip = CHIPS.iter().find(has).ok_or_else(unknown)?;
    let table = |name: &str| schema.table(&format!("{}.tm.{name}", chip.name));
    let (ports, priorities, buffers) =
        (table("port.cfg")?, table("queue.sched_cfg")?, table("queue.buffer")?);
    let port = pipe << PORT_BITS | chip.recirculation;
    let (group, queues) = place(session, ports, port).await?;
    let Some([repeated, unrepeated]) = queues.first_chunk() else {
        let lacks = format!("port {port} has {} queues in place of 2", queues.len());
        return Err(wrong(ports, ports.data_field("egress_qid_queues")?, &lacks));
    };
    let cells = cells(&session.compiled, chip.cell);
    let updates = vec![
        priority(priorities, group, *repeated, "0")?,
        priority(priorities, group, *unrepeated, "7")?,
        buffer(buffers, group, *unrepeated, cells)?,
    ];
    let written = session.write_to(pipe, updates).await;
    written.map_err(|error| error.of_all("setting the queues of a port in loopback"))?;
    tracing::info!(port, queue = UNREPEATED, cells, "set the queues of a port in loopback");
    Ok(())
}

/// Returns the group of a port, and the numbers that its queues have there.
async fn place(session: &mut Session, table: &Table, port: u32) -> Result<(u64, Vec<u32>), SwitchError> {
    let key = with_key(table, &exact("dev_port", port))?;
    let read = session.read(vec![key], "reading a port in loopback").await?;
    let group = table.data_field("pg_id")?;
    let found = read.first().and_then(|entry| Some((entry, data(entry, group.id)?)));
    let Some((entry, Value::Stream(value))) = found else {
        return Err(wrong(table, group, &format!("the switch sends none of port {port}")));
    };
    Ok((number(table, group, value)?, list(table, entry, "egress_qid_queues")?))
}

/// The cells for a packet of each static slot.
fn cells(program: &Compiled, cell: u32) -> u32 {
    program.static_slots * (HEADERS + BLOCK * u32::from(program.blocks)).div_ceil(cell)
}

fn priority(table: &Table, group: u64, queue: u32, priority: &str) -> Result<Update, SwitchError> {
    // Of the bandwidth that a queue is guaranteed, and of the rest.
    let fields = ["min_priority", "max_priority"].map(|name| {
        let field_id = table.data_field(name)?.id;
        Ok(DataField { field_id, value: Some(Value::StrVal(priority.to_owned())) })
    });
    let fields = fields.into_iter().collect::<Result<_, SwitchError>>()?;
    modify(table, group, queue, TableData { action_id: 0, fields })
}

fn buffer(table: &Table, group: u64, queue: u32, cells: u32) -> Result<Update, SwitchError> {
    let field = table.data_field("guaranteed_cells")?;
    let value = Some(Value::Stream(bytes(table, field, cells.into())?));
    let fields = vec![DataField { field_id: field.id, value }];
    modify(table, group, queue, TableData { action_id: table.action(SHARED)?.id, fields })
}

fn modify(table: &Table, group: u64, queue: u32, data: TableData) -> Result<Update, SwitchError> {
    let key = [("pg_id", group), ("pg_queue", queue.into())];
    let key = Key(key.map(|(name, value)| (name.to_owned(), Match::Exact(value))).into());
    let entry = TableEntry { data: Some(data), ..with_key(table, &key)? };
    Ok(of_entry(Type::Modify, entry))
}

#[cfg(test)]
mod tests {
    use sumac_wire::tos::QUEUES;

    use super::*;

    const PIPELINES_P4: &str = include_str!("../../../../p4/tofino/pipelines.p4");
    const CARRIED_P4: &str = include_str!("../../../../p4/tofino/carried.p4");
    const QUEUES_P4: &str = include_str!("../../../../p4/common/queues.p4");

    /// The values of a macro of the program, one for each definition.
    fn defined<'a>(source: &'a str, name: &str) -> Vec<&'a str> {
        let rest = source.lines().filter_map(|line| line.trim().strip_prefix("#define ")?.strip_prefix(name));
        rest.filter_map(|value| Some(value.strip_prefix(' ')?.trim())).collect()
    }

    #[test]
    fn ports_and_queues_are_those_of_the_program() {
        // The condition of the first definition is Tofino 2.
        let order = ["#if __TARGET_TOFINO__ == 2\n", "#define RECIRCULATION_PORT ", "#else\n"];
        let [second, port, other] = order.map(|line| PIPELINES_P4.find(line));
        assert!(second.is_some() && second < port && port < other, "{order:?}");
        let [tofino_1, tofino_2] = CHIPS.map(|chip| chip.recirculation.to_string());
        assert_eq!(defined(PIPELINES_P4, "RECIRCULATION_PORT"), [tofino_2, tofino_1]);
        for pipe in ["FRONT", "SLOTS"] {
            let port = format!("({pipe}_PIPE * {} + RECIRCULATION_PORT)", 1 << PORT_BITS);
            assert_eq!(defined(PIPELINES_P4, &format!("{pipe}_PORT")), [port]);
        }
        assert_eq!(defined(CARRIED_P4, "UNREPEATED_QUEUE"), [UNREPEATED.to_string()]);
    }

    /// A port has as many as the table of classes names, from 0 on.
    #[test]
    fn the_program_has_as_many_queues_as_there_are_tags() {
        let numbers = QUEUES_P4.split("set_queue(").filter_map(|rest| rest.split(')').next()?.parse().ok());
        let mut numbers: Vec<u8> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers, (0..QUEUES).collect::<Vec<_>>());
    }
}
