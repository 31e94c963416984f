//! The files of a guest, as the archive that Linux unpacks into its memory at the start: cpio, in the format "newc" of
//! the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`, not compressed.

use cpio::newc;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Seek, Write},
    path::{Path, PathBuf},
};

/// Mode of all files. Everything may be executed, which does no harm here.
const FILE_MODE: u32 = 0o100_755;
const FOLDER_MODE: u32 = 0o040_755;

/// Sources of the guest's files, by their paths in the guest without a leading slash. Folders are made as needed.
#[derive(Debug, Default)]
pub struct Image(BTreeMap<String, Content>);

#[derive(Debug)]
enum Content {
    Folder,
    Copy(PathBuf),
    Text(String),
}

impl Image {
    /// A copy of the file at `from`, links followed.
    pub fn copy(&mut self, at: &str, from: impl Into<PathBuf>) {
        self.put(at, Content::Copy(from.into()));
    }

    pub fn text(&mut self, at: &str, text: impl Into<String>) {
        self.put(at, Content::Text(text.into()));
    }

    pub fn folder(&mut self, at: &str) {
        self.put(at, Content::Folder);
    }

    fn put(&mut self, at: &str, content: Content) {
        if let Some((above, _)) = at.rsplit_once('/')
            && !self.0.contains_key(above)
        {
            self.folder(above);
        }
        self.0.insert(at.into(), content);
    }

    /// Writes the archive, and returns its length in bytes.
    pub fn write(&self, path: &Path) -> Result<u64, String> {
        let problem = |what: &Path, error| format!("cannot pack {}: {error}", what.display());
        let mut out = File::create(path).map_err(|error| problem(path, error))?;
        // In this order a folder comes before what it holds.
        for ((at, content), number) in self.0.iter().zip(1..) {
            let (mode, bytes) = match content {
                Content::Folder => (FOLDER_MODE, Vec::new()),
                Content::Text(text) => (FILE_MODE, text.clone().into_bytes()),
                Content::Copy(from) => (FILE_MODE, fs::read(from).map_err(|error| problem(from, error))?),
            };
            out = record(out, number, at, mode, &bytes).map_err(|error| problem(path, error))?;
        }
        let mut out = newc::trailer(out).map_err(|error| problem(path, error))?;
        out.stream_position().map_err(|error| problem(path, error))
    }
}

/// Writes one record. Records of the same number would be links of one file.
fn record<W: Write>(out: W, number: u32, name: &str, mode: u32, data: &[u8]) -> io::Result<W> {
    let size = u32::try_from(data.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut record = newc::Builder::new(name).ino(number).mode(mode).write(out, size);
    record.write_all(data)?;
    record.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_laid_out_as_the_kernel_reads_it() {
        let archive = record(Vec::new(), 1, "init", FILE_MODE, b"hello").unwrap();
        let text = String::from_utf8(archive).unwrap();
        let (header, rest) = text.split_at(110);
        assert_eq!(&header[..6], "070701");
        let field = |index: usize| u32::from_str_radix(&header[6 + 8 * index..][..8], 16).unwrap();
        assert_eq!([field(1), field(6), field(11)], [FILE_MODE, 5, 5], "mode, size, length of the name");
        // 110 + 5 bytes are padded by one, 5 bytes by three.
        assert_eq!(rest, "init\0\0hello\0\0\0");
    }

    #[test]
    fn folders_come_before_what_they_hold() {
        let mut image = Image::default();
        image.text("usr/lib/x", "x");
        image.text("init", "");
        let names: Vec<_> = image.0.keys().map(String::as_str).collect();
        assert_eq!(names, ["init", "usr", "usr/lib", "usr/lib/x"]);
    }

    /// The common `cpio` reads the archive.
    #[test]
    fn cpio_reads_what_is_written() {
        let folder = std::env::temp_dir().join(format!("xtask-image-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, other) = (folder.join("image"), folder.join("other"));
        std::fs::write(&other, [7; 4097]).unwrap();
        let mut image = Image::default();
        image.text("a/b", "text");
        image.copy("a/c", &other);
        let length = image.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
        let listed = std::process::Command::new("cpio").arg("-itF").arg(&path).output();
        std::fs::remove_dir_all(&folder).unwrap();
        match listed {
            Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "a\na/b\na/c\n"),
            Err(why) => println!("skipped the comparison with cpio: {why}"),
        }
    }
}
