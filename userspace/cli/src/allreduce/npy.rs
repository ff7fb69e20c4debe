//! Arrays in numpy's files: what is in one, and how the result is written.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use npyz::{NpyFile, NpyHeader, Order, WriterBuilder};
use sumac_client::{Element, bf16, f16};

/// An element as it stands in a file.
pub trait Stored: Element {
    /// Its type there.
    type Raw: npyz::AutoSerialize + npyz::Deserialize + Copy;
    /// From the file.
    fn from_raw(raw: Self::Raw) -> Self;
    /// Into the file.
    fn to_raw(self) -> Self::Raw;
}

macro_rules! as_it_is {
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

as_it_is!(f32, f16, i32);

/// Numpy has no such type: its bits stand in files as uint16.
impl Stored for bf16 {
    type Raw = u16;
    fn from_raw(raw: u16) -> bf16 {
        bf16::from_bits(raw)
    }
    fn to_raw(self) -> u16 {
        self.to_bits()
    }
}

/// An array's form, which the result shares.
#[derive(Debug)]
pub struct Form {
    shape: Vec<u64>,
    order: Order,
    /// How many elements.
    pub count: usize,
}

/// An opened file, whose header has been read.
pub struct Input {
    /// The array's form, or how many elements its header promises where the file is too short for them.
    pub form: Result<Form, u64>,
    /// The array, whose elements have not been read.
    pub array: NpyFile<BufReader<File>>,
}

impl Input {
    /// Opens a file and looks at its header, before anything is allocated for what that promises.
    pub fn open(path: &Path) -> io::Result<Input> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no ordinary file"));
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
    // No type that can be summed has less than two bytes; with larger ones the reading ends in the middle.
    let count = promised.filter(|count| count.checked_mul(2).is_some_and(|bytes| bytes <= length));
    match count.map(usize::try_from) {
        Some(Ok(count)) => Ok(Form { shape, order: header.order(), count }),
        _ => Err(promised.unwrap_or(u64::MAX)),
    }
}

/// Where the result goes: a file beside the final place until it is complete, removed when that is not to be.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// Where the file is now and where it belongs; `None` for a device or a pipe, which is written directly.
    paths: Option<(PathBuf, PathBuf)>,
}

impl Output {
    /// Finds out whether the result can be written, and changes nothing that is there.
    pub fn create(path: &Path) -> io::Result<Output> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) if !file.metadata()?.is_file() => return Ok(Output { file, paths: None }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        // A link stays one; what it leads to is replaced.
        let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = place.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let unfinished = place.with_file_name(name);
        Ok(Output { file: File::create_new(&unfinished)?, paths: Some((unfinished, place)) })
    }

    /// Writes an array of the input's form, and puts it in its place.
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
            Some((unfinished, place)) => fs::rename(unfinished, place),
            None => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((unfinished, _)) = &self.paths {
            // After the renaming there is nothing left to remove, and otherwise nobody to tell.
            let _ = fs::remove_file(unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_noticed_before_there_is_a_sum() {
        assert!(Output::create(Path::new("/nonexistent/sum.npy")).is_err());
        assert!(Output::create(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn an_output_that_is_not_finished_leaves_nothing_and_replaces_nothing() {
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
