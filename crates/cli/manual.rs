//! Manual pages and completions of µDECK's programs, made from their command lines: `PROGRAM --generate man|bash|zsh|fish`.
//!
//! The option is hidden: `cargo xtask install` uses it, and so can a user of a program without an installation.
//! The page is made from the same data as `--help`, and so they cannot differ.

mod completion;
mod page;
mod sections;

use clap::{Args, Command, CommandFactory, ValueEnum};

/// The option `--generate`, flattened into a program's options.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Generate {
    /// Write the manual page, or the completions for a shell, to standard output
    #[arg(long, value_enum, value_name = "WHAT", exclusive = true, hide = true)]
    generate: Option<What>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// The manual page
    Man,
    /// Completions for bash
    Bash,
    /// Completions for zsh
    Zsh,
    /// Completions for fish
    Fish,
}

impl Generate {
    /// Returns the text to be written, if the option was given; the program then does nothing else.
    pub fn text<Program: CommandFactory>(self) -> Option<String> {
        let command = visible(&Program::command());
        Some(match self.generate? {
            What::Man => page::render(&command),
            What::Bash => completion::bash(command),
            What::Zsh => completion::zsh(command),
            What::Fish => completion::fish(command),
        })
    }
}

/// Returns the command without hidden parts, which pages leave out, but completions do not.
fn visible(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned()).disable_help_subcommand(true);
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        shown = shown.long_about(about.clone());
    }
    if let Some(more) = command.get_after_help() {
        shown = shown.after_help(more.clone());
    }
    if let Some(usage) = command.get_overridden_usage() {
        shown = shown.override_usage(usage.clone());
    }
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible);
    shown.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned()).subcommands(subcommands)
}

#[cfg(test)]
mod tests;
