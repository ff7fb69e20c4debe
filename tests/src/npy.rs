//! Files of numpy's format 1.0 that hold one row of float32.

use std::path::Path;

pub fn write(path: &Path, values: impl ExactSizeIterator<Item = f32>) {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
    // Magic, version, length and header together are a multiple of 64 bytes.
    let header = format!("{header:<117}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(values.flat_map(f32::to_le_bytes));
    std::fs::write(path, file).unwrap();
}

/// Reads what another program has written.
pub fn read(path: &Path) -> Vec<f32> {
    let file = std::fs::read(path).unwrap();
    let (magic, rest) = file.split_at(8);
    assert_eq!(magic, b"\x93NUMPY\x01\x00", "{}", path.display());
    let header_len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
    let (header, data) = rest[2..].split_at(header_len);
    let header = String::from_utf8_lossy(header);
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
