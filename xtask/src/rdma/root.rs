//! A folder into which Debian packages were unpacked, and how its programs run: by the dynamic linker and the libraries
//! that lie there too, so that nothing depends on what this machine has installed.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Folder of a guest's libraries, where its linker looks by default.
pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
pub const LINKER: &str = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/// The folder of unpacked packages.
#[derive(Debug)]
pub struct Root(pub PathBuf);

impl Root {
    /// The path of a file, named without `usr/`: one release of Debian has it below `usr/`, and another not.
    pub fn find(&self, path: &str) -> Result<PathBuf, String> {
        let places = [self.0.join("usr").join(path), self.0.join(path)];
        let found = places.into_iter().find(|place| place.exists());
        found.ok_or_else(|| format!("none of the unpacked packages has {path}"))
    }

    /// The only file of a folder, named as in [`find`](Root::find), whose name has this beginning.
    pub fn find_beginning(&self, folder: &str, beginning: &str) -> Result<PathBuf, String> {
        let files = self.find(folder)?.read_dir().map_err(|error| format!("{folder}: {error}"))?;
        let mut fits = files.flatten().map(|entry| entry.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
        });
        match (fits.next(), fits.next()) {
            (Some(path), None) => Ok(path),
            (None, _) => Err(format!("none of the unpacked packages has {folder}/{beginning}*")),
            (Some(_), Some(_)) => Err(format!("several files are {folder}/{beginning}*")),
        }
    }

    /// Makes a command that runs a program of the folder, to be completed by arguments.
    pub fn command(&self, program: &str) -> Result<Command, String> {
        let mut command = self.linker()?;
        command.arg(self.find(program)?);
        Ok(command)
    }

    /// Like [`command`](Root::command), for a program that behaves by the name it is called by.
    pub fn command_named(&self, name: &str, program: &str) -> Result<Command, String> {
        let mut command = self.linker()?;
        command.args(["--argv0", name]).arg(self.find(program)?);
        Ok(command)
    }

    /// The shared libraries that a program needs, directly or not: those of this folder where they exist. The program may
    /// lie elsewhere.
    pub fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>, String> {
        let mut command = self.linker()?;
        let output = command.arg("--list").arg(program).output();
        let output = output.map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let about = |problem| format!("{}: {problem}", program.display());
        if !output.status.success() {
            return Err(about(String::from_utf8_lossy(&output.stderr).trim().into()));
        }
        listed(&String::from_utf8_lossy(&output.stdout)).map_err(about)
    }

    fn linker(&self) -> Result<Command, String> {
        let folders = ["usr/", ""].map(|usr| self.0.join(format!("{usr}lib/x86_64-linux-gnu")));
        let folders = folders.map(|folder| folder.display().to_string()).join(":");
        // Found by `LINKER`, because its usual path is a link to the linker of this machine.
        let mut command = Command::new(self.find(LINKER)?);
        command.args(["--library-path", &folders]);
        Ok(command)
    }
}

/// Puts the program at `at`, and its libraries where the guest finds them.
impl super::image::Image {
    pub fn program(&mut self, root: &Root, at: &str, program: &Path) -> Result<(), String> {
        self.copy(at, program);
        for library in root.libraries(program)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            self.copy(&format!("{LIBRARIES}/{name}"), &library);
        }
        Ok(())
    }
}

/// Reads lines `libc.so.6 => /lib/libc.so.6 (0x1234)`; lines without an arrow are the kernel's library and the linker itself.
fn listed(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for (name, path) in text.lines().filter_map(|line| line.trim().split_once(" => ")) {
        match path.rsplit_once(" (") {
            // The program names the library by an absolute path.
            _ if name.starts_with('/') => {}
            Some((path, _)) => found.push(PathBuf::from(path)),
            None => return Err(format!("{name} is {path}")),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_the_linker_lists() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibibverbs.so.1 => /a b/libibverbs.so.1 (0x00007f23)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => lib/ld-linux-x86-64.so.2 (0x00007f23)\n\
                    \t/lib/ld-linux-x86-64.so.2 (0x00007f23)\n";
        assert_eq!(listed(text).unwrap(), [PathBuf::from("/a b/libibverbs.so.1")]);
    }

    #[test]
    fn a_library_that_is_missing_is_an_error_with_its_name() {
        let problem = listed("\tlibx.so.1 => not found\n").unwrap_err();
        assert_eq!(problem, "libx.so.1 is not found");
    }
}
