//! Comparison of our structures with the header's, and tests with files that are no such library.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// The variable that names the folder of another pmix.h.
const INCLUDE: &str = "PMIX_INCLUDE";
/// Folders in which the header may lie; Debian has one for each architecture.
const FOLDERS: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/pmix2/include", "/usr/lib/aarch64-linux-gnu/pmix2/include", "/usr/include"];

#[test]
fn structures_and_constants_are_those_of_the_header() {
    let (named, folders) = (env::var_os(INCLUDE).map(PathBuf::from), FOLDERS.map(PathBuf::from));
    let mut folders = named.into_iter().chain(folders);
    let Some(folder) = folders.find(|folder| folder.join("pmix.h").exists()) else {
        println!("skipped: there is no pmix.h (install libpmix-dev, or name its folder by {INCLUDE})");
        return;
    };
    let compiler = env::var_os("CC").unwrap_or_else(|| OsString::from("cc"));
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: there is no C compiler ({})", compiler.display());
        return;
    }
    let place = env::temp_dir().join(format!("udeck-pmix-header-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (source, program) = (place.join("question.c"), place.join("question"));
    std::fs::write(&source, question()).unwrap();
    let mut compile = Command::new(&compiler);
    let compiled = compile.arg("-I").arg(&folder).arg("-o").arg(&program).arg(&source).output().unwrap();
    let answer = Command::new(&program).output();
    let _ = std::fs::remove_dir_all(&place);
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let answer = String::from_utf8(answer.unwrap().stdout).unwrap();
    let header: Vec<_> = answer.lines().collect();
    let numbers = OURS.iter().map(|(what, number)| format!("{what} = {number}"));
    let keys = OUR_KEYS.iter().map(|(what, key)| format!("{what} = {}", key.to_str().unwrap()));
    let ours: Vec<_> = numbers.chain(keys).collect();
    assert_eq!(header, ours, "the header is {}", folder.display());
}

const OURS: &[(&str, usize)] = &[
    ("sizeof(pmix_proc_t)", size_of::<Proc>()),
    ("_Alignof(pmix_proc_t)", align_of::<Proc>()),
    ("offsetof(pmix_proc_t, nspace)", offset_of!(Proc, namespace)),
    ("sizeof(((pmix_proc_t *)0)->nspace)", NAMESPACE),
    ("offsetof(pmix_proc_t, rank)", offset_of!(Proc, rank)),
    ("sizeof(pmix_rank_t)", size_of::<u32>()),
    ("sizeof(pmix_value_t)", size_of::<Value>()),
    ("_Alignof(pmix_value_t)", align_of::<Value>()),
    ("offsetof(pmix_value_t, type)", offset_of!(Value, kind)),
    ("sizeof(pmix_data_type_t)", size_of::<u16>()),
    ("offsetof(pmix_value_t, data)", offset_of!(Value, data)),
    ("sizeof(((pmix_value_t *)0)->data)", size_of::<Data>()),
    ("offsetof(pmix_value_t, data.flag)", offset_of!(Value, data.flag)),
    ("sizeof(((pmix_value_t *)0)->data.flag)", size_of::<u8>()),
    ("offsetof(pmix_value_t, data.string)", offset_of!(Value, data.string)),
    ("offsetof(pmix_value_t, data.uint32)", offset_of!(Value, data.uint32)),
    ("sizeof(pmix_info_t)", size_of::<Info>()),
    ("_Alignof(pmix_info_t)", align_of::<Info>()),
    ("offsetof(pmix_info_t, key)", offset_of!(Info, key)),
    ("sizeof(((pmix_info_t *)0)->key)", KEY),
    ("offsetof(pmix_info_t, flags)", offset_of!(Info, flags)),
    ("sizeof(pmix_info_directives_t)", size_of::<u32>()),
    ("offsetof(pmix_info_t, value)", offset_of!(Info, value)),
    ("sizeof(pmix_status_t)", size_of::<c_int>()),
    ("sizeof(pmix_scope_t)", size_of::<u8>()),
    ("(pmix_rank_t)(PMIX_RANK_WILDCARD)", WILDCARD as usize),
    ("PMIX_SUCCESS", 0),
    ("PMIX_BOOL", BOOL as usize),
    ("PMIX_STRING", STRING as usize),
    ("PMIX_UINT32", UINT32 as usize),
    ("PMIX_GLOBAL", GLOBAL as usize),
    ("-(PMIX_ERR_UNREACH)", 25),
    ("-(PMIX_ERR_COMM_FAILURE)", 49),
    ("-(PMIX_ERR_LOST_CONNECTION)", 61),
];

const OUR_KEYS: [(&str, &CStr); 3] =
    [("PMIX_JOB_SIZE", JOB_SIZE), ("PMIX_COLLECT_DATA", COLLECT_DATA), ("PMIX_IMMEDIATE", IMMEDIATE)];

/// Returns a program that prints the header's values. It compiles only if our functions' types are the
/// header's.
fn question() -> String {
    let mut body = String::new();
    for (what, _) in OURS {
        writeln!(body, "  printf(\"{what} = %zu\\n\", (size_t)({what}));").unwrap();
    }
    for (what, _) in OUR_KEYS {
        writeln!(body, "  printf(\"{what} = %s\\n\", {what});").unwrap();
    }
    format!(
        "#include <pmix.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         #define SAME(f, t) _Static_assert(_Generic(&f, t: 1, default: 0), #f)\n\
         SAME(PMIx_Init, pmix_status_t (*)(pmix_proc_t *, pmix_info_t *, size_t));\n\
         SAME(PMIx_Finalize, pmix_status_t (*)(const pmix_info_t *, size_t));\n\
         SAME(PMIx_Put, pmix_status_t (*)(pmix_scope_t, const char *, pmix_value_t *));\n\
         SAME(PMIx_Commit, pmix_status_t (*)(void));\n\
         SAME(PMIx_Fence, pmix_status_t (*)(const pmix_proc_t *, size_t, const pmix_info_t *, size_t));\n\
         SAME(PMIx_Get, pmix_status_t (*)(const pmix_proc_t *, const char *, const pmix_info_t *, size_t, pmix_value_t **));\n\
         SAME(PMIx_Abort, pmix_status_t (*)(int, const char *, pmix_proc_t *, size_t));\n\
         SAME(PMIx_Error_string, const char *(*)(pmix_status_t));\n\
         SAME(PMIx_Get_version, const char *(*)(void));\n\
         int main(void)\n{{\n{body}  return 0;\n}}\n"
    )
}

#[test]
fn a_missing_library_is_told_in_the_loaders_words() {
    let missing = Library::open(&Which::File(Path::new("/nowhere/libpmix.so.2"))).unwrap_err().unwrap();
    assert!(missing.contains("/nowhere/libpmix.so.2"), "{missing}");
}

#[test]
fn a_library_that_is_not_in_the_process_is_no_error() {
    assert_eq!(Library::open(&Which::Loaded("libno-such-thing.so.7")).unwrap_err(), None);
}

#[test]
fn another_library_lacks_the_functions() {
    let other = Library::open(&Which::File(Path::new("libc.so.6"))).unwrap_err().unwrap();
    assert_eq!(other, "libc.so.6 is not PMIx: it has no PMIx_Init");
}
