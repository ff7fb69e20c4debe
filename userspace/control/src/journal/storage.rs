//! The two files of the journal: the one that is appended to, and its successor while that is written.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::state_dir::{check_directory, check_file, private};

/// A file of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileOf {
    /// The file that is appended to.
    Journal,
    /// The file that takes its place.
    Part,
}

/// The operations that the journal needs of a file system. Each may fail, and then may be done in part.
pub(crate) trait Storage: Send {
    fn read(&mut self) -> io::Result<Vec<u8>>;
    /// Shortens the journal.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Makes the part, empty.
    fn create_part(&mut self) -> io::Result<()>;
    /// Writes at the end of a file; returns the number of bytes that were written.
    fn write(&mut self, file: FileOf, bytes: &[u8]) -> io::Result<usize>;
    fn sync(&mut self, file: FileOf) -> io::Result<()>;
    /// Puts the part in the journal's place.
    fn rename_part(&mut self) -> io::Result<()>;
    fn sync_directory(&mut self) -> io::Result<()>;
    fn remove_part(&mut self) -> io::Result<()>;
}

/// Writes all of the bytes.
pub(crate) fn write_all(storage: &mut dyn Storage, file: FileOf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match storage.write(file, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The files `journal` and `journal.part` of a state directory.
pub(super) struct Directory {
    path: PathBuf,
    directory: File,
    journal: File,
    part: Option<File>,
}

impl Directory {
    /// Opens the journal, in a directory that is this process's alone to change.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let directory = File::open(path)?;
        check_directory(&directory)?;
        let journal = private().read(true).append(true).open(path.join("journal"))?;
        check_file(&journal, &path.join("journal"))?;
        Ok(Directory { path: path.to_owned(), directory, journal, part: None })
    }

    fn part_path(&self) -> PathBuf {
        self.path.join("journal.part")
    }

    fn file(&mut self, file: FileOf) -> io::Result<&mut File> {
        match file {
            FileOf::Journal => Ok(&mut self.journal),
            FileOf::Part => self.part.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

impl Storage for Directory {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.journal.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.journal.set_len(len)
    }

    fn create_part(&mut self) -> io::Result<()> {
        // An earlier process may have left one. A link of this name is removed, not followed.
        self.remove_part()?;
        self.part = Some(private().append(true).create_new(true).open(self.part_path())?);
        Ok(())
    }

    fn write(&mut self, file: FileOf, bytes: &[u8]) -> io::Result<usize> {
        self.file(file)?.write(bytes)
    }

    fn sync(&mut self, file: FileOf) -> io::Result<()> {
        self.file(file)?.sync_data()
    }

    fn rename_part(&mut self) -> io::Result<()> {
        fs::rename(self.part_path(), self.path.join("journal"))?;
        if let Some(part) = self.part.take() {
            self.journal = part;
        }
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn remove_part(&mut self) -> io::Result<()> {
        self.part = None;
        match fs::remove_file(self.part_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
