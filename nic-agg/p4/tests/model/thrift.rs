//! Reads registers and counters of the behavioural model over its Thrift port: the binary protocol, as far as
//! these calls need it.

use std::{
    collections::BTreeMap,
    io::{BufReader, Read, Result, Write},
    net::{Ipv4Addr, TcpStream},
};

const VERSION: u32 = 0x8001_0000;
const CALL: u32 = 1;
const REPLY: u32 = 2;

/// Types of fields.
mod kind {
    pub const STOP: u8 = 0;
    pub const BOOL: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 6;
    pub const I32: u8 = 8;
    pub const I64: u8 = 10;
    pub const STRING: u8 = 11;
    pub const STRUCT: u8 = 12;
}

/// A connection to the model.
pub struct Thrift {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

#[derive(Debug)]
enum Value {
    Number(i64),
    Text,
    Struct(BTreeMap<i16, Value>),
}

impl Thrift {
    pub fn connect(port: u16) -> Result<Thrift> {
        let output = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        output.set_nodelay(true)?;
        Ok(Thrift { input: BufReader::new(output.try_clone()?), output })
    }

    /// Returns a register's cell. The program has none of more than 64 bits.
    pub fn register(&mut self, name: &str, index: u32) -> u64 {
        match self.call("bm_register_read", name, &[index]) {
            Value::Number(value) => value as u64,
            other => panic!("register {name}: {other:?}"),
        }
    }

    /// Sets a register's cell.
    pub fn set_register(&mut self, name: &str, index: u32, value: u64) {
        self.request("bm_register_write", name, &[index], Some([(value >> 32) as u32, value as u32]));
    }

    /// Sets all cells of a register to zero.
    pub fn reset_register(&mut self, name: &str) {
        self.call("bm_register_reset", name, &[]);
    }

    /// Sets the cells before `end` of a register.
    pub fn fill_register(&mut self, name: &str, end: u32, value: u64) {
        let value = [(value >> 32) as u32, value as u32];
        self.request("bm_register_write_range", name, &[0, end], Some(value));
    }

    /// Returns the packets that a cell of a counter has counted.
    pub fn counter(&mut self, name: &str, index: u32) -> u64 {
        match self.call("bm_counter_read", name, &[index]) {
            Value::Struct(fields) => match fields.get(&2) {
                Some(Value::Number(packets)) => *packets as u64,
                other => panic!("counter {name}: {other:?}"),
            },
            other => panic!("counter {name}: {other:?}"),
        }
    }

    /// Sets how many packets a queue of a port takes. With 0 it drops all.
    pub fn set_queue_depth(&mut self, port: u32, queue: u8, packets: u32) {
        let arguments = [(1, port), (2, queue.into()), (3, packets)].map(field).concat();
        self.exchange("simple_switch:set_egress_priority_queue_depth", &arguments).unwrap();
    }

    /// Sets how many packets leave a port's queues in a second.
    pub fn set_queue_rate(&mut self, port: u32, packets: u64) {
        let rate = [&[kind::I64, 0, 2][..], &packets.to_be_bytes()].concat();
        let arguments = [&field((1, port))[..], &rate].concat();
        self.exchange("simple_switch:set_egress_queue_rate", &arguments).unwrap();
    }

    fn call(&mut self, method: &str, name: &str, words: &[u32]) -> Value {
        self.request(method, name, words, None)
    }

    /// Calls a method: with the context, of which the model has one, the name, and words of 32 and of 64
    /// bits.
    fn request(&mut self, method: &str, name: &str, words: &[u32], long: Option<[u32; 2]>) -> Value {
        let mut bytes = vec![kind::I32, 0, 1, 0, 0, 0, 0];
        bytes.extend([kind::STRING, 0, 2]);
        bytes.extend(text(name));
        let mut id = 3;
        for word in words {
            bytes.extend(field((id, *word)));
            id += 1;
        }
        if let Some(long) = long {
            bytes.extend([kind::I64, 0, id]);
            bytes.extend(long.iter().flat_map(|word| word.to_be_bytes()));
        }
        let replied = self.exchange(&format!("standard:{method}"), &bytes);
        replied.unwrap_or_else(|error| panic!("{method} of {name}: {error}"))
    }

    fn exchange(&mut self, method: &str, arguments: &[u8]) -> Result<Value> {
        let version = (VERSION | CALL).to_be_bytes();
        let call = [&version[..], &text(method), &[0; 4], arguments, &[kind::STOP]].concat();
        self.output.write_all(&call)?;
        self.reply()
    }

    /// Returns field 0 of the answer: the others are exceptions.
    fn reply(&mut self) -> Result<Value> {
        let version = self.word()?;
        assert_eq!(version, VERSION | REPLY, "not a reply");
        self.value(kind::STRING)?;
        self.word()?;
        let Value::Struct(mut fields) = self.value(kind::STRUCT)? else { unreachable!("asked for a struct") };
        // A call without a result has no field.
        match fields.remove(&0) {
            Some(value) => Ok(value),
            None => {
                assert!(fields.is_empty(), "refused: {fields:?}");
                Ok(Value::Number(0))
            }
        }
    }

    fn value(&mut self, of: u8) -> Result<Value> {
        Ok(match of {
            kind::BOOL | kind::BYTE => Value::Number(self.bytes::<1>()?[0].into()),
            kind::I16 => Value::Number(i16::from_be_bytes(self.bytes()?).into()),
            kind::I32 => Value::Number(i32::from_be_bytes(self.bytes()?).into()),
            kind::I64 => Value::Number(i64::from_be_bytes(self.bytes()?)),
            kind::STRING => {
                let mut text = vec![0; self.word()? as usize];
                self.input.read_exact(&mut text)?;
                Value::Text
            }
            kind::STRUCT => {
                let mut fields = BTreeMap::new();
                loop {
                    let [of] = self.bytes()?;
                    if of == kind::STOP {
                        return Ok(Value::Struct(fields));
                    }
                    let id = i16::from_be_bytes(self.bytes()?);
                    fields.insert(id, self.value(of)?);
                }
            }
            other => panic!("a field of type {other}"),
        })
    }

    fn word(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns a field of 32 bits.
fn field((id, word): (u8, u32)) -> [u8; 7] {
    let [a, b, c, d] = word.to_be_bytes();
    [kind::I32, 0, id, a, b, c, d]
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}
