//! Rules about words in source text: `unsafe` only in files that handle memory, no transport's name in `deck`.
//!
//! These rules read the text because no lint can express them: whether a file may contain `unsafe` depends on its
//! folder. Clippy checks that each `unsafe` block has its `// SAFETY:` line.

use crate::{
    files::{below, read},
    rust_text::{Keep, words},
};
use std::path::{Path, PathBuf};

/// A place for `unsafe`: files whose path begins with `at`, and what it allows.
struct UnsafePlace {
    at: &'static str,
    allowed: Allowed,
}

enum Allowed {
    Anything,
    /// A block around a call of this function.
    Call(&'static str),
    /// `unsafe trait` and `unsafe impl`: a promise that is stated or given, without unsafe operations.
    Promise,
}

const UNSAFE_PLACES: &[UnsafePlace] = &[
    UnsafePlace { at: "crates/sys/", allowed: Allowed::Anything },
    // PMIx is a C library, loaded when needed.
    UnsafePlace { at: "crates/boot/start/pmix/ffi", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/via/mem", allowed: Allowed::Anything },
    // An implementation of a device or a port is responsible for memory.
    UnsafePlace { at: "crates/via/transport.rs", allowed: Allowed::Promise },
    UnsafePlace { at: "crates/via/tests/script/", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/via/vi/sends/tests.rs", allowed: Allowed::Promise },
    UnsafePlace { at: "crates/via/tests/ui/", allowed: Allowed::Promise },
    UnsafePlace { at: "crates/session/memory", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/session/framed/connection/pieces.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/session/framed/device.rs", allowed: Allowed::Promise },
    UnsafePlace { at: "crates/session/framed/endpoint.rs", allowed: Allowed::Promise },
    UnsafePlace { at: "crates/session/framed/tests/costs.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/session/framed/tests/pair.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "tests/conformance/counting.rs", allowed: Allowed::Promise },
    UnsafePlace { at: "tests/conformance/counting.rs", allowed: Allowed::Call("raw_device") },
    UnsafePlace { at: "transports/", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/c/", allowed: Allowed::Anything },
    // numpy's C interface, arrays over message memory, and calls on the program's arrays.
    UnsafePlace { at: "bindings/python/numpy.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/content.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/memory.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/message.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/shared.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/group.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/arrays.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/python/request.rs", allowed: Allowed::Anything },
    // C's pointers and handles, and the program's memory at addresses that it registered.
    UnsafePlace { at: "bindings/dat/ffi", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/dat/api/memory.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/rdma/memory.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "bindings/dat/core/slot.rs", allowed: Allowed::Anything },
    // The C library's `atexit`.
    UnsafePlace { at: "src/names/launched.rs", allowed: Allowed::Anything },
    // Calls for processes and signals that rustix lacks.
    UnsafePlace { at: "crates/launch/guard.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/launch/orphans.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/launch/signals.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/launch/tests/chain.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "crates/launch/", allowed: Allowed::Call("pre_exec") },
    // The cases of the raw posts, which are `unsafe` to call.
    UnsafePlace { at: "tests/conformance/cases/raw.rs", allowed: Allowed::Anything },
    // The interface of a C library, which trusts its caller's pointers.
    UnsafePlace { at: "tests/mock-verbs/", allowed: Allowed::Anything },
    // Code for processor features that are checked at run time.
    UnsafePlace { at: "bench-apps/nas-ft/columns/avx2.rs", allowed: Allowed::Call("transform_with") },
    UnsafePlace { at: "bench-apps/nas-ft/columns/avx2.rs", allowed: Allowed::Call("transform_rows") },
    UnsafePlace { at: "bench-apps/nas-ft/columns/avx2.rs", allowed: Allowed::Call("_mm_prefetch") },
    // The counted calls of C libraries, as C programs make them.
    UnsafePlace { at: "bench-apps/counts/dat-paths/", allowed: Allowed::Anything },
    UnsafePlace { at: "bench-apps/counts/verbs-paths/", allowed: Allowed::Anything },
    UnsafePlace { at: "tests/faults/", allowed: Allowed::Promise },
    UnsafePlace { at: "tests/faults/lib.rs", allowed: Allowed::Call("raw_device") },
    UnsafePlace { at: "tests/it/ends/fork.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "tests/jobs/soak/rank/fork.rs", allowed: Allowed::Anything },
    UnsafePlace { at: "examples/with_mpi.rs", allowed: Allowed::Anything },
];

/// Largest distance in lines from `unsafe` to the call that excuses it.
const CALL_WITHIN_LINES: usize = 2;

const TRANSPORTS: [&str; 5] = ["shm", "sim", "tcp", "udp", "verbs"];

/// A source file. Its path is relative to the root, with `/` between its parts.
pub struct Source {
    pub path: String,
    pub text: String,
}

/// Every Rust file below the root, except build outputs and hidden folders.
pub fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let source = |path: PathBuf| {
        let below = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        Ok(Source { path: below, text: read(&path)? })
    };
    below(root, ".rs")?.into_iter().map(source).collect()
}

/// Violations of the rules, as `path:line: what`.
pub fn violations(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        found.extend(misplaced_unsafe(source).unwrap_or_else(|problem| vec![unreadable(source, &problem)]));
        // Tests make no decisions, and name a transport where they need connections.
        if source.path.starts_with("crates/deck/") && !source.path.ends_with("/tests.rs") {
            found.extend(named_transports(source).unwrap_or_default());
        }
    }
    found.extend(deck_without_forbid(sources));
    found
}

fn unreadable(source: &Source, problem: &str) -> String {
    format!("{}:{problem}", source.path)
}

fn misplaced_unsafe(source: &Source) -> Result<Vec<String>, String> {
    let words = words(&source.text, Keep::Code)?;
    let allowed = |index: usize| {
        let mut places = UNSAFE_PLACES.iter().filter(|place| source.path.starts_with(place.at));
        places.any(|place| place.allowed.covers(&words[index..]))
    };
    let misplaced = (0..words.len())
        .filter(|&index| words[index].1 == "unsafe" && !allowed(index))
        .map(|index| {
            let place = format!("{}:{}", source.path, words[index].0);
            format!("{place}: `unsafe` stands where it may not: UNSAFE_PLACES in xtask/src/unsafe_policy.rs has the places")
        });
    Ok(misplaced.collect())
}

impl Allowed {
    /// Whether these words, of which the first is `unsafe`, match this kind.
    fn covers(&self, words: &[(usize, String)]) -> bool {
        match self {
            Allowed::Anything => true,
            Allowed::Call(name) => {
                let last_line = words[0].0 + CALL_WITHIN_LINES;
                words.iter().take_while(|(line, _)| *line <= last_line).any(|(_, word)| word == name)
            }
            Allowed::Promise => words.get(1).is_some_and(|(_, word)| word == "trait" || word == "impl"),
        }
    }
}

/// Strings count, too: comparing a transport's name means deciding by it. Decisions must use `Caps`.
fn named_transports(source: &Source) -> Result<Vec<String>, String> {
    let named = words(&source.text, Keep::CodeAndStrings)?.into_iter().filter_map(|(line, word)| {
        let name = TRANSPORTS.iter().find(|name| parts(&word).iter().any(|part| part == *name))?;
        Some(format!("{}:{line}: `{word}` names the transport {name}: deck decides by Caps", source.path))
    });
    Ok(named.collect())
}

/// Parts of an identifier in lower case, without numbers at their ends: `OpenShm0` is `open`, `shm`.
fn parts(word: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut before = '_';
    for c in word.chars() {
        if c.is_uppercase() && !before.is_uppercase() {
            spaced.push('_');
        }
        spaced.extend(c.to_lowercase());
        before = c;
    }
    let parts = spaced.split('_').map(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()));
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn deck_without_forbid(sources: &[Source]) -> Option<String> {
    const WANTED: &str = "#![forbid(unsafe_code)]";
    let path = "crates/deck/lib.rs";
    let Some(deck) = sources.iter().find(|source| source.path == path) else {
        return Some(format!("{path}: not found, so nothing forbids `unsafe` in deck"));
    };
    let forbids = deck.text.lines().any(|line| line == WANTED);
    (!forbids).then(|| format!("{path}: `{WANTED}` is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_DECK: &str = "#![forbid(unsafe_code)]\n";

    /// Violations in these files beside a faultless `deck`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources = vec![Source { path: "crates/deck/lib.rs".into(), text: GOOD_DECK.into() }];
        sources
            .extend(files.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }));
        violations(&sources)
    }

    #[test]
    fn unsafe_may_stand_where_memory_is_handled() {
        let text = "fn f() { unsafe { g() } }";
        for path in
            ["crates/sys/map.rs", "crates/via/mem.rs", "crates/via/mem/arena.rs", "transports/shm/ring.rs"]
        {
            assert_eq!(found(&[(path, text)]), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn unsafe_elsewhere_is_found_with_its_line() {
        for path in [
            "crates/via/vi.rs",
            "crates/boot/wire.rs",
            "crates/deck/world.rs",
            "tests/jobs/lib.rs",
            "src/system.rs",
        ] {
            let problems = found(&[(path, "fn f() {\n    unsafe { g() }\n}")]);
            assert_eq!(problems.len(), 1, "{path}");
            assert!(problems[0].starts_with(&format!("{path}:2: `unsafe`")), "{}", problems[0]);
        }
    }

    #[test]
    fn unsafe_in_comments_strings_and_longer_words_is_not_meant() {
        let text = "// unsafe\nconst A: &str = \"unsafe\"; // unsafe\n#![deny(unsafe_op_in_unsafe_fn)]";
        assert_eq!(found(&[("crates/via/vi.rs", text)]), Vec::<String>::new());
    }

    #[test]
    fn the_launcher_may_only_call_pre_exec() {
        let good = "unsafe {\n    command.pre_exec(hook);\n}";
        let bad = "unsafe {\n    libc::fork();\n}\n// pre_exec";
        assert_eq!(found(&[("crates/launch/spawn.rs", good)]), Vec::<String>::new());
        assert_eq!(found(&[("crates/launch/spawn.rs", bad)]).len(), 1);
    }

    #[test]
    fn a_promise_is_no_block() {
        let path = "crates/via/transport.rs";
        for good in ["pub unsafe trait Port {}", "unsafe impl Port for P {}"] {
            assert_eq!(found(&[(path, good)]), Vec::<String>::new(), "{good}");
        }
        for bad in ["fn f() { unsafe { g() } }", "unsafe fn f() {}", "trait T { unsafe fn f(); }"] {
            assert_eq!(found(&[(path, bad)]).len(), 1, "{bad}");
        }
    }

    #[test]
    fn deck_names_no_transport_in_code_or_strings() {
        for text in [
            "udeck_shm::open()",
            "let s = \"tcp\";",
            "struct ShmWorld;",
            "open(\"udp0\")",
            "fn via_Verbs() {}",
        ] {
            let problems = found(&[("crates/deck/world.rs", text)]);
            assert_eq!(problems.len(), 1, "{text}");
            assert!(problems[0].starts_with("crates/deck/world.rs:1:"), "{}", problems[0]);
        }
        let innocent = "// over shm or tcp\nlet adverbs = outcp; // verbs\n";
        assert_eq!(found(&[("crates/deck/world.rs", innocent)]), Vec::<String>::new());
        assert_eq!(found(&[("transports/shm/lib.rs", "struct Shm;")]), Vec::<String>::new());
    }

    #[test]
    fn deck_must_forbid_unsafe() {
        let deck =
            |text: &str| violations(&[Source { path: "crates/deck/lib.rs".into(), text: text.into() }]);
        assert_eq!(deck(GOOD_DECK), Vec::<String>::new());
        assert_eq!(deck("// #![forbid(unsafe_code)]").len(), 1, "a comment forbids nothing");
        assert_eq!(violations(&[]).len(), 1, "a deck that is not there forbids nothing");
    }

    #[test]
    fn identifiers_fall_into_their_parts() {
        assert_eq!(parts("OpenShm0"), ["open", "shm"]);
        assert_eq!(parts("MAX_TCP_PORTS"), ["max", "tcp", "ports"]);
        assert_eq!(parts("_x__y"), ["x", "y"]);
    }
}
