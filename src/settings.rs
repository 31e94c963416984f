//! Names of all environment variables. A misspelt one would be ignored in silence: it is named on standard
//! error instead.

use std::ffi::OsString;
use std::sync::Once;

/// All variables that begin with [`PREFIX`] and mean something, to the library, deckrun, or our own programs
/// and tests.
const KNOWN: &[&str] = &[
    "DECK_ARENA",
    "DECK_AUTO",
    "DECK_BIND",
    "DECK_BOOT_FD",
    "DECK_CLOCK_FD",
    "DECK_COPY_WINDOW",
    "DECK_CPUS",
    "DECK_DEADLINE",
    "DECK_DETECT",
    "DECK_DIRECTORY_PORT",
    "DECK_DIRECTORY_SECRET",
    "DECK_DIRECTORY_SECRET_FILE",
    "DECK_ENCRYPT",
    "DECK_EXPLAIN",
    "DECK_GROUP",
    "DECK_IFACE",
    "DECK_INCAST",
    "DECK_INCAST_RATE",
    "DECK_LAUNCH",
    "DECK_LEVELS",
    "DECK_LEVELS_INFLIGHT",
    "DECK_PMIX_LIBRARY",
    "DECK_PROTOCOL",
    "DECK_QUEUE",
    "DECK_RANK",
    "DECK_RECEIVE",
    "DECK_SETUP_TIMEOUT",
    "DECK_SET_ASIDE",
    "DECK_SIZE",
    "DECK_STATS",
    "DECK_THREADS",
    "DECK_TRACE",
    "DECK_TRANSPORT",
    "DECK_TRUST",
    "DECK_VERBS_CM_LIBRARY",
    "DECK_VERBS_CONNECT",
    "DECK_VERBS_DEVICE",
    "DECK_VERBS_GID",
    "DECK_VERBS_INLINE",
    "DECK_VERBS_LIBRARY",
    "DECK_VERBS_MTU",
    "DECK_VERBS_PKEY",
    "DECK_VERBS_PORT",
    "DECK_VERBS_RECEIVES",
    "DECK_VERBS_RETRY",
    "DECK_VERBS_RNR_RETRY",
    "DECK_VERBS_SL",
    "DECK_VERBS_TCLASS",
    "DECK_VERBS_TIMEOUT",
    "DECK_VERBS_UC",
    "DECK_WAITS_FD",
];

const PREFIX: &str = "DECK_";

/// Variables that tests set for programs of ours.
const OF_TESTS: [&str; 7] = [
    "DECK_BIN_DIR",
    "DECK_CONNECTIONS",
    "DECK_FAULT",
    "DECK_RANDOM_",
    "DECK_SEED",
    "DECK_SIM_",
    "DECK_TEST_",
];

/// Writes the variables of this process's environment that no code reads, once.
pub(crate) fn name_unknown() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for words in unknown(std::env::vars_os().map(|(name, _)| name)) {
            udeck_sys::stderr_line(format_args!("udeck: {words}"));
        }
    });
}

fn unknown(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with(PREFIX) && !KNOWN.contains(&name.as_str()))
        .filter(|name| !OF_TESTS.iter().any(|test| name.starts_with(test)))
        .collect();
    names.sort_unstable();
    names.iter().map(|name| format!("{name} is no setting and does nothing; {}", advice(name))).collect()
}

fn advice(name: &str) -> String {
    let nearest = KNOWN.iter().min_by_key(|known| strsim::damerau_levenshtein(known, name));
    let nearest = nearest.copied().unwrap_or_default();
    format!("the nearest one is {nearest}")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn told(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(OsString::from))
    }

    #[test]
    fn what_nobody_reads_is_named_with_the_nearest() {
        assert_eq!(
            told(&["DECK_VERB_PORT", "DECK_DEADLIN", "PATH", "DECK_ARENA", "DECK_TEST_MARK"]),
            [
                "DECK_DEADLIN is no setting and does nothing; the nearest one is DECK_DEADLINE",
                "DECK_VERB_PORT is no setting and does nothing; the nearest one is DECK_VERBS_PORT",
            ]
        );
        assert_eq!(told(KNOWN), [""; 0]);
    }

    /// Collects the variables that a source file has in quotes.
    fn variables(file: &Path, found: &mut Vec<String>) {
        let text = fs::read_to_string(file).unwrap();
        for piece in text.split('"').filter(|piece| piece.len() > PREFIX.len() && piece.starts_with(PREFIX)) {
            if piece.chars().all(|char| char.is_ascii_uppercase() || char == '_') {
                found.push(piece.to_owned());
            }
        }
    }

    fn search(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_own = path.ends_with("settings.rs") || path.ends_with("target");
            match path.is_dir() {
                _ if is_own => {}
                true => search(&path, found),
                false if path.extension().is_some_and(|extension| extension == "rs") => {
                    variables(&path, found)
                }
                false => {}
            }
        }
    }

    #[test]
    fn all_that_the_sources_read_are_known() {
        let mut found = Vec::new();
        for folder in ["src", "crates", "bindings", "transports", "bench-apps", "examples"] {
            search(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut found);
        }
        assert!(found.iter().any(|name| name == "DECK_ARENA"), "{found:?}");
        let of_tests = |name: &str| name.starts_with("DECK_UDP_SEED") || name.starts_with("DECK_DEADLIN");
        let names = found.iter().filter(|name| !of_tests(name)).map(OsString::from);
        assert_eq!(unknown(names), [""; 0]);
    }
}
