use std::time::Duration;

use udeck::Protocol;

use super::*;
use crate::commands::vi;
use crate::experiment::plan::{PROTOCOLS, Payload, TRANSPORTS};
use crate::experiment::sizes;

fn task(line: &str) -> Task {
    Cli::try_parse_from(line.split(' ')).expect(line).task().expect(line)
}

fn error(line: &str) -> String {
    let error = Cli::try_parse_from(line.split(' ')).and_then(Cli::task).expect_err(line);
    error.to_string()
}

fn plan(line: &str) -> Plan {
    match task(line) {
        Task::Measure(plan) => plan,
        other => panic!("{line} measures mailboxes, not {other:?}"),
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn no_arguments_mean_the_overview() {
    let plan = plan("deckperf");
    assert_eq!(plan.tests, [Test::Latency, Test::Bandwidth]);
    assert_eq!(plan.protocols, [Protocol::Copy, Protocol::Eager, Protocol::RdmaWrite, Protocol::HandOff]);
    assert_eq!(plan.sizes, sizes::DEFAULT_SIZES);
    assert_eq!(plan.payloads, [Payload::Untouched, Payload::WrittenRead]);
    assert!(plan.pin && plan.overview && plan.pace.window == 64 && plan.format == Format::Table);
}

#[test]
fn stats_are_of_every_protocol_and_of_messages_only() {
    let plan = plan("deckperf --stats latency --sizes 1M");
    assert!(plan.stats && !plan.overview && plan.format == Format::Table);
    assert_eq!((plan.protocols, plan.pace.time), (PROTOCOLS.to_vec(), Duration::from_secs(4)));
    assert_eq!(plan.payloads, [Payload::Untouched]);
    assert!(error("deckperf --stats --layer vi").contains("--stats is about messages"));
    assert!(error("deckperf --stats --format csv").contains("cannot be used with"));
}

#[test]
fn options_may_follow_or_precede_the_subcommand() {
    let after = plan("deckperf latency --protocol hand-off,copy,hand-off --sizes 1M,8 --format csv --no-pin");
    let before = plan("deckperf --protocol hand-off,copy --sizes 8,1M --format csv --no-pin latency");
    assert_eq!(after, before);
    assert_eq!(after.protocols, [Protocol::HandOff, Protocol::Copy]);
    assert_eq!(after.sizes, [8, 1 << 20]);
    assert!(!after.pin && !after.overview);
}

#[test]
fn perturbing_adds_two_sizes_when_measuring_and_every_offset_when_verifying() {
    assert_eq!(plan("deckperf bandwidth --sizes 8 --perturb 3").sizes, [5, 8, 11]);
    let Task::Verify(checks) = task("deckperf verify --sizes 8,0") else { panic!("verifies") };
    assert_eq!(checks.sizes, [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11]);
    assert_eq!(checks.protocols, PROTOCOLS);
}

#[test]
fn a_payload_can_be_chosen() {
    assert_eq!(plan("deckperf latency --payload written+read").payloads, [Payload::WrittenRead]);
    assert_eq!(plan("deckperf latency --payload untouched").payloads, [Payload::Untouched]);
}

#[test]
fn bad_values_list_what_is_possible() {
    let unknown = error("deckperf latency --protocol eager,telepathy");
    assert!(unknown.contains("'telepathy'"), "{unknown}");
    assert!(unknown.contains("copy, eager, rdma-write, hand-off, rdma-read, handshake, auto"), "{unknown}");
    assert!(error("deckperf --sizes 8,4X").contains("0, 8, 4K, 1M"));
    assert!(error("deckperf --format xml").contains("table, csv, json"));
    assert!(error("deckperf --payload half").contains("untouched, written+read, both"));
    assert!(error("deckperf --window 0").contains("1..=4096"));
    assert!(error("deckperf --time 0").contains("between 0 (excluded) and 3600 seconds"));
    assert!(error("deckperf throughput").contains("unrecognized subcommand"));
    assert!(error("deckperf latency --window 16").contains("`latency` has one message under way"));
}

#[test]
fn the_vi_layer_has_a_plan_of_its_own() {
    let plan = |line: &str| match task(line) {
        Task::MeasureVi(plan) => plan,
        other => panic!("{line} measures virtual interfaces, not {other:?}"),
    };
    let overview = plan("deckperf --layer vi");
    assert_eq!(overview.tests, [Test::Latency, Test::Bandwidth]);
    assert_eq!((&overview.sizes[..], &overview.vi_counts[..]), (&sizes::DEFAULT_SIZES[..], &vi::COUNTS[..]));
    let bandwidth = plan("deckperf bandwidth --layer vi --sizes 8,1M --window 16 --format json --no-pin");
    assert_eq!(bandwidth.tests, [Test::Bandwidth]);
    assert_eq!((bandwidth.sizes, bandwidth.pace.window), (vec![8, 1 << 20], 16));
    assert!(bandwidth.vi_counts.is_empty() && bandwidth.format == Format::Json && !bandwidth.pin);
}

#[test]
fn experiments_have_lengths_of_their_own() {
    let Task::Overlap(overlap) = task("deckperf overlap --compute 50 --protocol copy") else {
        panic!("overlap")
    };
    assert_eq!((overlap.time, overlap.compute), (Duration::from_secs(24), Some(Duration::from_micros(50))));
    assert_eq!((&overlap.protocols[..], &overlap.sizes[..]), (&[Protocol::Copy][..], &overlap::SIZES[..]));
    let Task::Clones(clones) = task("deckperf clones --sizes 4K,8,8") else { panic!("clones") };
    assert_eq!((clones.pace.time, clones.flooding), (Duration::from_secs(16), 1000));
    assert_eq!((&clones.counts[..], &clones.sizes[..]), (&[1, 10, 100, 1000][..], &[8, 4096][..]));
    assert_eq!((&clones.busy_sizes[..], clones.stream), (&[8, 4096][..], false));
    let Task::Clones(clones) = task("deckperf clones --clones 40,10 --stream --flooding 0") else {
        panic!("clones")
    };
    assert_eq!((&clones.counts[..], clones.flooding, clones.stream), (&[10, 40][..], 0, true));
    assert_eq!(clones.busy_sizes, clones::BUSY_SIZES);
    let Task::Costs(costs) = task("deckperf costs --time 3 --no-pin") else { panic!("costs") };
    assert_eq!((costs.blocked, costs.ranks, costs.connections), (Duration::from_secs(3), 500, 1000));
    assert!(!costs.pin);
    assert!(error("deckperf clones --flooding 1024").contains("0..=1023"));
    assert!(error("deckperf clones --clones 0,1").contains("1..=1023"));
    assert!(error("deckperf costs --connections 1024").contains("1..=1023"));
    assert!(error("deckperf costs --layer vi").contains("`costs` is about mailboxes"));
}

#[test]
fn both_directions_at_once_have_a_command_of_their_own() {
    let both = plan("deckperf bibandwidth --window 16");
    assert_eq!((both.tests, both.pace.window, both.overview), (vec![Test::BiBandwidth], 16, false));
    assert!(error("deckperf bibandwidth --protocol copy,handshake").contains("wait for ever"));
    assert!(error("deckperf bibandwidth --layer vi").contains("`bibandwidth` is about mailboxes"));
}

#[test]
fn single_messages_and_memory_have_plans() {
    let each = plan("deckperf latency --percentiles --protocol auto");
    assert_eq!((each.percentiles, each.tests), (true, vec![Test::Latency]));
    assert!(error("deckperf latency --percentiles --layer vi").contains("--percentiles is about messages"));
    let Task::Registration(plan) = task("deckperf registration --time 3") else { panic!("registers") };
    assert_eq!((&plan.sizes[..], plan.pace.time), (&registration::SIZES[..], Duration::from_secs(3)));
    assert!(error("deckperf registration --sizes 0").contains("no memory of 0 bytes"));
    assert!(error("deckperf registration --protocol copy").contains("about memory"));
}

#[test]
fn jobs_of_more_ranks_have_plans() {
    assert!(error("deckperf incast --sizes 0").contains("cannot count empty messages"));
    let plan = |line: &str| match task(line) {
        Task::Jobs(plan) => plan,
        other => panic!("{line} is of a job, not {other:?}"),
    };
    let pairs = plan("deckperf multi-pair --pairs 4,1,4");
    assert_eq!((&pairs.kind, pairs.kind.ranks()), (&jobs::Kind::MultiPair(vec![1, 4]), 8));
    assert_eq!(plan("deckperf matrix --ranks 5").kind.ranks(), 5);
    let incast = plan("deckperf incast --sizes 4K,8");
    assert_eq!((incast.kind.ranks(), incast.kind.fewest(), incast.sizes), (8, 2, vec![8, 4096]));
    assert!(error("deckperf incast --ranks 1").contains("2..=512"));
    assert!(error("deckperf matrix --protocol copy,auto").contains("one --protocol at a time"));
    assert!(error("deckperf matrix --layer vi").contains("`matrix` is about mailboxes"));
}

#[test]
fn ranks_are_bound_to_what_the_list_says() {
    let cli = |line: &str| Cli::try_parse_from(line.split(' ')).expect(line);
    assert_eq!(cli("deckperf latency --bind 0,node:1").binding(), [BindPlace::Core(0), BindPlace::Node(1)]);
    assert!(error("deckperf --bind socket:1").contains("node:0, node:1"));
    assert!(error("deckperf --bind 0,1 --no-pin").contains("cannot be used with"));
    assert!(error("deckperf peers --bind 0,1").contains("places of its own"));
}

#[test]
fn peers_have_a_plan_of_their_own() {
    let Task::Peers(plan) = task("deckperf peers --format json") else { panic!("compares") };
    assert_eq!((plan.time, plan.format), (Duration::from_secs(peers::SECONDS), Format::Json));
    let Task::Peers(plan) = task("deckperf peers --time 2") else { panic!("compares") };
    assert_eq!((plan.time, plan.format, plan.folder), (Duration::from_secs(2), Format::Table, None));
    let Task::Peers(plan) = task("deckperf peers --peers some/where") else { panic!("compares") };
    assert_eq!(plan.folder, Some("some/where".into()));
    assert!(error("deckperf peers --sizes 8").contains("sizes of its own"));
    assert!(error("deckperf peers --protocol copy").contains("protocols and sizes of its own"));
    assert!(error("deckperf peers --layer vi").contains("compares mailboxes"));
    let setting = peers::Setting::Memory;
    assert_eq!(task("deckperf peer-rank --ranks 4"), Task::PeerRank(4, setting));
}

#[test]
fn collectives_are_compared_for_the_ranks_asked_for() {
    let plan = |line: &str| match task(line) {
        Task::Peers(plan) => plan,
        other => panic!("{line} compares, not {other:?}"),
    };
    let all = plan("deckperf collectives --time 2 --peers some/where");
    assert_eq!((all.setting, &all.sizes[..]), (peers::Setting::Groups, &[2, 4, 8][..]));
    assert_eq!((all.time, all.folder), (Duration::from_secs(2), Some("some/where".into())));
    assert_eq!(plan("deckperf collectives --ranks 8,2,8 --transport shm").sizes, [2, 8]);
    assert!(error("deckperf collectives --ranks 3").contains("goals for [2, 4, 8] ranks"));
    assert!(error("deckperf collectives --sizes 8").contains("sizes of its own"));
    assert!(error("deckperf collectives --layer vi").contains("`collectives` is about mailboxes"));
    assert!(error("deckperf collectives --transport tcp").contains("share memory"));
    assert_eq!(task("deckperf peer-rank --ranks 4 --groups"), Task::PeerRank(4, peers::Setting::Groups));
}

#[test]
fn processor_time_has_a_plan_of_its_own() {
    let plan = |line: &str| match task(line) {
        Task::Cpu(plan) => plan,
        other => panic!("{line} measures processor time, not {other:?}"),
    };
    let all = plan("deckperf cpu");
    assert_eq!((&all.sizes[..], &all.depths[..], all.rate), (&cpu::SIZES[..], &[2, 64][..], 1000));
    assert_eq!((all.kinds, all.payload), (cpu::Form::Loads.kinds(), Payload::WrittenRead));
    let some = plan(
        "deckperf cpu --contenders tcp,udp-sockets --depths 8,8 --rate 0 --sizes 4K,0 --payload untouched --peers some/where",
    );
    assert_eq!(some.kinds, [cpu::Kind::UdpSockets, cpu::Kind::Tcp]);
    assert_eq!((some.sizes, some.depths, some.rate), (vec![4096], vec![8], 0));
    assert_eq!((some.payload, some.folder), (Payload::Untouched, Some("some/where".into())));
    let published = plan("deckperf cpu --as chapter-9");
    assert_eq!((published.sizes, published.depths), (cpu::SIZES.to_vec(), vec![20, 60]));
    assert_eq!((published.rate, published.waitings.len(), published.kinds.len()), (0, 1, 5));
    assert_eq!(plan("deckperf cpu --as chapter-9 --contenders tcp --depths 8").kinds, [cpu::Kind::Tcp]);
    assert!(error("deckperf cpu --as chapter-9 --rate 5").contains("--rate"));
    assert!(
        error("deckperf cpu --contenders pigeons")
            .contains("udp-sockets, tcp-sockets, shm, tcp, udp, verbs, dat-shm, dat-tcp, dat-udp, mpi")
    );
    assert!(error("deckperf cpu --depths 0").contains("1..=1024"));
    assert!(error("deckperf cpu --sizes 0").contains("messages that have bytes"));
    assert!(error("deckperf cpu --protocol copy").contains("by the protocol `auto`"));
    assert!(error("deckperf cpu --transport tcp").contains("--contenders"));
    assert!(error("deckperf cpu --layer vi").contains("`cpu` is about mailboxes"));
    assert_eq!(task("deckperf cpu-rank --transport tcp"), Task::CpuRank(cpu::Way::Mailbox));
    assert_eq!(task("deckperf cpu-rank --dat --transport tcp"), Task::CpuRank(cpu::Way::Dat));
    assert_eq!(task("deckperf cpu-rank --sockets --port 7"), Task::CpuSockets(Some(7)));
}

#[test]
fn ft_has_a_plan_of_its_own() {
    let plan = |line: &str| match task(line) {
        Task::Ft(plan) => plan,
        other => panic!("{line} runs nas-ft, not {other:?}"),
    };
    let all = plan("deckperf ft");
    assert_eq!(
        (all.class, &all.ranks[..], all.time),
        (ft::Class::A, &[2, 4, 8][..], Duration::from_secs(120))
    );
    assert_eq!((&all.transports[..], &all.protocols[..]), (&TRANSPORTS[..], &ft::PROTOCOLS[..]));
    let some = plan("deckperf ft --class s --ranks 4,2,4 --transport tcp --protocol handshake --format json");
    assert_eq!((some.class, &some.ranks[..], some.format), (ft::Class::S, &[2, 4][..], Format::Json));
    assert_eq!((&some.transports[..], &some.protocols[..]), (&["tcp"][..], &[Protocol::Handshake][..]));
    let by_variable = |line: &str, name: &str| {
        let Cli(line) = Cli::try_parse_from(line.split(' ')).expect(line);
        line.options.ft_plan(ft::Class::A, vec![2], Some(name.to_owned())).map(|plan| plan.transports)
    };
    assert_eq!(by_variable("deckperf ft", "tcp").expect("a transport"), ["tcp"]);
    assert_eq!(by_variable("deckperf ft --transport udp", "tcp").expect("the option"), ["udp"]);
    let why = by_variable("deckperf ft", "shm,tcp").expect_err("two names").to_string();
    assert!(why.contains("DECK_TRANSPORT=shm,tcp: `ft` takes one name there"), "{why}");
    assert!(error("deckperf ft --ranks 1").contains("2..=256"));
    assert!(error("deckperf ft --sizes 8").contains("nas-ft, which has sizes of its own"));
    let Task::FtJob(job) = task("deckperf ft-job --ranks 2 --program nas-ft -- --class S") else {
        panic!("a job")
    };
    assert_eq!((job.ranks, job.arguments), (2, ["--class", "S"].map(str::to_owned).to_vec()));
}

#[test]
fn a_choice_is_explained_instead_of_measuring() {
    assert_eq!(task("deckperf --explain --sizes 1M,8"), Task::Explain(vec![8, 1 << 20]));
    assert_eq!(task("deckperf --explain"), Task::Explain(sizes::DEFAULT_SIZES.to_vec()));
    assert!(error("deckperf --explain latency").contains("--explain"));
    assert!(error("deckperf --explain --layer vi").contains("--explain"));
}

#[test]
fn what_the_vi_layer_lacks_is_refused() {
    assert!(error("deckperf verify --layer vi").contains("`verify` is about mailboxes and uDAPL"));
    assert!(error("deckperf --layer vi --protocol copy").contains("--protocol is how mailboxes send"));
    assert!(error("deckperf --layer vi --payload written+read").contains("untouched"));
    assert!(error("deckperf --layer tcp").contains("mailbox, vi, dat"));
}

#[test]
fn udapl_has_plans_of_its_own() {
    let Task::MeasureDat(plan) = task("deckperf --layer dat --sizes 1M,8 --window 16 --format json --no-pin")
    else {
        panic!("measures uDAPL")
    };
    assert_eq!(
        (&plan.tests[..], &plan.sizes[..]),
        (&[Test::Latency, Test::Bandwidth][..], &[8, 1 << 20][..])
    );
    assert_eq!((plan.pace.window, plan.format, plan.pin), (16, Format::Json, false));
    let Task::MeasureDat(plan) = task("deckperf bandwidth --layer dat") else { panic!("measures uDAPL") };
    assert_eq!((&plan.tests[..], &plan.sizes[..]), (&[Test::Bandwidth][..], &sizes::DEFAULT_SIZES[..]));
    let Task::VerifyDat(checks) = task("deckperf verify --layer dat --sizes 8 --perturb 1") else {
        panic!("checks uDAPL")
    };
    assert_eq!((&checks.sizes[..], checks.pin), (&[7, 8, 9][..], true));
    for (line, words) in [
        ("deckperf bibandwidth --layer dat", "`bibandwidth` is about mailboxes"),
        ("deckperf overlap --layer dat", "`overlap` is about mailboxes"),
        ("deckperf peers --layer dat", "`peers` compares mailboxes"),
        ("deckperf report --layer dat", "`report` is about mailboxes"),
        ("deckperf latency --percentiles --layer dat", "--percentiles is about messages"),
        ("deckperf latency --off-cache --layer dat", "--off-cache is about messages"),
        ("deckperf --layer dat --protocol copy", "--protocol is how mailboxes send; --layer dat"),
        ("deckperf verify --layer dat --protocol copy", "--protocol is how mailboxes send"),
        ("deckperf --layer dat --payload written+read", "--layer dat leaves the payload untouched"),
        ("deckperf --explain --layer dat", "--explain"),
        ("deckperf --stats --layer dat", "--stats is about messages"),
    ] {
        let error = error(line);
        assert!(error.contains(words), "{line}: {error}");
    }
}

/// Each command accepts the options that its help lists, and refuses all others instead of ignoring them.
#[test]
fn help_lists_what_a_command_takes_and_nothing_else() {
    let values = [
        ("layer", "mailbox"),
        ("protocol", "auto"),
        ("sizes", "8"),
        ("perturb", "1"),
        ("payload", "untouched"),
        ("iterations", "3"),
        ("time", "1"),
        ("window", "16"),
        ("format", "json"),
        ("stats", ""),
        ("pin", ""),
        ("no-pin", ""),
        ("bind", "0,1"),
        ("transport", "shm"),
    ];
    let mut root = Cli::command();
    root.build();
    for command in root.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
        for (option, value) in values {
            let argument = command.get_arguments().find(|one| one.get_long() == Some(option)).expect(option);
            let files = if command.get_name() == "compare" { " a b" } else { "" };
            let line =
                format!("deckperf {} --{option} {value}", command.get_name()).trim().to_owned() + files;
            let parsed = Cli::try_parse_from(line.split(' ')).and_then(Cli::task);
            assert_eq!(parsed.is_err(), argument.is_hide_set(), "{line}: {parsed:?}");
        }
    }
}

#[test]
fn help_fits_eighty_columns() {
    let mut root = Cli::command().term_width(80);
    root.build();
    let names: Vec<String> = root.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    let mut texts = vec![root.render_long_help(), root.render_help()];
    for name in names.iter().filter(|name| *name != "help") {
        let sub = root.find_subcommand_mut(name).expect(name);
        texts.extend([sub.render_long_help(), sub.render_help()]);
    }
    for text in texts {
        for line in text.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    // Examples may not be wrapped: nobody can copy a broken line.
    for line in EXAMPLES.lines().chain(REPORT_EXAMPLES.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_report_measures_or_reads_files() {
    let plan = |line: &str| match task(line) {
        Task::Page(plan) => plan,
        other => panic!("{line} makes a page, not {other:?}"),
    };
    let now = plan("deckperf report -o r.html --json all.json --peers there --transport tcp");
    assert_eq!((now.output, now.json), ("r.html".into(), Some("all.json".into())));
    assert_eq!((now.measure.transport, now.measure.peers), (Some("tcp"), Some("there".into())));
    assert!(now.files.is_empty() && now.measure.time == Duration::from_secs(page::SECONDS));
    assert_eq!(plan("deckperf report --quick").measure.time, Duration::from_secs(page::QUICK));
    let thesis = plan("deckperf report --evaluation");
    assert!(thesis.is_evaluation && thesis.measure.time == Duration::from_secs(page::EVALUATION));
    assert_eq!(plan("deckperf report --evaluation --quick").measure.time, Duration::from_secs(page::QUICK));
    assert!(plan("deckperf report --evaluation vi.json").is_evaluation);
    let files = plan("deckperf report run1.json peers.json");
    assert_eq!((files.output, files.files.len()), ("report.html".into(), 2));
    for (line, words) in [
        ("deckperf report --time 3 a.json", "files have been measured"),
        ("deckperf report --transport tcp a.json", "files have been measured"),
        ("deckperf report --quick a.json", "cannot be used with"),
        ("deckperf report --quick --time 3", "name one of them"),
        ("deckperf report --evaluation --peers DIR", "cannot be used with"),
        ("deckperf report --sizes 8", "sizes and a form of its own"),
        ("deckperf report --format csv", "sizes and a form of its own"),
        ("deckperf report --layer vi", "`report` is about mailboxes"),
    ] {
        let error = error(line);
        assert!(error.contains(words), "{line}: {error}");
    }
}
