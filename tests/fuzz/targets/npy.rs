//! numpy's format, as `sumac allreduce` reads it.
#![allow(dead_code, reason = "only reading is a target")]

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use sumac_fuzz::edited;

use crate::fuzz;

#[path = "../../../userspace/cli/src/allreduce/npy/mod.rs"]
mod file;

/// A file with this header, version 1.0, and some elements.
fn example(header: &str, elements: usize) -> Vec<u8> {
    let mut text = header.to_owned();
    while !(text.len() + 11).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(vec![1; elements]);
    bytes
}

#[test]
fn arrays() {
    let examples = [
        example("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }", 16),
        example("{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }", 12),
        example("{'descr': '<i4', 'fortran_order': False, 'shape': (), }", 4),
    ];
    fuzz!(|input: &[u8]| {
        let memory = rustix::fs::memfd_create("npy", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut memory = std::fs::File::from(memory);
        memory.write_all(&edited(&examples, input)).unwrap();
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let Ok(input) = file::Input::open(Path::new(&path)) else { return };
        let Ok(form) = input.form else { return };
        assert!(form.count as u64 * 2 <= memory.metadata().unwrap().len(), "it has as much as it promises");
        if let Ok(values) = input.array.try_data::<f32>() {
            let _ = values.take(form.count).take_while(Result::is_ok).count();
        }
    });
}
