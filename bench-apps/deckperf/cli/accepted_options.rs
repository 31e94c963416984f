//! The shared options of each command. All others are neither in its help nor accepted on its line.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

/// The shared options of one command.
struct AcceptedOptions {
    /// Name of the command; empty for the run without one.
    command: &'static str,
    /// Names of the options, separated by spaces.
    options: &'static str,
    /// Help texts of options that have another meaning here.
    help: &'static [(&'static str, &'static str)],
    /// End of a refusal: the subject of the command.
    about: &'static str,
}

const TIME_16: (&str, &str) = ("time", "Seconds to measure for, in all [default: 16]");
const TIME_24: (&str, &str) = ("time", "Seconds to measure for, in all [default: 24]");
const TIME_60: (&str, &str) = ("time", "Seconds to measure for, in all [default: 60]");
const ALL_PROTOCOLS: (&str, &str) = (
    "protocol",
    "Protocols of the messages: copy, eager, rdma-write, hand-off, rdma-read, handshake, auto [default: all]",
);
const ONE_PROTOCOL: (&str, &str) = (
    "protocol",
    "Protocols of the messages: one of copy, eager, rdma-write, hand-off, rdma-read, handshake, auto [default: auto]",
);
const ROUND_TRIPS: (&str, &str) = ("iterations", "Round trips in a batch [default: as many as fill 1.5 ms]");
const BATCH: (&str, &str) = ("iterations", "Operations in a batch [default: as many as fill its time]");

/// Name of `--explain` among the commands, because it has a plan of its own.
pub const EXPLAIN: &str = "--explain";

const ACCEPTED: [AcceptedOptions; 21] = [
    AcceptedOptions {
        command: "",
        options: "layer protocol sizes perturb payload iterations time window format stats pin no_pin handicap bind \
                  transport",
        help: &[],
        about: "",
    },
    AcceptedOptions {
        command: EXPLAIN,
        options: "sizes transport pin no_pin bind",
        help: &[],
        about: "is about what carries messages of a mailbox; it measures nothing",
    },
    AcceptedOptions {
        command: "latency",
        options: "layer protocol sizes perturb payload iterations time format stats pin no_pin handicap bind transport",
        help: &[ROUND_TRIPS, TIME_24],
        about: "has one message under way; `bandwidth` has a window of them",
    },
    AcceptedOptions {
        command: "bandwidth",
        options: "layer protocol sizes perturb payload iterations time window format stats pin no_pin handicap bind \
                  transport",
        help: &[("iterations", "Windows in a batch [default: as many as fill 1.5 ms]"), TIME_24],
        about: "",
    },
    AcceptedOptions {
        command: "bibandwidth",
        options: "protocol sizes perturb payload iterations time window format stats pin no_pin handicap bind transport",
        help: &[
            (
                "protocol",
                "Protocols of the messages: copy, eager, rdma-write, hand-off, rdma-read, auto [default: the first four]",
            ),
            ("iterations", "Windows in a batch [default: as many as fill 1.5 ms]"),
            TIME_24,
        ],
        about: "is about mailboxes",
    },
    AcceptedOptions {
        command: "verify",
        options: "layer protocol sizes perturb pin no_pin bind transport",
        help: &[
            ALL_PROTOCOLS,
            ("layer", "What is checked: mailbox, or dat (uDAPL) [default: mailbox]"),
            ("perturb", "Check each size moved by every offset from -N to +N bytes [default: 3]"),
        ],
        about: "checks every byte once, and measures nothing",
    },
    AcceptedOptions {
        command: "overlap",
        options: "protocol sizes iterations time format pin no_pin bind transport",
        help: &[
            ALL_PROTOCOLS,
            ("sizes", "Message sizes in bytes, such as 64K,1M [default: six from 4K to 4M]"),
            BATCH,
            TIME_24,
        ],
        about: "is about mailboxes: one message under way beside computation",
    },
    AcceptedOptions {
        command: "clones",
        options: "sizes iterations time format pin no_pin bind transport",
        help: &[("sizes", "Message sizes in bytes [default: 8; flood: 8,4K]"), ROUND_TRIPS, TIME_16],
        about: "is about mailboxes, and leaves the protocol to the library",
    },
    AcceptedOptions {
        command: "costs",
        options: "time format pin no_pin bind transport",
        help: &[("time", "Seconds for which a rank is blocked [default: 10]")],
        about: "is about mailboxes and ranks, and sends nothing",
    },
    AcceptedOptions {
        command: "multi-pair",
        options: "protocol sizes iterations time window format pin no_pin bind transport",
        help: &[ONE_PROTOCOL, ("sizes", "Message sizes in bytes [default: 8,4K,64K,1M]"), BATCH, TIME_16],
        about: "is about mailboxes, and leaves the payload untouched",
    },
    AcceptedOptions {
        command: "matrix",
        options: "protocol sizes iterations time window format pin no_pin bind transport",
        help: &[
            ONE_PROTOCOL,
            ("sizes", "Message sizes in bytes [default: 8 for latency, 64K for bandwidth]"),
            BATCH,
            TIME_16,
        ],
        about: "is about mailboxes, and leaves the payload untouched",
    },
    AcceptedOptions {
        command: "incast",
        options: "sizes iterations time window format pin no_pin bind transport",
        help: &[("sizes", "Message sizes in bytes [default: 8,4K,64K]"), BATCH, TIME_16],
        about: "is about mailboxes; it leaves the protocol to the library, and the payload untouched",
    },
    AcceptedOptions {
        command: "registration",
        options: "sizes iterations time format pin no_pin bind transport",
        help: &[("sizes", "Sizes of memory in bytes [default: 4K,64K,1M,16M,64M]"), BATCH, TIME_16],
        about: "is about memory, which has no protocol and no payload",
    },
    AcceptedOptions {
        command: "peers",
        options: "time format transport",
        help: &[TIME_60],
        about: "compares mailboxes, by protocols and sizes of its own (those that have targets), and has places of its \
                own for its ranks",
    },
    AcceptedOptions {
        command: "collectives",
        options: "time format transport",
        help: &[TIME_60, ("transport", "Only shm: the ranks that are compared share memory")],
        about: "is about mailboxes' groups, has sizes of its own (those that have goals), and has places of its own for \
                its ranks",
    },
    AcceptedOptions {
        command: "cpu",
        options: "sizes payload iterations time format",
        help: &[
            ("sizes", "Message sizes in bytes [default: 100,500,4000,16000,64000]"),
            ("payload", "Use of the data of a message: untouched, or written+read [default: written+read]"),
            BATCH,
            ("time", "Seconds to measure for, in all [default: 45]"),
        ],
        about: "is about mailboxes: it sends by the protocol `auto`, over all transports or those among --contenders, and \
                binds each side to a core",
    },
    AcceptedOptions {
        command: "ft",
        options: "protocol time format transport",
        help: &[
            (
                "protocol",
                "Protocols of the blocks: copy, eager, rdma-write, hand-off, rdma-read, handshake, auto [default: auto,handshake]",
            ),
            ("time", "Seconds to measure for, in all, but at least five rounds [default: 120]"),
            (
                "transport",
                "Only this one of shm, verbs, tcp, udp [default: DECK_TRANSPORT, or shm, tcp and udp]",
            ),
        ],
        about: "is about nas-ft, which has sizes of its own; deckrun places its ranks",
    },
    AcceptedOptions {
        command: "compare",
        options: "format",
        help: &[],
        about: "measures nothing itself; what two builds are to measure follows `--`",
    },
    AcceptedOptions {
        command: "report",
        options: "time pin no_pin transport",
        help: &[
            ("time", "Seconds to measure for, in all [default: 200; --evaluation: 360]"),
            (
                "transport",
                "Only this one of shm, verbs, tcp, udp [default: shm, tcp and udp; --evaluation: shm, and all three for FT]",
            ),
        ],
        about: "is about mailboxes, and has protocols, sizes and a form of its own; it makes a page of other runs: deckperf \
                report run.json",
    },
    AcceptedOptions {
        command: "peer-rank",
        options: "transport",
        help: &[],
        about: "is a rank of another command",
    },
    AcceptedOptions {
        command: "cpu-rank",
        options: "transport",
        help: &[],
        about: "is a rank of another command",
    },
];

const NOTHING: AcceptedOptions =
    AcceptedOptions { command: "", options: "", help: &[], about: "is a job of another command" };

fn of(command: &str) -> &'static AcceptedOptions {
    ACCEPTED.iter().find(|accepted| accepted.command == command).unwrap_or(&NOTHING)
}

impl AcceptedOptions {
    fn has(&self, option: &str) -> bool {
        self.options.split(' ').any(|one| one == option)
    }
}

fn shared(command: &Command) -> Vec<Arg> {
    command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect()
}

/// Hides in each subcommand's help the shared options that it does not take.
pub fn with_help_filtered(command: Command) -> Command {
    let shared = shared(&command);
    command.mut_subcommands(|sub| {
        let accepted = of(sub.get_name());
        let as_accepted = |arg: Arg| {
            let id = arg.get_id().as_str().to_owned();
            match accepted.help.iter().find(|(option, _)| *option == id) {
                // The text itself names the values and the default.
                Some((_, help)) => arg.help(help).hide_possible_values(true).hide_default_value(true),
                None => {
                    let hidden = arg.is_hide_set() || !accepted.has(&id);
                    arg.hide(hidden)
                }
            }
        };
        sub.args(shared.iter().cloned().map(as_accepted))
    })
}

/// Refusal of a given option that the command does not take.
pub fn refusal(command: &Command, matches: &ArgMatches) -> Option<String> {
    let (name, of_command) = match matches.subcommand() {
        Some((name, matches)) => (name, matches),
        None if matches.get_flag("explain") => (EXPLAIN, matches),
        None => ("", matches),
    };
    let accepted = of(name);
    let said = |arg: &Arg| of_command.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let refused =
        shared(command).into_iter().find(|arg| said(arg) && !accepted.has(arg.get_id().as_str()))?;
    Some(format!("--{} is refused: `{name}` {}", refused.get_long().unwrap_or_default(), accepted.about))
}
