//! Questions to the C compiler, by a program that includes the header and prints the answers.

use crate::Layout;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers of the oracle.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Size and alignment of the structures, by name.
    pub structures: BTreeMap<String, (usize, usize)>,
    /// Offset and size of the fields, by the names of structure and field.
    pub fields: BTreeMap<(String, String), (usize, usize)>,
    /// Whether each of our expressions equals the header's constant, by the constant's name.
    pub constants: BTreeMap<String, bool>,
}

/// Asks the header for these structures, and whether each expression equals the constant of its name.
///
/// # Panics
/// If there is no compiler or no header, with the compiler's text: a caller of the oracle needs an answer.
pub fn ask(layouts: &[Layout], constants: &[(String, String)]) -> Verdict {
    let program = compile("oracle", &question(layouts, constants), None);
    let output = program.command().output().expect("the program was just built");
    assert!(output.status.success(), "{output:?}");
    let mut verdict = Verdict::default();
    for line in String::from_utf8(output.stdout).expect("ASCII").lines() {
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<usize>().expect("a number");
        match words[0] {
            "struct" => drop(verdict.structures.insert(words[1].into(), (number(2), number(3)))),
            "field" => {
                let name = (words[1].into(), words[2].into());
                verdict.fields.insert(name, (number(3), number(4)));
            }
            _ => drop(verdict.constants.insert(words[1].into(), number(2) == 1)),
        }
    }
    verdict
}

fn question(layouts: &[Layout], constants: &[(String, String)]) -> String {
    let mut body = String::new();
    for layout in layouts {
        let c =
            if layout.name == "ibv_gid" { "union ibv_gid".into() } else { format!("struct {}", layout.name) };
        let name = layout.name;
        writeln!(body, "  printf(\"struct {name} %zu %zu\\n\", sizeof({c}), _Alignof({c}));").expect("text");
        for field in &layout.fields {
            let field = &field.name;
            writeln!(
                body,
                "  printf(\"field {name} {field} %zu %zu\\n\", offsetof({c}, {field}), sizeof((({c} *)0)->{field}));"
            )
            .expect("text");
        }
    }
    for (name, expression) in constants {
        writeln!(
            body,
            "  printf(\"constant {name} %d\\n\", (unsigned)({expression}) == (unsigned)({name}));"
        )
        .expect("text");
    }
    format!(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{{\n{body}  return 0;\n}}\n"
    )
}

/// A compiled program, in a folder that is deleted with it.
#[derive(Debug)]
pub struct Program {
    folder: PathBuf,
    path: PathBuf,
}

impl Program {
    /// Returns the command that runs the program.
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A folder that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Compiles a C program with the header of `VERBS_INCLUDE` or of the system, and with `library`.
///
/// # Panics
/// The errors of [`ask`].
pub fn compile(name: &str, source: &str, library: Option<&Path>) -> Program {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    // The number keeps tests apart that run side by side.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("udeck-verbs-oracle-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for a program");
    let (file, program) = (folder.join(format!("{name}.c")), Program { path: folder.join(name), folder });
    std::fs::write(&file, source).expect("a source file");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    let mut command = Command::new(&compiler);
    command.args(["-std=gnu11", "-Wall", "-pthread", "-o"]).arg(&program.path).arg(&file);
    if let Some(include) = std::env::var_os("VERBS_INCLUDE") {
        command.arg("-I").arg(include);
    }
    command.args(library);
    let output = command.output().unwrap_or_else(|problem| panic!("no C compiler ({compiler:?}): {problem}"));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} fails; the headers are in libibverbs-dev and librdmacm-dev, or where VERBS_INCLUDE says:\n{words}"
    );
    program
}
