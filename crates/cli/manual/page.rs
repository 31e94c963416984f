//! A program's manual page, in one piece: subcommands are sections of it.

use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use super::sections::{self, Section};

/// Sections that have another name in manual pages.
const TITLES: [(&str, &str); 1] = [("Exit code", "EXIT STATUS")];
const MANUAL: &str = "\u{b5}DECK";
const SETTINGS: &str = "All settings are environment variables that begin with DECK_. The page \"Settings\" of the book \
                        (docs/settings.md) has all of them with their defaults. One that is misspelt is named on standard error.";
const ENVIRONMENT: &str = "ENVIRONMENT";
/// First lines of each rendered page; they are needed once only.
const PREAMBLE: [&str; 2] = [r".ie \n(.g .ds Aq \(aq", ".el .ds Aq '"];
const SEE_ALSO: [&str; 6] = ["deckrun", "deckperf", "deckqos", "deckfabric", "nas-ft", "hadb"];

/// Renders the page of `command`, which must not be built: global options then stand at the top only.
pub fn render(command: &Command) -> String {
    let name = command.get_name();
    let mut usage = command.clone();
    let usage = usage.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let man = Man::new(command.clone().override_usage(usage));
    let version = command.get_version().unwrap_or_default();
    // The title is made by hand: `clap_mangen` leaves out an empty date, and the version takes its place.
    let title = format!(".TH \"{}\" 1 \"\" \"{} {version}\" \"{MANUAL}\"\n", name.to_uppercase(), name);
    let mut page = PREAMBLE.join("\n") + "\n" + &title;
    type Part = fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>;
    let parts: [Part; 4] = [
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ];
    for part in parts {
        page += &text(|out| part(&man, out));
    }
    page += &subcommands(command);
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    page += &last_sections(name, sections::parse(&more));
    page
}

/// Returns rendered text without the lines that each rendering begins with.
fn text(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("memory takes everything");
    let text = String::from_utf8(bytes).expect("made from strings");
    let text: String =
        text.lines().filter(|line| !PREAMBLE.contains(line)).flat_map(|line| [line, "\n"]).collect();
    // Three breaks are one.
    text.replace(".br\n\n.br\n", ".sp\n")
}

/// Renders the subcommands, each with the options that only it has.
fn subcommands(command: &Command) -> String {
    let mut page = String::new();
    for subcommand in command.get_subcommands() {
        if page.is_empty() {
            page += ".SH COMMANDS\nEach command also takes the options above.\n";
        }
        let mut roff = Roff::new();
        roff.control("SS", [subcommand.get_name()]);
        let about = subcommand.get_long_about().or_else(|| subcommand.get_about());
        roff.text([roman(about.map(ToString::to_string).unwrap_or_default())]);
        page += &text(|out| roff.to_writer(out));
        let bare = subcommand.clone().disable_help_flag(true).disable_version_flag(true);
        if bare.get_arguments().next().is_some() {
            let options = text(|out| Man::new(bare).render_options_section(out));
            page += options.trim_start_matches(".SH OPTIONS\n");
        }
    }
    page
}

fn last_sections(name: &str, mut sections: Vec<Section>) -> String {
    let mut roff = Roff::new();
    if !sections.iter().any(|section| section.title.to_uppercase() == ENVIRONMENT) {
        sections.push(Section { title: ENVIRONMENT.to_owned(), entries: Vec::new() });
    }
    for section in sections {
        let title = TITLES.iter().find(|(ours, _)| *ours == section.title);
        let title = title.map_or_else(|| section.title.to_uppercase(), |(_, theirs)| (*theirs).to_owned());
        roff.control("SH", [title.as_str()]);
        for entry in section.entries {
            // An entry without words would take the next entry's term for them.
            roff.control(if entry.words.is_empty() { "PP" } else { "TP" }, []).text([bold(entry.term)]);
            if !entry.words.is_empty() {
                roff.text([roman(entry.words)]);
            }
        }
        if title == ENVIRONMENT {
            roff.control("PP", []).text([roman(SETTINGS)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    let others = SEE_ALSO.into_iter().filter(|other| *other != name).map(|other| format!("{other}(1)"));
    roff.text([roman(others.collect::<Vec<_>>().join(", ") + ", and the book in docs/ of the sources")]);
    text(|out| roff.to_writer(out))
}
