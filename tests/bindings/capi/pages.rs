//! Manual pages and completions of the installed programs.

use std::fs;
use std::time::Duration;

use udeck_jobs::Job;

use super::tools::{Tool, installed, output};
use super::{Case, case};

const PROGRAMS: [&str; 6] = ["deckrun", "deckperf", "deckqos", "deckfabric", "nas-ft", "hadb"];
const COLUMNS: usize = 80;
/// Time limit of a shell: it only ends a hang.
const SHELL_LIMIT: Duration = Duration::from_secs(60);
/// Command lines of programs and of deckrun, with an expected completion.
const COMPLETED: [(&str, &str); 6] = [
    ("deckrun --watch", "--watchdog"),
    ("deckrun --bind ", "core"),
    ("deckperf overlap --comp", "--compute"),
    ("deckqos analyse --low", "--low-turn"),
    ("nas-ft --prof", "--profile"),
    ("hadb --node-l", "--node-link"),
];
/// After the program's name, deckrun's options are not completed.
const OF_THE_PROGRAM: &str = "deckrun -n 2 --hosts a:2 no-such-program --watch";

pub fn cases() -> Vec<Case> {
    vec![
        case("manual_pages_render", &[Tool::Man], manual_pages_render),
        case("manual_pages_are_accepted_by_mandoc", &[Tool::Mandoc], accepted_by_mandoc),
        case("manual_pages_have_what_help_has", &[Tool::Man], have_what_help_has),
        case("bash_completes", &[Tool::Bash], bash_completes),
        case("zsh_completes", &[Tool::Zsh], zsh_completes),
        case("fish_completes", &[Tool::Fish], fish_completes),
    ]
}

fn page(program: &str) -> std::path::PathBuf {
    installed(&format!("share/man/man1/{program}.1"))
}

fn rendered(program: &str) -> String {
    let job = Job::new("man".as_ref()).args(["--warnings", "-l"]).arg(page(program));
    let ended = job.env("MANWIDTH", COLUMNS.to_string()).env("LC_ALL", "C.UTF-8").run().ok();
    assert_eq!(ended.stderr, "", "{program}");
    ended.stdout
}

fn manual_pages_render() {
    for program in PROGRAMS {
        let text = rendered(program);
        for section in ["NAME", "SYNOPSIS", "OPTIONS", "EXAMPLES", "ENVIRONMENT", "EXIT STATUS", "SEE ALSO"] {
            assert!(text.lines().any(|line| line == section), "{program}: no {section} in {text}");
        }
        let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(wide, None, "{program}");
    }
}

/// Checks the pages with mandoc, except for its warning about a missing date: without one the same sources make
/// the same page.
fn accepted_by_mandoc() {
    for program in PROGRAMS {
        let ended =
            Job::new("mandoc".as_ref()).args(["-T", "lint", "-W", "warning"]).arg(page(program)).run();
        let other = ended.stdout.lines().find(|line| !line.contains("missing date"));
        assert_eq!(other, None, "{program}");
    }
}

fn have_what_help_has() {
    for program in PROGRAMS {
        let (text, program) = (rendered(program), installed(&format!("bin/{program}")));
        let help = |words: &[&str]| Job::new(&program).args(words).arg("--help").run().ok().stdout;
        let top = help(&[]);
        let (_, commands) = top.split_once("\nCommands:\n").unwrap_or_default();
        // More deeply indented lines continue the description of a command.
        let commands = commands.lines().take_while(|line| !line.is_empty());
        let commands = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
        let commands = commands.into_iter().filter(|command| *command != "help");
        let helps: Vec<String> = commands.map(|command| help(&[command])).chain([top.clone()]).collect();
        let options = helps.iter().flat_map(|help| help.lines()).filter_map(|line| {
            let line = line.trim_start();
            line.starts_with('-').then(|| line.split([' ', ',']).find(|word| word.starts_with("--")))?
        });
        let options: Vec<&str> = options.collect();
        assert!(options.len() > 5, "{top}");
        let missing = options.into_iter().find(|option| !text.contains(option));
        assert_eq!(missing, None, "{}: {text}", program.display());
    }
}

fn bash_completes() {
    // Words are split as bash does without quotes; the function that `complete` names is called.
    let script = r#"set -e
        source "$0/${1%% *}"
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<<"${1//:/ : }"
        [[ "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        function=$(complete -p "${1%% *}" | sed 's/.*-F \([^ ]*\).*/\1/')
        compopt() { :; }
        "$function" "${1%% *}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
        printf '%s\n' "${COMPREPLY[@]}""#;
    let complete = |line: &str| {
        let folder = installed("share/bash-completion/completions");
        let job = Job::new("bash".as_ref()).args(["--norc", "-c", script]).arg(folder).arg(line);
        job.run().ok().stdout
    };
    for (line, word) in COMPLETED {
        let words = complete(line);
        assert!(words.lines().any(|found| found == word), "{line}: {words}");
    }
    assert_eq!(complete(OF_THE_PROGRAM).trim(), "");
    assert!(complete("deckrun -n 2 /bin/s").lines().any(|found| found == "/bin/sh"));
}

fn zsh_completes() {
    // zsh completes at a terminal only. Nothing is run: the line has no end.
    let script = r#"
        zmodload zsh/zpty
        zpty shell "zsh -f -i"
        zpty -w shell "PS1=; fpath=('$1' \$fpath); autoload -U compinit; compinit -u -D; stty cols 200 rows 50"
        zpty -w shell "zstyle ':completion:*' list-prompt ''; LISTMAX=1000; print loaded-\$((40 + 2))"
        zpty -r shell seen '*loaded-42*'
        zpty -n -w shell "$2"$'\t'
        zpty -r shell seen "*$3*"
        print -r -- $seen"#;
    for (line, word) in COMPLETED {
        let folder = installed("share/zsh/site-functions");
        let job = Job::new("zsh".as_ref()).args(["-f", "-c", script, "zsh"]).arg(folder).args([line, word]);
        // A word that does not appear is waited for until this limit.
        let ended = job.env("TERM", "dumb").limit(SHELL_LIMIT).run().ok();
        assert!(ended.stdout.contains(word), "{line}: {ended}");
    }
}

fn fish_completes() {
    let home = output("fish-home");
    fs::create_dir_all(&home).expect("a folder of ours");
    let complete = |line: &str| {
        let program = line.split(' ').next().expect("a word");
        let file = installed(&format!("share/fish/vendor_completions.d/{program}.fish"));
        let job =
            Job::new("fish".as_ref()).args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]);
        let ended = job.arg(file).arg(line).env("HOME", &home).run().ok();
        assert_eq!(ended.stderr, "", "{line}");
        ended.stdout
    };
    let has = |found: &str, word: &str| found.lines().any(|line| line.split('\t').next() == Some(word));
    for (line, word) in COMPLETED {
        let found = complete(line);
        assert!(has(&found, word), "{line}: {found}");
    }
    let found = complete("deckrun -n 2 /bin/s");
    assert!(has(&found, "/bin/sh"), "{found}");
}
