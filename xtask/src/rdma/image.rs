//! The files of a guest, as the archive that Linux unpacks into its memory at the start: cpio, in the format "newc" of
//! the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`, not compressed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Mode of all files. Everything may be executed, which does no harm here.
const FILE_MODE: u32 = 0o100_755;
const FOLDER_MODE: u32 = 0o040_755;
/// The name of the last record.
const END: &str = "TRAILER!!!";

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
        let mut out = File::create(path).map(Archive::new).map_err(|error| problem(path, error))?;
        // In this order a folder comes before what it holds.
        for (at, content) in &self.0 {
            match content {
                Content::Folder => out.record(at, FOLDER_MODE, &[]).map_err(|e| problem(path, e))?,
                Content::Text(text) => {
                    out.record(at, FILE_MODE, text.as_bytes()).map_err(|e| problem(path, e))?;
                }
                Content::Copy(from) => {
                    let mut bytes = Vec::new();
                    File::open(from)
                        .and_then(|mut file| file.read_to_end(&mut bytes))
                        .and_then(|_| out.record(at, FILE_MODE, &bytes))
                        .map_err(|error| problem(from, error))?;
                }
            }
        }
        out.record(END, 0, &[]).map_err(|error| problem(path, error))?;
        Ok(out.length)
    }
}

struct Archive<W> {
    out: W,
    length: u64,
    records: u32,
}

impl<W: Write> Archive<W> {
    fn new(out: W) -> Self {
        Archive { out, length: 0, records: 0 }
    }

    /// The header is thirteen numbers of eight hexadecimal digits:
    ///
    /// ```text
    /// 0      6       14    22   30   38     46     54    62      94          102
    /// 070701 number  mode  uid  gid  links  mtime  size  4 × dev length+1    0     name\0 pad data pad
    /// ```
    fn record(&mut self, name: &str, mode: u32, data: &[u8]) -> io::Result<()> {
        self.records += 1;
        let size = u32::try_from(data.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let numbers = [self.records, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let header = numbers.iter().fold(String::from("070701"), |text, n| text + &format!("{n:08x}"));
        self.padded(&[header.as_bytes(), name.as_bytes(), b"\0"])?;
        self.padded(&[data])
    }

    /// Writes parts, padded to a multiple of four bytes.
    fn padded(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        for part in parts {
            self.out.write_all(part)?;
            self.length += part.len() as u64;
        }
        let padding = (4 - self.length % 4) % 4;
        self.length += padding;
        self.out.write_all(&[0; 3][..padding as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::new(Vec::new());
        archive.record("init", FILE_MODE, b"hello").unwrap();
        let text = String::from_utf8(archive.out).unwrap();
        let (header, rest) = text.split_at(110);
        assert_eq!(&header[..6], "070701");
        let field = |index: usize| u32::from_str_radix(&header[6 + 8 * index..][..8], 16).unwrap();
        assert_eq!([field(1), field(6), field(11)], [FILE_MODE, 5, 5], "mode, size, length of the name");
        // 110 + 5 bytes are padded by one, 5 bytes by three.
        assert_eq!(rest, "init\0\0hello\0\0\0");
        assert_eq!(archive.length, 124);
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
