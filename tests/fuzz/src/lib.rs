//! Inputs of the fuzz targets: valid examples with edits that the fuzzer chooses.
//!
//! Random bytes are hardly ever a frame or a JSON object. An input is therefore a program of edits on an
//! example, or, with the first byte's highest bit, the bytes themselves. A coverage-guided fuzzer mutates
//! either.
#![forbid(unsafe_code)]

/// Returns the bytes that an input of the fuzzer stands for.
#[must_use]
pub fn edited<T: AsRef<[u8]>>(examples: &[T], input: &[u8]) -> Vec<u8> {
    let Some((choice, rest)) = input.split_first() else { return Vec::new() };
    if choice & 0x80 != 0 || examples.is_empty() {
        return rest.to_vec();
    }
    let mut bytes = examples[usize::from(*choice) % examples.len()].as_ref().to_vec();
    for edit in rest.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        apply(&mut bytes, at, edit[2], edit[3]);
    }
    bytes
}

/// Changes a byte, inserts or removes one, repeats a part, or cuts the end off.
fn apply(bytes: &mut Vec<u8>, at: usize, what: u8, value: u8) {
    let at = at % (bytes.len() + 1);
    let Some(byte) = bytes.get_mut(at) else { return bytes.push(value) };
    match what % 8 {
        0..3 => *byte = value,
        3 => *byte ^= 1 << (value % 8),
        4 => bytes.insert(at, value),
        5 => drop(bytes.remove(at)),
        6 => {
            let end = (at + usize::from(value)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        _ if value < 32 => bytes.truncate(at),
        _ => *byte = b"0129-.,:\"[]{}e\0\xff"[usize::from(value) % 16],
    }
}

/// Splits an input into the inputs of a sequence of packets.
pub fn sequence(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    input.chunks(13)
}

/// Integers from an input; zeros behind its end.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        let mut bytes = [0; 4];
        let count = self.0.len().min(4);
        let (head, rest) = self.0.split_at(count);
        bytes[..count].copy_from_slice(head);
        self.0 = rest;
        u32::from_le_bytes(bytes)
    }

    /// The next 32 bits, mostly brought below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        let number = self.word();
        if number & 0xf == 0xf { number } else { (number >> 4) % limit.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    // cargo-bolero builds this executable too, with code that refers to the fuzzer's.
    use bolero as _;

    #[test]
    fn an_input_is_an_example_with_edits_or_itself() {
        let examples = ["abc", "xyz"];
        assert_eq!(edited(&examples, &[1]), b"xyz");
        assert_eq!(edited(&examples, &[0, 1, 0, 0, b'-']), b"a-c");
        assert_eq!(edited(&examples, &[0, 0, 0, 5, 0, 1, 0, 7, 0]), b"b");
        assert_eq!(edited(&examples, &[0x80, 1, 2]), [1, 2]);
        assert!(edited(&examples, &[]).is_empty());
        let all: Vec<u8> = (0..=255).collect();
        assert!(!edited(&examples, &all[1..]).is_empty());
    }
}
