//! Command lines that start a node: by ssh, by srun, or by the user's own command.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::Path, time::Duration};

/// A command that runs another one on a host. The default is `ssh`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum AgentCommand {
    #[default]
    Ssh,
    /// `srun`, within an allocation of Slurm: a step of one task on that node.
    Srun,
    Words(Vec<String>),
}

impl AgentCommand {
    pub(crate) fn new(command: &str) -> AgentCommand {
        AgentCommand::Words(command.split_whitespace().map(String::from).collect())
    }

    /// Returns the name by which people know the command.
    pub(crate) fn title(&self) -> String {
        match self {
            AgentCommand::Ssh => "ssh".into(),
            AgentCommand::Srun => "srun".into(),
            AgentCommand::Words(words) => words.join(" "),
        }
    }

    /// Returns all words of the command that runs `node` on `host`.
    pub(crate) fn words(&self, host: &str, node: Vec<OsString>, limit: Duration) -> Vec<OsString> {
        let (mut words, named) = match self {
            AgentCommand::Ssh => (ssh(limit), false),
            AgentCommand::Srun => (srun(host), true),
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

/// Returns the words of ssh, with options so that it asks for nothing, and waits no longer than we do.
fn ssh(limit: Duration) -> Vec<String> {
    let seconds = limit.as_secs().max(1);
    ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={seconds}")]
        .map(String::from)
        .into()
}

/// Returns the words of srun. The options override Slurm's variables (`SLURM_EXPORT_ENV=NONE` of sbatch, the
/// masks of a step around us), which would decide otherwise.
///
/// - `--overlap`: the nodes' steps take what other steps of the job have as well, instead of waiting for these to end.
/// - `--mpi=none`: the ranks find their job through deckrun, and must not find a PMI of a world of one.
/// - `--input=all`: the secret and the spec come over standard input.
/// - `--cpu-bind=none`: the node may use all processors that the job has there, and binds its ranks itself. Slurm does not
///   let it out of those. `--cpus-per-task` would have to name their number, and the number in the environment is at times more
///   than Slurm grants.
fn srun(host: &str) -> Vec<String> {
    let node = format!("--nodelist={host}");
    let one = ["srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", &node];
    let how = ["--overlap", "--mpi=none", "--export=ALL", "--input=all", "--cpu-bind=none"];
    one.into_iter().chain(how).map(String::from).collect()
}

/// Quotes a word for the shell at the other end of ssh: sh, bash, zsh, tcsh or fish. Within single quotes tcsh
/// still looks for `!` and fish for backslashes; both characters are therefore written outside of them.
fn quote(word: OsString) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,@+".contains(byte);
    let bytes = word.into_vec();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return OsString::from_vec(bytes);
    }
    let mut quoted = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' | b'!' | b'\\' => quoted.extend([b'\'', b'\\', byte, b'\'']),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
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
    fn srun_starts_one_task_on_the_node_and_passes_words_and_input_on() {
        let srun = words(&AgentCommand::Srun, "/it's here/deckrun");
        assert_eq!(srun[0], "srun");
        for option in ["--nodelist=b", "--ntasks=1", "--overlap", "--mpi=none", "--export=ALL", "--input=all"]
        {
            assert!(srun.iter().any(|word| word == option), "{option}: {srun:?}");
        }
        assert_eq!(srun[srun.len() - 2..], ["/it's here/deckrun", "--node"], "no shell, nor the name again");
    }

    #[test]
    fn ssh_asks_nothing_and_its_shell_gets_words_that_stay_words() {
        let ssh = words(&AgentCommand::Ssh, "/it's here/deckrun");
        assert!(ssh.join(" ").contains("BatchMode=yes -o ConnectTimeout=9 b"), "{ssh:?}");
        assert_eq!(ssh[ssh.len() - 2], r"'/it'\''s here/deckrun'");
        let own = words(&AgentCommand::new("/usr/bin/ssh -p 2222"), "/a b");
        assert_eq!(own[3..], ["b", "'/a b'", "--node"]);
        let ipv6 = words(&AgentCommand::Ssh, "[2001:db8::1]:4567/0/20000");
        assert_eq!(ipv6[ipv6.len() - 2], "'[2001:db8::1]:4567/0/20000'");
    }

    /// Runs the shells that this machine has.
    #[test]
    fn every_shell_takes_quoted_words_as_they_are() {
        let shells: [&[&str]; 7] = [
            &["sh", "-c"],
            &["bash", "-c"],
            &["bash", "-O", "failglob", "-c"],
            &["zsh", "-c"],
            &["tcsh", "-c"],
            &["csh", "-c"],
            &["fish", "-c"],
        ];
        let hard = [
            &b"[2001:db8::1]:4567/0/20000"[..],
            b"/it's here/deckrun",
            b"",
            b"a\\\\b\\'c!d!",
            b"~$HOME`id`{a,b}*?=%1^#",
            b"/caf\xe9 \xff\xfe/deckrun",
        ];
        for word in hard {
            let quoted = quote(OsString::from_vec(word.to_vec())).into_vec();
            let line = OsString::from_vec([b"/usr/bin/printf %s ", &quoted[..]].concat());
            for shell in shells {
                let mut command = std::process::Command::new(shell[0]);
                match command.args(&shell[1..]).arg(&line).output() {
                    Ok(ran) => assert_eq!(ran.stdout, word, "{shell:?} {line:?}: {:?}", ran.stderr),
                    Err(_) => println!("skipped: there is no {}", shell[0]),
                }
            }
        }
    }
}
