//! The header of a file in numpy's format, versions 1 to 3: a magic string, and a Python dictionary as text
//! (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).

use std::io::{self, Read, Write};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// The elements begin at a multiple of this.
const ALIGNMENT: usize = 64;
/// The longest text that is read: numpy itself refuses to evaluate one of more than 10,000 bytes.
const MOST: u32 = 1 << 16;

/// The order of an element's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    Little,
    Big,
}

impl Endian {
    /// Returns the order of elements with this `descr`, if they are of type `wanted`.
    pub fn of(descr: &str, wanted: &str) -> Option<Endian> {
        match (descr.get(..1)?, descr.get(1..)? == wanted) {
            ("<", true) => Some(Endian::Little),
            (">", true) => Some(Endian::Big),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The elements' type: byte order, kind and bytes.
    pub descr: String,
    /// Whether the first index changes fastest, and not the last.
    pub fortran_order: bool,
    pub shape: Vec<u64>,
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

impl Header {
    /// Reads a header, up to the first element.
    pub fn read(input: &mut impl Read) -> io::Result<Header> {
        let mut begin = [0; MAGIC.len() + 2];
        input.read_exact(&mut begin)?;
        if !begin.starts_with(MAGIC) {
            return Err(invalid("not in numpy's format"));
        }
        let length = match begin[MAGIC.len()] {
            1 => u16::from_le_bytes(array(input)?).into(),
            2 | 3 => u32::from_le_bytes(array(input)?),
            version => return Err(invalid(format!("version {version} of numpy's format; 1 to 3 are known"))),
        };
        if length > MOST {
            return Err(invalid(format!("a header of {length} bytes; at most {MOST} are read")));
        }
        let mut text = vec![0; length as usize];
        input.read_exact(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Fields { rest: text.trim_ascii() }
            .header()
            .ok_or_else(|| invalid(format!("not an array of numbers: its header is {text:?}")))
    }

    /// Writes the header in version 1.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Header { descr, fortran_order, shape } = self;
        let order = if *fortran_order { "True" } else { "False" };
        let shape: String = shape.iter().map(|size| format!("{size}, ")).collect();
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        // The magic string, the version, the length, the text and a newline.
        let before = MAGIC.len() + 2 + size_of::<u16>();
        let length = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
        let field = u16::try_from(length).map_err(|_| invalid(format!("{length} bytes of header")))?;
        out.write_all(MAGIC)?;
        out.write_all(&[1, 0])?;
        out.write_all(&field.to_le_bytes())?;
        writeln!(out, "{text:width$}", width = length - 1)
    }
}

fn array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The rest of the dictionary's text. Each method takes from its front.
struct Fields<'a> {
    rest: &'a str,
}

impl<'a> Fields<'a> {
    fn header(mut self) -> Option<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.token("{")?;
        while self.token("}").is_none() {
            let key = self.string()?;
            self.token(":")?;
            match key {
                "descr" => descr = Some(self.string()?.to_owned()),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                "shape" => shape = Some(self.sizes()?),
                _ => return None,
            }
            if self.token(",").is_none() {
                self.token("}")?;
                break;
            }
        }
        self.rest.is_empty().then_some(())?;
        Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }

    fn token(&mut self, token: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(token)?.trim_ascii_start();
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let quote = self.rest.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        self.rest = rest.trim_ascii_start();
        Some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        let is_true = self.token("True").is_some();
        (is_true || self.token("False").is_some()).then_some(is_true)
    }

    fn sizes(&mut self) -> Option<Vec<u64>> {
        let mut sizes = Vec::new();
        self.token("(")?;
        while self.token(")").is_none() {
            let end = self.rest.find(|letter: char| !letter.is_ascii_digit())?;
            sizes.push(self.rest[..end].parse().ok()?);
            self.rest = self.rest[end..].trim_ascii_start();
            if self.token(",").is_none() {
                self.token(")")?;
                break;
            }
        }
        Some(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Header> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        Header::read(&mut &bytes[..]).ok()
    }

    fn header(descr: &str, fortran_order: bool, shape: &[u64]) -> Header {
        Header { descr: descr.to_owned(), fortran_order, shape: shape.to_vec() }
    }

    #[test]
    fn headers_of_numpy() {
        let table = [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }  \n", header("<f4", false, &[4])),
            ("{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }\n", header(">i4", true, &[2, 3])),
            ("{\"shape\":(),\"fortran_order\":False,\"descr\":\"|u1\"}", header("|u1", false, &[])),
        ];
        for (text, expected) in table {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "{}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': 4}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (4,)}",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)} x",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}",
            "{'descr': '\u{fffd}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        for bytes in [&b""[..], b"\x93NUMP", b"\x93NUMPY\x04\x00\x02\x00{}", b"\x93NUMPY\x01\x00\xff\xff{}"] {
            assert!(Header::read(&mut &bytes[..]).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_written_header_is_read_again() {
        for header in [header("<f4", false, &[4]), header("<u2", true, &[1, 2, 3]), header("<i4", false, &[])]
        {
            let mut bytes = Vec::new();
            header.write(&mut bytes).unwrap();
            assert!(bytes.len().is_multiple_of(ALIGNMENT) && bytes.ends_with(b"\n"));
            assert_eq!(Header::read(&mut &bytes[..]).unwrap(), header);
        }
    }

    #[test]
    fn byte_orders() {
        assert_eq!(Endian::of("<f4", "f4"), Some(Endian::Little));
        assert_eq!(Endian::of(">f4", "f4"), Some(Endian::Big));
        for descr in ["", "f4", "<f8", "|f4", "\u{e9}f4"] {
            assert_eq!(Endian::of(descr, "f4"), None, "{descr}");
        }
    }
}
