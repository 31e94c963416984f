//! The programs, one on each line: its file, its libraries, its number of ranks, and a line that one of them prints.

use std::fs;

use udeck_jobs::memcheck;
use udeck_jobs::trace_format::Trace;

use super::tools::{Tool, alone, compiled, has_said, launched, output, ranks};
use super::{Case, case};

/// Transports over which each program runs.
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

struct Program {
    file: &'static str,
    flags: &'static [&'static str],
    ranks: usize,
    /// Text in one of its lines.
    says: &'static str,
}

const fn program(
    file: &'static str,
    flags: &'static [&'static str],
    ranks: usize,
    says: &'static str,
) -> Program {
    Program { file, flags, ranks, says }
}

const PROGRAMS: &[Program] = &[
    program("examples/c/pack.c", &[], 3, "rank 2: c 4 2.0..2.9 \"greetings from rank 2\""),
    program("examples/c/ring.c", &[], 4, "lap 3: the ranks add up to 6"),
    program("examples/c/pi.c", &["-lm"], 3, "pi is about 3.14159265"),
    program("examples/c/pi.f90", &[], 3, "pi is about 3.14159265"),
    program("examples/c/transpose.c", &[], 3, "transposed 513 x 513 among 3 ranks, twice"),
    program("tests/bindings/capi/c/classes.cpp", &[], 3, "the sum is 3000.0"),
    program("tests/bindings/capi/c/errors.c", &["-pthread"], 1, "all errors are as they should be"),
    program("tests/bindings/capi/c/threads.c", &[], 1, "all threads are as they should be"),
    program("tests/bindings/capi/c/messages.c", &["-pthread"], 3, "all messages are as they should be"),
    program("tests/bindings/capi/c/groups.c", &[], 3, "all groups are as they should be"),
    program("tests/bindings/capi/c/thesis.c", &[], 3, "L 2 18.0 GPPD!"),
    program("tests/bindings/capi/c/closed_stdio.c", &[], 2, "nothing took the place of what was closed"),
    program("tests/bindings/capi/c/services.c", &[], 3, "all services are as they should be"),
];

/// Programs that also run alone, under valgrind and AddressSanitizer.
const CHECKED: &[&str] = &["examples/c/pack.c", "tests/bindings/capi/c/errors.c"];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for program in PROGRAMS {
        let compilers: &[Tool] = match program.file.rsplit_once('.').map(|(_, kind)| kind) {
            Some("c") => &[Tool::Cc, Tool::Clang],
            Some("cpp") => &[Tool::Gxx, Tool::Clangxx],
            _ => &[Tool::Gfortran],
        };
        for compiler in compilers {
            let name = format!("{}::{}", title(program.file), compiler.name());
            cases.push(case(name, &[*compiler], || run(program, *compiler)));
        }
    }
    for file in CHECKED {
        let title = title(file);
        cases.push(case(format!("{title}::valgrind"), &[Tool::Cc, Tool::Valgrind], || under_valgrind(file)));
        cases.push(case(format!("{title}::address_sanitizer"), &[Tool::Cc], || {
            with_sanitizer(file, Tool::Cc)
        }));
    }
    cases.push(case("lost_c::cc", &[Tool::Cc], a_rank_that_dies_is_told));
    cases.push(case("survivors_c::cc", &[Tool::Cc], ranks_go_on_after_a_death));
    cases.push(case("spans_c::cc", &[Tool::Cc], spans_are_in_the_trace));
    cases.push(case("abort_c::cc", &[Tool::Cc], a_rank_ends_the_job));
    cases
}

/// Title of a program: `examples/c/pack.c` becomes `pack_c`.
fn title(file: &str) -> String {
    file.rsplit('/').next().unwrap_or(file).replace('.', "_")
}

fn of(file: &str) -> &'static Program {
    PROGRAMS.iter().find(|program| program.file == file).expect("it is in the list")
}

fn run(program: &Program, compiler: Tool) {
    let name = format!("{}-{}", title(program.file), compiler.name());
    let compiled = compiled(compiler, program.file, program.flags, &name);
    for transport in TRANSPORTS {
        has_said(ranks(&compiled, program.ranks, transport).run().clean(), program.says);
    }
}

fn under_valgrind(file: &str) {
    let program = of(file);
    let name = format!("{}-valgrind", title(file));
    let compiled = compiled(Tool::Cc, file, program.flags, &name);
    let _ = alone(&compiled).inside(memcheck()).run().ok();
}

fn with_sanitizer(file: &str, compiler: Tool) {
    let program = of(file);
    let flags = [program.flags, &["-fsanitize=address"]].concat();
    let compiled = compiled(compiler, file, &flags, &format!("{}-asan", title(file)));
    let _ = alone(&compiled).run().ok();
    // The program also runs over shared memory with another rank.
    let _ = ranks(&compiled, program.ranks, "shm").run().ok();
}

/// The job fails because a rank died, but the other rank goes on.
fn a_rank_that_dies_is_told() {
    let program = compiled(Tool::Cc, "tests/bindings/capi/c/lost.c", &[], "lost_c");
    for transport in TRANSPORTS {
        let job = launched(&["--on-failure", "continue", "-n", "2", "--"], &program, transport);
        let _ = job.run().fails().clean().line_with("rank 0 has been told");
    }
}

fn ranks_go_on_after_a_death() {
    let program = compiled(Tool::Cc, "tests/bindings/capi/c/survivors.c", &[], "survivors_c");
    for transport in TRANSPORTS {
        let job = launched(&["--on-failure", "survive", "-n", "3", "--"], &program, transport);
        let _ = job.run().ok().line_with("2 ranks went on");
    }
}

/// The program ends well with and without a trace, and the trace has its spans: their kinds, and their numbers at each rank.
fn spans_are_in_the_trace() {
    let program = compiled(Tool::Cc, "tests/bindings/capi/c/spans.c", &[], "spans_c");
    let said = "all spans are as they should be";
    has_said(ranks(&program, 2, "shm").run().clean(), said);
    let folder = output("spans");
    fs::create_dir_all(&folder).expect("a folder of ours");
    let path = folder.join("job.json");
    has_said(ranks(&program, 2, "shm").env("DECK_TRACE", &path).run().clean(), said);
    let trace = Trace::read(&path);
    let names = ["step", "solve", "on a thread", "caf\u{fffd}", "unnamed span", "deep", "forks"];
    let expected = [1, 3, 1, 1, 1, 64, 1];
    let long = "x".repeat(128);
    for rank in 0..2 {
        let spans = |name| {
            let named = trace.named(name).filter(|event| event["pid"] == rank && event["ph"] == "X");
            named.filter(|event| event["cat"] == "udeck::span").count()
        };
        assert_eq!(names.map(spans), expected, "rank {rank}");
        assert_eq!(spans(&long), 1, "rank {rank}");
        for name in ["early", "never ends", "of a child", "open at the end"] {
            assert_eq!(spans(name), 0, "rank {rank}: {name}");
        }
    }
}

/// The rank's text may have any encoding.
fn a_rank_ends_the_job() {
    let program = compiled(Tool::Cc, "tests/bindings/capi/c/abort.c", &[], "abort_c");
    let ended = ranks(&program, 2, "shm").run().fails();
    assert!(ended.stderr.contains("the caf\u{fffd} is closed"), "{ended}");
    assert_eq!(ended.code(), 9, "{ended}");
}
