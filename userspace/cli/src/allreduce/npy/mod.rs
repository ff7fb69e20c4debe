//! Input and output arrays in numpy's format.

mod header;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Read, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use sumac_client::{Element, bf16, f16};

use self::header::{Endian, Header};

/// An element's form in a file.
pub trait Stored: Element {
    /// numpy's name of the type: its kind and its bytes.
    const TYPE: &str;
    fn read(bytes: &[u8], endian: Endian) -> Option<Self>;
    fn to_file(self, out: &mut impl Write) -> io::Result<()>;
}

macro_rules! stored {
    ($($element:ty, $type:literal, $from_bits:expr, $to_bits:expr, $bits:ty;)*) => {$(
        impl Stored for $element {
            const TYPE: &str = $type;
            fn read(bytes: &[u8], endian: Endian) -> Option<$element> {
                let bytes = bytes.try_into().ok()?;
                let bits = match endian {
                    Endian::Little => <$bits>::from_le_bytes(bytes),
                    Endian::Big => <$bits>::from_be_bytes(bytes),
                };
                Some($from_bits(bits))
            }
            fn to_file(self, out: &mut impl Write) -> io::Result<()> {
                out.write_all(&$to_bits(self).to_le_bytes())
            }
        }
    )*};
}

// Numpy has no bfloat16: its bits are stored as uint16.
stored! {
    f32, "f4", f32::from_bits, f32::to_bits, u32;
    f16, "f2", f16::from_bits, f16::to_bits, u16;
    i32, "i4", i32::from, i32::from, i32;
    bf16, "u2", bf16::from_bits, bf16::to_bits, u16;
}

/// An array's shape and order, the same for the result.
#[derive(Debug)]
pub struct Form {
    shape: Vec<u64>,
    fortran_order: bool,
    /// The number of elements.
    pub count: usize,
}

/// An input file after its header.
pub struct Input {
    /// The array's form, or the header's number of elements if the file is too short for them.
    pub form: Result<Form, u64>,
    /// The array, before its elements.
    pub array: Array,
}

/// The elements of a file.
pub struct Array {
    /// Their type, as the header has it: byte order, kind and bytes.
    pub descr: String,
    reader: BufReader<File>,
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
        let header = Header::read(&mut reader)?;
        let descr = header.descr.clone();
        Ok(Input { form: form(header, metadata.len()), array: Array { descr, reader } })
    }
}

impl Array {
    /// The elements in the file's order, if they are of this type.
    pub fn try_data<T: Stored>(self) -> Result<Elements<T>, Array> {
        match Endian::of(&self.descr, T::TYPE) {
            Some(endian) => Ok(Elements { reader: self.reader, endian, element: PhantomData }),
            None => Err(self),
        }
    }
}

/// Reads elements of a file one by one; an error where it ends.
pub struct Elements<T> {
    reader: BufReader<File>,
    endian: Endian,
    element: PhantomData<T>,
}

impl<T: Stored> Iterator for Elements<T> {
    type Item = io::Result<T>;

    fn next(&mut self) -> Option<io::Result<T>> {
        let mut bytes = [0; size_of::<u32>()];
        let bytes = bytes.get_mut(..size_of::<T>())?;
        match self.reader.read_exact(bytes) {
            Ok(()) => T::read(bytes, self.endian).map(Ok),
            Err(error) => Some(Err(error)),
        }
    }
}

fn form(header: Header, length: u64) -> Result<Form, u64> {
    let promised = header.shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size));
    // The smallest type has two bytes. Of larger types a short file is found while reading.
    let count = promised.filter(|count| count.checked_mul(2).is_some_and(|bytes| bytes <= length));
    match count.map(usize::try_from) {
        Some(Ok(count)) => Ok(Form { shape: header.shape, fortran_order: header.fortran_order, count }),
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
        let descr = format!("<{}", T::TYPE);
        let header = Header { descr, fortran_order: form.fortran_order, shape: form.shape.clone() };
        header.write(&mut file)?;
        values.iter().try_for_each(|value| value.to_file(&mut file))?;
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
        let form = Form { shape: vec![2], fortran_order: false, count: 2 };
        Output::create(&path).unwrap().save(&form, &[1i32, 2]).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!unfinished.exists());
        assert_eq!(bytes[bytes.len() - 8..], [1, 0, 0, 0, 2, 0, 0, 0]);
    }
}
