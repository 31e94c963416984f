use clap::{Parser, Subcommand, ValueHint};

use super::*;

/// Starts a program.
///
/// At length.
#[derive(Parser)]
#[command(
    name = "start-it",
    version = "1.2",
    after_help = "Examples:\n  start-it -n 4 ./a  four\n                     of them\n\nExit code:\n  0  well"
)]
struct Starter {
    /// How many; 'two' is usual
    #[arg(short, long)]
    number: Option<u32>,
    /// Where
    #[arg(long, hide = true)]
    secret: bool,
    #[command(flatten)]
    generate: Generate,
    /// The program
    #[arg(trailing_var_arg = true, num_args = 1.., required = true, value_hint = ValueHint::CommandWithArguments)]
    program: Vec<String>,
}

#[derive(Parser)]
#[command(name = "many", version = "1.2")]
struct Many {
    #[command(subcommand)]
    command: Option<Sub>,
    #[command(flatten)]
    generate: Generate,
    /// For all
    #[arg(long, global = true)]
    common: bool,
}

#[derive(Subcommand)]
enum Sub {
    /// The first
    First {
        /// Its own
        #[arg(long)]
        own: bool,
    },
    /// Not shown
    #[command(hide = true)]
    Inner,
}

fn text(words: &[&str]) -> String {
    Starter::try_parse_from(words).expect("accepted").generate.text::<Starter>().expect("asked for")
}

#[test]
fn it_is_the_only_option_that_needs_nothing_else() {
    assert!(Starter::try_parse_from(["start-it"]).is_err());
    assert!(Starter::try_parse_from(["start-it", "--generate", "man", "-n", "3"]).is_err());
    assert!(Starter::try_parse_from(["start-it", "a"]).unwrap().generate.text::<Starter>().is_none());
    let program = Starter::try_parse_from(["start-it", "a", "--generate", "man"]).unwrap();
    assert!(program.generate.text::<Starter>().is_none(), "the program's own");
    assert!(text(&["start-it", "--generate", "man"]).contains(".SH NAME\nstart\\-it \\- Starts a program"));
}

#[test]
fn what_stands_below_the_options_is_in_sections() {
    let page = text(&["start-it", "--generate", "man"]);
    assert!(page.contains(".SH EXAMPLES\n.TP\n\\fBstart\\-it \\-n 4 ./a\\fR\nfour of them\n"), "{page}");
    assert!(page.contains(".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nwell\n"), "{page}");
    assert!(page.contains(".SH ENVIRONMENT\n"), "{page}");
    assert!(!page.contains("secret") && !page.contains("generate"), "{page}");
}

#[test]
fn subcommands_are_sections_with_their_own_options() {
    let many = Many::try_parse_from(["many", "--generate", "man"]).unwrap();
    let page = many.generate.text::<Many>().unwrap();
    let (_, commands) = page.split_once(".SH COMMANDS").expect("a section");
    assert!(commands.contains(".SS first\nThe first\n.TP\n\\fB\\-\\-own\\fR"), "{page}");
    assert_eq!(page.matches("\\-\\-common").count(), 1, "{page}");
    assert!(!page.contains("inner"), "{page}");
}

#[test]
fn completions_show_what_help_shows() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&["start-it", "--generate", shell]);
        assert!(script.contains("number"), "{script}");
        assert!(!script.contains("secret") && !script.contains("generate"), "{script}");
        let many = Many::try_parse_from(["many", "--generate", shell]).unwrap();
        let script = many.generate.text::<Many>().unwrap();
        assert!(script.contains("first") && !script.contains("inner"), "{script}");
    }
}

#[test]
fn the_programs_own_words_are_left_to_it() {
    let bash = text(&["start-it", "--generate", "bash"]);
    assert_eq!(bash.matches("complete -F _start__it__or_program ").count(), 2, "{bash}");
    assert!(
        bash.contains("            -n|--number)\n") && !bash.contains('@') | bash.contains("[@]"),
        "{bash}"
    );
    let fish = text(&["start-it", "--generate", "fish"]);
    assert!(fish.contains("(__fish_complete_subcommand -- -n --number)"), "{fish}");
    assert!(text(&["start-it", "--generate", "zsh"]).contains("_cmdambivalent"));
}
