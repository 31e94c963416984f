//! Turns an unpacked wheel into an installation: `bin`, `lib` and `include` under one folder.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Place of the installation in a wheel.
#[derive(Debug)]
pub enum Inside {
    /// The folder `NAME-VERSION.data/data`, which an installer would copy over the prefix.
    Data,
    /// The folder of a Python package of this name.
    Package(&'static str),
}

/// Completes the installation inside of `unpacked`, and returns its folder.
///
/// # Errors
/// An error of the system, or the wheel's layout is not that of [`Inside`].
pub fn lay_out(unpacked: &Path, inside: &Inside) -> Result<PathBuf, String> {
    let problem = |error: io::Error| format!("{}: {error}", unpacked.display());
    let base = match inside {
        Inside::Data => ending(unpacked, ".data").map_err(problem)?.map(|data| data.join("data")),
        Inside::Package(name) => Some(unpacked.join(name)),
    };
    let base = base.filter(|base| base.join("bin").is_dir()).ok_or_else(|| {
        format!(
            "{} has no programs where they were expected ({inside:?}): its layout is new",
            unpacked.display()
        )
    })?;
    // Python's unpacker does not keep the executable bits.
    for program in fs::read_dir(base.join("bin")).map_err(problem)? {
        let program = program.map_err(problem)?.path();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).map_err(problem)?;
    }
    // The `.libs` folder has libraries of the builder's system that this one may lack.
    if let Some(libraries) = ending(unpacked, ".libs").map_err(problem)? {
        for library in fs::read_dir(libraries).map_err(problem)? {
            let library = library.map_err(problem)?;
            fs::rename(library.path(), base.join("lib").join(library.file_name())).map_err(problem)?;
        }
    }
    // The `.dist-info` folder has the origin and the licences.
    if let Some(about) = ending(unpacked, ".dist-info").map_err(problem)? {
        fs::rename(about, base.join("dist-info")).map_err(problem)?;
    }
    Ok(base)
}

/// The entry right in `folder` whose name ends with `end`.
fn ending(folder: &Path, end: &str) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(end) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an unpacked wheel with a program at `program`.
    fn unpacked(name: &str, program: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-wheel-{name}-{}", std::process::id()));
        let program = folder.join(program);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::create_dir_all(program.ancestors().nth(2).unwrap().join("lib")).unwrap();
        for folder in ["x-5.0.dist-info/licenses", "x.libs"].map(|name| folder.join(name)) {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(folder.join("x.libs/libgomp-1a2b.so.1"), "").unwrap();
        folder
    }

    #[test]
    fn programs_may_be_run_and_have_their_libraries_and_licences() {
        for (name, program, inside) in [
            ("data", "x-5.0.data/data/bin/mpirun", Inside::Data),
            ("package", "libucx/bin/ucx_info", Inside::Package("libucx")),
        ] {
            let folder = unpacked(name, program);
            let base = lay_out(&folder, &inside).unwrap();
            let program = folder.join(program);
            assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755, "{name}");
            assert_eq!(base, program.parent().unwrap().parent().unwrap());
            assert!(base.join("dist-info/licenses").is_dir(), "{name}");
            assert!(base.join("lib/libgomp-1a2b.so.1").is_file(), "{name}");
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn another_layout_is_refused() {
        let folder = unpacked("new", "somewhere/bin/mpirun");
        let problem = lay_out(&folder, &Inside::Data).unwrap_err();
        assert!(problem.ends_with("(Data): its layout is new"), "{problem}");
        fs::remove_dir_all(folder).unwrap();
    }
}
