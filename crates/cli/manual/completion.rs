//! Completions for shells. Behind a program to be started, its own arguments are completed: clap can do that
//! for zsh only.

use clap::{Arg, Command, ValueHint};
use clap_complete::{Generator, aot};

/// Text before bash's `complete`, in which words in `@` are replaced.
const PROGRAM_IN_BASH: &str = include_str!("program.bash");

pub fn bash(command: Command) -> String {
    let name = command.get_name().to_owned();
    let program = starts_a_program(&command).then(|| options_with_values(&command).join("|"));
    let script = script(aot::Bash, command);
    let Some(options) = program else { return script };
    let function = format!("_{}", name.replace('-', "__"));
    let (own, script) = (format!("{function}__or_program"), script.as_str());
    let wrapper = [("@FUNCTION@", &function), ("@OWN@", &own), ("@OPTIONS@", &options)]
        .into_iter()
        .fold(PROGRAM_IN_BASH.to_owned(), |text, (word, value)| text.replace(word, value));
    let begin = format!("complete -F {function} ");
    let end = script.rfind("\nif ").map_or(script.len(), |at| at + 1);
    format!("{}{wrapper}\n{}", &script[..end], script[end..].replace(&begin, &format!("complete -F {own} ")))
}

pub fn zsh(command: Command) -> String {
    script(aot::Zsh, command)
}

pub fn fish(command: Command) -> String {
    let (name, options) = (command.get_name().to_owned(), options_with_values(&command).join(" "));
    let program = starts_a_program(&command);
    let mut script = script(aot::Fish, command);
    if program {
        script +=
            &format!("complete -c {name} -a \"(__fish_complete_subcommand -- {options})\" -d Program\n");
    }
    script
}

fn script(shell: impl Generator, mut command: Command) -> String {
    let mut bytes = Vec::new();
    let name = command.get_name().to_owned();
    // A number or a word of ours is no file.
    command = command.mut_args(|arg| match arg.get_value_hint() {
        ValueHint::Unknown if !arg.is_positional() && takes_value(&arg) => arg.value_hint(ValueHint::Other),
        _ => arg,
    });
    aot::generate(shell, &mut command, name, &mut bytes);
    String::from_utf8(bytes).expect("made from strings")
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn starts_a_program(command: &Command) -> bool {
    command.get_positionals().any(|arg| arg.get_value_hint() == ValueHint::CommandWithArguments)
}

/// Returns the options with values as they are typed: the word behind one of them is not the program.
fn options_with_values(command: &Command) -> Vec<String> {
    let options = command.get_opts().filter(|arg| takes_value(arg));
    let names = options.flat_map(|arg| {
        let short = arg.get_short().map(|short| format!("-{short}"));
        short.into_iter().chain(arg.get_long().map(|long| format!("--{long}")))
    });
    names.collect()
}
