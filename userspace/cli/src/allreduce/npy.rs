//! Input and output arrays in numpy's format.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use npyz::{NpyFile, NpyHeader, Order, WriterBuilder};
use sumac_client::{Element, bf16, f16};

/// An element's form in a file.
pub trait Stored: Element {
    /// The type in the file.
    type Raw: npyz::AutoSerialize + npyz::Deserialize + Copy;
    fn from_raw(raw: Self::Raw) -> Self;
    fn to_raw(self) -> Self::Raw;
}

macro_rules! stored_unchanged {
    ($($element:ty),*) => {$(
        impl Stored for $element {
            type Raw = $element;
            fn from_raw(raw: $element) -> $element {
                raw
            }
            fn to_raw(self) -> $element {
                self
            }
        }
    )*};
}

stored_unchanged!(f32, f16, i32);

/// Numpy has no bfloat16: its bits are stored as uint16.
impl Stored for bf16 {
    type Raw = u16;
    fn from_raw(raw: u16) -> bf16 {
        bf16::from_bits(raw)
    }
    fn to_raw(self) -> u16 {
        self.to_bits()
    }
}

/// An array's shape and order, the same for the result.
#[derive(Debug)]
pub struct Form {
    shape: Vec<u64>,
    order: Order,
    /// The number of elements.
    pub count: usize,
}

/// An input file after its header.
pub struct Input {
    /// The array's form, or the header's number of elements if the file is too short for them.
    pub form: Result<Form, u64>,
    /// The array, before its elements.
    pub array: NpyFile<BufReader<File>>,
}

impl Input {
    /// Opens a file and checks its header against the file's length, before any allocation.
    pub fn open(path: &Path) -> io::Result<Input> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let header = NpyHeader::from_reader(&mut reader)?;
        let form = form(&header, metadata.len());
        Ok(Input { form, array: NpyFile::with_header(header, reader) })
    }
}

fn form(header: &NpyHeader, length: u64) -> Result<Form, u64> {
    let shape = header.shape().to_vec();
    let promised = shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size));
    // The smallest type has two bytes. Of larger types a short file is found while reading.
    let count = promised.filter(|count| count.checked_mul(2).is_some_and(|bytes| bytes <= length));
    match count.map(usize::try_from) {
        Some(Ok(count)) => Ok(Form { shape, order: header.order(), count }),
        _ => Err(promised.unwrap_or(u64::MAX)),
    }
}

/// The output file: written under a temporary name, then renamed; removed on failure.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// The temporary and the final path; `None` for a device or a pipe, which is written directly.
    paths: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// Creates the temporary file, so that an unwritable path fails before the sum. An existing output stays.
    pub fn create(path: &Path) -> io::Result<Output> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) if !file.metadata()?.is_file() => return Ok(Output { file, paths: None }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        // Of a symbolic link the target is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let unfinished = target.with_file_name(name);
        Ok(Output { file: File::create_new(&unfinished)?, paths: Some((unfinished, target)) })
    }

    /// Writes an array of the input's form, and renames the file.
    pub fn save<T: Stored>(self, form: &Form, values: &[T]) -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, &self.file);
        let mut writer = npyz::WriteOptions::new()
            .default_dtype()
            .shape(&form.shape)
            .order(form.order)
            .writer(&mut file)
            .begin_nd()?;
        writer.extend(values.iter().map(|value| value.to_raw()))?;
        writer.finish()?;
        file.flush()?;
        match &self.paths {
            Some((unfinished, target)) => fs::rename(unfinished, target),
            None => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((unfinished, _)) = &self.paths {
            // After the rename this finds no file; a drop cannot report errors.
            let _ = fs::remove_file(unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritable_output_fails_before_the_sum() {
        assert!(Output::create(Path::new("/nonexistent/sum.npy")).is_err());
        assert!(Output::create(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn an_unfinished_output_is_removed_and_replaces_nothing() {
        let path = std::env::temp_dir().join(format!("sumac-output-{}.npy", std::process::id()));
        fs::write(&path, "before").unwrap();
        let output = Output::create(&path).unwrap();
        let (unfinished, _) = output.paths.clone().unwrap();
        assert!(unfinished.exists());
        drop(output);
        assert!(!unfinished.exists());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        let form = Form { shape: vec![2], order: Order::C, count: 2 };
        Output::create(&path).unwrap().save(&form, &[1i32, 2]).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!unfinished.exists());
        assert_eq!(bytes[bytes.len() - 8..], [1, 0, 0, 0, 2, 0, 0, 0]);
    }
}
