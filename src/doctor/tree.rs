//! Files of the kernel with its state; a test makes its own.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// `/proc`, `/sys` and `/dev`, below a folder.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub fn system() -> Self {
        Tree("/".into())
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// Returns a file's text without the space around it; `None` if it cannot be read, or is empty.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns the names in a folder, sorted; numbers are sorted as numbers.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// Returns the value of `name`, in a file of lines `name: value`.
    pub fn field(&self, path: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned())
    }
}

/// Returns the chosen word, which the kernel shows in brackets, as in `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(chosen, _)| chosen)
}

/// Writes a size as `1.5 GiB`: with at most one digit behind the point.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), units[unit])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A tree of these files, which are removed when it is dropped.
    pub(crate) struct MadeUp(pub(crate) Tree);

    impl MadeUp {
        pub(crate) fn of(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("doctor-tree-{}-{number}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            MadeUp(Tree(root))
        }
    }

    impl Drop for MadeUp {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.0);
        }
    }

    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let made_up = MadeUp::of(&[
            ("a/one", " 7\n"),
            ("a/2", "x"),
            ("a/10", ""),
            ("status", "Name:\tcat\nCpus_allowed_list:\t0-3,5\n"),
        ]);
        let tree = &made_up.0;
        assert_eq!((tree.number("a/one"), tree.read("a/10"), tree.read("b")), (Some(7), None, None));
        assert_eq!(tree.list("a"), ["2", "10", "one"]);
        assert_eq!(tree.field("status", "Cpus_allowed_list").as_deref(), Some("0-3,5"));
        assert_eq!(tree.field("status", "Cpus"), None);
    }

    #[test]
    fn choices_and_sizes_are_shown_to_people() {
        assert_eq!((chosen("always [madvise] never"), chosen("plain")), ("madvise", "plain"));
        let shown = [0, 1023, 1024, 1536, 4 << 20, 48 << 30, 1 << 60].map(bytes);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1 KiB", "1.5 KiB", "4 MiB", "48 GiB", "1048576 TiB"]);
    }
}
