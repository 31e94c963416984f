//! deckrun on a host of a job that was started on another one: `deckrun --node`, which no person types.
//!
//! It gets the job's secret and its task on its standard input, connects to the root, proves that it knows the secret, and,
//! when the root says so, starts and watches over the ranks of the task, as a local job is watched over ([`session`]). What it says on its
//! standard error reaches the root through the agent.

mod boot;
mod session;
mod task;

use std::{
    ffi::OsStr,
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    str::FromStr,
    time::{Duration, Instant},
};

pub(crate) use self::task::refusal;

use crate::{
    Step, guard,
    link::{
        prove::{Node, Refusal},
        seal::Keys,
        trunk::Trunk,
        wire::CHALLENGE_LEN,
    },
    wait::say_within,
};

/// What makes a deckrun a node.
pub(crate) const FLAG: &str = "--node";

/// The exit codes by which a node's end before it was connected says at which step it was.
const CONNECT_FAILED: u8 = 91;
const PROOF_FAILED: u8 = 92;
const FAILED: u8 = 93;

/// The step at which a node gave up that exited with this code.
pub(crate) fn step_of(code: i32) -> Option<Step> {
    match u8::try_from(code) {
        Ok(CONNECT_FAILED) => Some(Step::Connect),
        Ok(PROOF_FAILED) => Some(Step::Prove),
        _ => None,
    }
}

/// What a node is told on its command line: nothing secret. `10.0.0.1:4567/2/30000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) root: SocketAddr,
    /// Which host it is, of those that have a node.
    pub(crate) index: u32,
    /// How long it may take to connect; sent in milliseconds.
    pub(crate) limit: Duration,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.root, self.index, self.limit.as_millis())
    }
}

impl FromStr for Argument {
    type Err = ();

    fn from_str(text: &str) -> Result<Argument, ()> {
        let mut parts = text.split('/');
        let (Some(root), Some(index), Some(limit), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        Ok(Argument {
            root: root.parse().map_err(drop)?,
            index: index.parse().map_err(drop)?,
            limit: Duration::from_millis(limit.parse().map_err(drop)?),
        })
    }
}

/// What this process should exit with, if its arguments make it a node. Blocks until its part of the job is over.
pub fn serve(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Option<ExitCode> {
    if arguments.nth(1)? != FLAG {
        return None;
    }
    let argument = arguments.next().unwrap_or_default();
    let ended = guard::run(|| vec![code(run(&argument))]);
    Some(ExitCode::from(match ended {
        Ok(Ok(said)) => said.first().copied().unwrap_or(FAILED),
        // The root notices by the end of its connection.
        Ok(Err(_)) => FAILED,
        Err(error) => {
            code(Err((FAILED, Some(format!("starting a process to watch over the ranks: {error}")))))
        }
    }))
}

/// What to exit with, once everything has been said.
fn code(result: Result<(), Failure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err((code, why)) => {
            why.iter().for_each(|why| complain(why));
            code
        }
    }
}

/// How long a root may take to hear why a node ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Says something that the root is to hear, through the agent.
fn complain(why: &str) {
    say_within(LAST_WORDS, &format!("on {}: {why}", rustix::system::uname().nodename().to_string_lossy()));
}

/// What to exit with, and what is still to be said.
type Failure = (u8, Option<String>);

fn run(argument: &OsStr) -> Result<(), Failure> {
    let parsed = argument.to_str().and_then(|text| text.parse::<Argument>().ok());
    let not_ours = || (FAILED, Some(format!("{FLAG} is for deckrun itself, not for people")));
    let argument = parsed.ok_or_else(not_ours)?;
    let Some((secret, task)) =
        task::read(Instant::now() + argument.limit).map_err(|why| (FAILED, Some(why)))?
    else {
        return Err(not_ours());
    };
    let stream = TcpStream::connect_timeout(&argument.root, argument.limit).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::TimedOut => "; perhaps a firewall drops it",
            _ => "",
        };
        (CONNECT_FAILED, Some(format!("cannot reach {} from here: {error}{hint}", argument.root)))
    })?;
    let keys = prove(&stream, secret, &argument).map_err(|why| (PROOF_FAILED, Some(why)))?;
    let failed = |what: &str, error: io::Error| (FAILED, Some(format!("{what}: {error}")));
    let address = stream.local_addr().map_err(|error| failed("asking for our own address", error))?.ip();
    let detect = Duration::from_millis(task.detect_ms.into());
    let trunk =
        Trunk::new(stream, keys, detect).map_err(|error| failed("setting up the connection", error))?;
    session::run(trunk, task, secret, address).map_err(|session::Complained| (FAILED, None))
}

fn prove(mut stream: &TcpStream, secret: [u8; 32], argument: &Argument) -> Result<Keys, String> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| error.to_string())?;
    let (node, hello) = Node::new(secret, argument.index, nonce);
    let mut exchange = || -> io::Result<Result<Keys, Refusal>> {
        stream.set_read_timeout(Some(argument.limit))?;
        stream.write_all(&hello)?;
        let mut challenge = [0; CHALLENGE_LEN];
        stream.read_exact(&mut challenge)?;
        match node.prove(&challenge) {
            Ok((proof, keys)) => stream.write_all(&proof).map(|()| Ok(keys)),
            Err(why) => Ok(Err(why)),
        }
    };
    let root = argument.root;
    match exchange() {
        Ok(Ok(keys)) => Ok(keys),
        Ok(Err(why)) => Err(format!("whoever listens at {root} is not our root: {why}")),
        Err(error) => Err(format!("whoever listens at {root} did not prove to be our root: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_back() {
        for root in ["10.0.0.1:4567", "[2001:db8::1]:1"] {
            let argument =
                Argument { root: root.parse().unwrap(), index: 7, limit: Duration::from_millis(1500) };
            assert_eq!(argument.to_string().parse(), Ok(argument));
        }
        for text in
            ["", "x", "10.0.0.1:1", "10.0.0.1:1/2", "10.0.0.1/2/3", "10.0.0.1:1/2/3/4", "10.0.0.1:1/-2/3"]
        {
            assert_eq!(text.parse::<Argument>(), Err(()), "{text}");
        }
    }
}
