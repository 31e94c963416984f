//! The command that starts a node: its words.

use std::{ffi::OsString, path::Path, time::Duration};

/// A command that runs another one on a host. The default is `ssh`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum AgentCommand {
    #[default]
    Ssh,
    Words(Vec<String>),
}

impl AgentCommand {
    pub(crate) fn new(command: &str) -> AgentCommand {
        AgentCommand::Words(command.split_whitespace().map(String::from).collect())
    }

    /// All words of the command that runs `node` on `host`.
    pub(crate) fn words(&self, host: &str, node: Vec<OsString>, limit: Duration) -> Vec<OsString> {
        let (mut words, named) = match self {
            AgentCommand::Ssh => (ssh(limit), false),
            AgentCommand::Words(words) => {
                let named = words.iter().any(|word| word.contains("{}"));
                (words.iter().map(|word| word.replace("{}", host)).collect(), named)
            }
        };
        if !named {
            words.push(host.into());
        }
        let through_a_shell = words.first().is_some_and(|first| Path::new(first).ends_with("ssh"));
        let quoted = |word: OsString| if through_a_shell { quote(word) } else { word };
        words.into_iter().map(OsString::from).chain(node.into_iter().map(quoted)).collect()
    }
}

/// It must not ask for anything, nor wait longer than we do.
fn ssh(limit: Duration) -> Vec<String> {
    let seconds = limit.as_secs().max(1);
    ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={seconds}")]
        .map(String::from)
        .into()
}

/// For the shell at the other end of ssh.
fn quote(word: OsString) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,[]%@+".contains(byte);
    match word.to_str() {
        Some(text) if !text.bytes().all(|byte| plain(&byte)) => {
            format!("'{}'", text.replace('\'', r"'\''")).into()
        }
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(agent: &AgentCommand, node: &str) -> Vec<String> {
        let words = agent.words("b", vec![node.into(), "--node".into()], Duration::from_secs(9));
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn the_host_comes_behind_the_agents_words_or_where_it_is_asked_for() {
        let agent = AgentCommand::new(" ip netns  exec ");
        assert_eq!(words(&agent, "/x y"), ["ip", "netns", "exec", "b", "/x y", "--node"]);
        let agent = AgentCommand::new("env HOST={} nice");
        assert_eq!(words(&agent, "/x"), ["env", "HOST=b", "nice", "/x", "--node"]);
    }

    #[test]
    fn ssh_asks_nothing_and_its_shell_gets_words_that_stay_words() {
        let ssh = words(&AgentCommand::Ssh, "/it's here/deckrun");
        assert!(ssh.join(" ").contains("BatchMode=yes -o ConnectTimeout=9 b"), "{ssh:?}");
        assert_eq!(ssh[ssh.len() - 2], r"'/it'\''s here/deckrun'");
        let own = words(&AgentCommand::new("/usr/bin/ssh -p 2222"), "/a b");
        assert_eq!(own[3..], ["b", "'/a b'", "--node"]);
    }
}
