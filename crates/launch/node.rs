//! The node: deckrun on another host of the job, started as `deckrun --node`, which no person types.
//!
//! A node reads the job's secret and its spec on its standard input, connects to the root, and proves that it
//! knows the control key that follows from its spec. When the root says so, it starts the ranks of the spec,
//! and watches over them as over a local job ([`session`]). Its standard error reaches the root through the
//! agent.

mod boot;
mod job_spec;
mod session;

use std::{
    ffi::OsStr,
    fmt, io,
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

pub(crate) use self::job_spec::refusal;

use udeck_auth::{ControlKey, DeadlineStream, SecureStream, StreamError};
use udeck_sys::advise_route;

use crate::{
    Step,
    cgroup::Cgroup,
    control::{
        framed_stream::FramedStream,
        secure::{self, AuthError},
    },
    guard,
    wait::message_within,
};

/// The option that makes a deckrun a node.
pub(crate) const FLAG: &str = "--node";

/// Exit codes of a node that ends before it was connected; each names a step.
const CONNECT_FAILED: u8 = 91;
const PROOF_FAILED: u8 = 92;
const FAILED: u8 = 93;

/// Returns the step at which a node with this exit code gave up.
pub(crate) fn step_of(code: i32) -> Option<Step> {
    match u8::try_from(code) {
        Ok(CONNECT_FAILED) => Some(Step::Connect),
        Ok(PROOF_FAILED) => Some(Step::Prove),
        _ => None,
    }
}

/// A node's command-line argument, which has nothing secret: `10.0.0.1:4567/2/30000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) root: SocketAddr,
    /// Index of the host among those that have a node.
    pub(crate) index: u32,
    /// Time limit for connecting; sent in milliseconds.
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

/// Serves as a node, if the arguments ask for one, and returns the exit code. Blocks until the node's part of
/// the job is over.
pub fn serve(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Option<ExitCode> {
    if arguments.nth(1)? != FLAG {
        return None;
    }
    let argument = arguments.next().unwrap_or_default();
    let ended = guard::run(|cgroup| vec![code(run(&argument, cgroup))]);
    Some(ExitCode::from(match ended {
        Ok(Ok(said)) => said.first().copied().unwrap_or(FAILED),
        // The root notices by the end of its connection.
        Ok(Err(_)) => FAILED,
        Err(error) => {
            code(Err((FAILED, Some(format!("starting a process to watch over the ranks: {error}")))))
        }
    }))
}

/// Returns the exit code, after writing the error.
fn code(result: Result<(), NodeFailure>) -> u8 {
    match result {
        Ok(()) => 0,
        Err((code, why)) => {
            why.iter().for_each(|why| report_error(why));
            code
        }
    }
}

/// How long to wait until the root has taken a node's last error.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Writes an error for the root, through the agent.
fn report_error(why: &str) {
    message_within(
        LAST_WORDS,
        &format!("on {}: {why}", rustix::system::uname().nodename().to_string_lossy()),
    );
}

/// An exit code, and an error text that is not written yet.
type NodeFailure = (u8, Option<String>);

fn run(argument: &OsStr, cgroup: Option<&Cgroup>) -> Result<(), NodeFailure> {
    let parsed = argument.to_str().and_then(|text| text.parse::<Argument>().ok());
    let not_ours = || (FAILED, Some(format!("{FLAG} is for deckrun itself, not for people")));
    let argument = parsed.ok_or_else(not_ours)?;
    let Some((secret, spec)) =
        job_spec::read(Instant::now() + argument.limit).map_err(|why| (FAILED, Some(why)))?
    else {
        return Err(not_ours());
    };
    let (stream, secure) = connect_to_root(spec.key.control_key(), &argument)?;
    let failed = |what: &str, error: io::Error| (FAILED, Some(format!("{what}: {error}")));
    let address = stream.local_addr().map_err(|error| failed("asking for our own address", error))?.ip();
    let detect = Duration::from_millis(spec.detect_ms.into());
    let control = FramedStream::new(stream, secure, detect)
        .map_err(|error| failed("setting up the connection", error))?;
    session::run(control, spec, secret, address, cgroup).map_err(|session::ErrorReported| (FAILED, None))
}

/// Time limit of one try to connect: if strangers fill the root's backlog, a later try may find a place.
const TRY: Duration = Duration::from_secs(3);
/// Wait before the second try. It doubles after each further try.
const PAUSE: Duration = Duration::from_millis(20);
/// Upper bound of the wait between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The failure of one try to connect.
enum Failed {
    /// Another try may succeed.
    Now(NodeFailure),
    /// All further tries would fail in the same way.
    ForGood(NodeFailure),
}

/// Connects to the root. If many strangers connect, the root may close the slowest connections unheard, ours
/// among them: tries again until the time limit.
fn connect_to_root(key: ControlKey, argument: &Argument) -> Result<(TcpStream, SecureStream), NodeFailure> {
    let (deadline, mut pause) = (Instant::now() + argument.limit, PAUSE);
    loop {
        match try_to_connect(key, argument, deadline) {
            Ok(connected) => return Ok(connected),
            Err(Failed::Now(_)) if Instant::now() + pause < deadline => thread::sleep(pause),
            Err(Failed::Now(why) | Failed::ForGood(why)) => return Err(why),
        }
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

fn try_to_connect(
    key: ControlKey,
    argument: &Argument,
    deadline: Instant,
) -> Result<(TcpStream, SecureStream), Failed> {
    let root = argument.root;
    // A timeout of zero would be an error.
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&root, left().min(TRY)).map_err(|error| {
        let slow = error.kind() == io::ErrorKind::TimedOut;
        let error = advise_route(error, root.ip());
        let hint = if slow { "; perhaps a firewall drops it" } else { "" };
        let why = (CONNECT_FAILED, Some(format!("cannot reach {root} from here: {error}{hint}")));
        if slow || is_sent_away(&error) { Failed::Now(why) } else { Failed::ForGood(why) }
    })?;
    let proved = prove(&stream, key, argument.index, left()).map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no full answer within {} s", argument.limit.as_secs_f32())
            }
            _ => error.to_string(),
        };
        let why = (
            PROOF_FAILED,
            Some(format!("the process listening at {root} did not prove to be our root: {what}")),
        );
        if is_sent_away(&error) { Failed::Now(why) } else { Failed::ForGood(why) }
    })?;
    let secure = proved.map_err(|why| {
        let why = AuthError::from(why);
        Failed::ForGood((
            PROOF_FAILED,
            Some(format!("the process listening at {root} is not our root: {why}")),
        ))
    })?;
    Ok((stream, secure))
}

/// Tells whether the other side has closed the connection.
fn is_sent_away(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Lets both sides prove themselves, within `limit` as a whole.
fn prove(
    stream: &TcpStream,
    key: ControlKey,
    index: u32,
    limit: Duration,
) -> io::Result<Result<SecureStream, StreamError>> {
    let mut secure = secure::node(index, key)?;
    let proved = secure.handshake(&mut DeadlineStream::new(stream, limit))?;
    Ok(proved.map(|()| secure))
}

#[cfg(test)]
mod tests {
    use std::{io::Write, net::TcpListener};

    use udeck_auth::HostKey;

    use super::*;
    use crate::control::wire::VERSION;

    /// The listener sends a root's first bytes one by one, each within the time limit.
    #[test]
    fn a_listener_that_trickles_its_proof_does_not_stretch_the_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (root, limit) = (listener.local_addr().unwrap(), Duration::from_millis(300));
        let trickler = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = [&b"uDECKrun"[..], &VERSION.to_le_bytes(), &[0; 68]].concat().into_iter();
            while bytes.next().is_some_and(|byte| stream.write_all(&[byte]).is_ok()) {
                thread::sleep(Duration::from_millis(100));
            }
        });
        let key = HostKey::from_bytes([7; 32]).control_key();
        let (code, why) = connect_to_root(key, &Argument { root, index: 0, limit }).err().unwrap();
        let why = why.unwrap();
        // A time limit for each read would have let all bytes come, and their proof be refused.
        assert!(
            code == PROOF_FAILED && why.contains("did not prove to be our root: no full answer within 0.3 s"),
            "{why}"
        );
        trickler.join().unwrap();
    }

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
