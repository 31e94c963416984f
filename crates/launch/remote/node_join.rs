//! Joining of the other hosts: agents are started, nodes connect back and prove that they know their control
//! key.
//!
//! All of it happens on the calling thread, in one loop with one time limit. A stranger that connects costs a
//! bounded buffer for a bounded time, and one line. If there are many strangers, the slowest one makes room for
//! the next.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::PollFlags;
use udeck_auth::{ControlKey, SecureStream};
use udeck_sys::unauthenticated::Place;

use super::{
    agent::{Agent, wait_for_all},
    agent_command::AgentCommand,
};
use crate::{
    End, LaunchError, Step,
    control::secure::{self, AuthError},
    descriptors::STRANGERS,
    hosts::Share,
    node::{self, Argument},
    print::Printers,
    ranks::Setting,
    signals::Signals,
    wait::ready,
};

/// Maximum number of refused addresses that are reported.
const MAX_TOLD: usize = 16;

/// The data that are needed to start nodes.
pub(crate) struct Invitation<'a> {
    pub(crate) agent: &'a AgentCommand,
    pub(crate) deckrun: &'a Path,
    /// The encoded spec of each host.
    pub(crate) specs: &'a [Vec<u8>],
    pub(crate) address: IpAddr,
    pub(crate) secret: [u8; 32],
    /// The control key of each host, which its node must prove to know.
    pub(crate) keys: Arc<[ControlKey]>,
    pub(crate) limit: Duration,
    pub(crate) setting: &'a Setting<'a>,
    pub(crate) printers: &'a Printers,
}

/// The result of the joining, if there was no error.
pub(crate) enum Join {
    /// The agents and connections of all shares, in their order.
    All(Vec<(Agent, TcpStream, SecureStream)>),
    /// This signal came first.
    Interrupted(i32),
}

struct Joining<'a> {
    invitation: &'a Invitation<'a>,
    listener: TcpListener,
    root: SocketAddr,
    shares: &'a [Share],
    agents: Vec<Agent>,
    connected: Vec<Option<(TcpStream, SecureStream)>>,
    strangers: Vec<Stranger>,
    told: HashSet<IpAddr>,
    last_refusal: Option<(IpAddr, AuthError)>,
    deadline: Instant,
}

/// A connection that has not proved anything yet.
struct Stranger {
    stream: TcpStream,
    secure: SecureStream,
    from: IpAddr,
    since: Instant,
    until: Instant,
}

/// Starts a node for each of `shares`, none of which is this host, and waits for all of them.
pub(crate) fn join(
    invitation: &Invitation<'_>,
    shares: &[Share],
    signals: &Signals,
) -> Result<Join, LaunchError> {
    let deadline = Instant::now() + invitation.limit;
    let cannot = LaunchError::system::<io::Error>("listening for the other hosts");
    let listener = TcpListener::bind((invitation.address, 0)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let (root, listener) = listener.map_err(cannot)?;
    let mut joining = Joining {
        invitation,
        listener,
        root,
        shares,
        agents: Vec::new(),
        connected: shares.iter().map(|_| None).collect(),
        strangers: Vec::new(),
        told: HashSet::new(),
        last_refusal: None,
        deadline,
    };
    let result = joining.start_agents().and_then(|()| joining.until_all_are_here(signals));
    match result {
        Ok(None) => {
            let connected = joining.connected.into_iter().flatten();
            let met = joining.agents.into_iter().zip(connected);
            Ok(Join::All(met.map(|(agent, (stream, secure))| (agent, stream, secure)).collect()))
        }
        other => {
            wait_for_all(joining.agents.iter_mut(), Duration::ZERO);
            other.map(|signal| Join::Interrupted(signal.unwrap_or_default()))
        }
    }
}

impl Joining<'_> {
    fn start_agents(&mut self) -> Result<(), LaunchError> {
        let Invitation { agent, deckrun, secret, limit, setting, specs, .. } = self.invitation;
        for ((index, share), spec) in (0..).zip(self.shares).zip(*specs) {
            // A node or ssh should report its own error before our time limit.
            let argument = Argument { root: self.root, index, limit: *limit * 2 / 3 };
            match Agent::start(agent, &share.host, deckrun, &argument, secret, spec, setting) {
                Ok(agent) => self.agents.push(agent),
                Err((command, error)) => {
                    let why = format!(
                        "cannot run {command}: {error}; --agent sets the command that starts programs there"
                    );
                    return Err(LaunchError::Host { host: share.host.clone(), step: Step::Agent, why });
                }
            }
        }
        Ok(())
    }

    /// Returns `Some` if a signal came first.
    fn until_all_are_here(&mut self, signals: &Signals) -> Result<Option<i32>, LaunchError> {
        let mut stop_later = false;
        while self.connected.iter().any(Option::is_none) {
            self.sleep(signals)?;
            while let Some(signal) = signals.take_next() {
                match signal {
                    libc::SIGCHLD => {}
                    // Nodes cannot be stopped before they have connected, and would not wait for us.
                    libc::SIGTSTP => stop_later = true,
                    signal => return Ok(Some(signal)),
                }
            }
            // Received before and after accepting: a stranger that has proved itself by now is not sent away.
            self.receive_from_strangers();
            self.accept();
            self.receive_from_strangers();
            self.check_agents()?;
            if Instant::now() >= self.deadline {
                return Err(self.late());
            }
        }
        if stop_later {
            signals.put_back(libc::SIGTSTP);
        }
        Ok(None)
    }

    fn sleep(&self, signals: &Signals) -> Result<(), LaunchError> {
        let mut fds = vec![signals.pending()];
        let mut until =
            self.strangers.iter().map(|stranger| stranger.until).fold(self.deadline, Instant::min);
        match self.place(Instant::now()) {
            Place::Full(fair) => until = until.min(fair),
            _ => fds.push(self.listener.as_fd()),
        }
        fds.extend(self.strangers.iter().map(|stranger| stranger.stream.as_fd()));
        fds.extend(self.agents.iter().filter_map(Agent::output));
        let inputs = self.agents.iter().filter_map(Agent::input);
        let all = fds.into_iter().map(|fd| (fd, PollFlags::IN)).chain(inputs.map(|fd| (fd, PollFlags::OUT)));
        ready(all, Some(until)).map(drop).map_err(LaunchError::system("waiting for the other hosts"))
    }

    fn accept(&mut self) {
        // Accepts at most as many as there are places, before they are read.
        for _ in 0..STRANGERS.most {
            let now = Instant::now();
            let place = self.place(now);
            if let Place::Full(_) = place {
                return;
            }
            let Ok((stream, from)) = self.listener.accept() else { return };
            if let Place::Evict(index) = place {
                // Its proof may have come meanwhile, and is read first.
                let slowest = self.strangers.remove(index);
                if let Some(slowest) = self.advance(slowest, now) {
                    self.refuse(slowest.from, AuthError::Slow);
                }
            }
            if stream.set_nonblocking(true).is_ok()
                && let Ok(secure) = secure::root(&self.invitation.keys)
            {
                let (from, until) = (from.ip(), now + STRANGERS.limit);
                self.strangers.push(Stranger { stream, secure, from, since: now, until });
            }
        }
    }

    /// Returns the place of the next stranger: a free one, or that of the slowest one, by index.
    fn place(&self, now: Instant) -> Place<usize> {
        let strangers = self.strangers.iter().enumerate().map(|(index, one)| (index, (), one.since));
        STRANGERS.admit(strangers, (), now)
    }

    fn receive_from_strangers(&mut self) {
        let now = Instant::now();
        for stranger in std::mem::take(&mut self.strangers) {
            let stays = self.advance(stranger, now);
            self.strangers.extend(stays);
        }
    }

    /// Reads from a stranger and answers it, and returns it if it has not proved itself yet.
    fn advance(&mut self, mut stranger: Stranger, now: Instant) -> Option<Stranger> {
        match stranger.secure.handshake(&mut stranger.stream) {
            // The stranger has sent no more yet: an answer always finds room in a fresh connection.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && now < stranger.until => {
                return Some(stranger);
            }
            // Late, or gone.
            Err(_) => {}
            Ok(Err(why)) => self.refuse(stranger.from, why.into()),
            Ok(Ok(())) => {
                let index = stranger.secure.proven().map(|index| index as usize);
                match index.and_then(|index| self.connected.get_mut(index)) {
                    Some(place @ None) => *place = Some((stranger.stream, stranger.secure)),
                    _ => self.refuse(stranger.from, AuthError::Stranger),
                }
            }
        }
        None
    }

    fn refuse(&mut self, from: IpAddr, why: AuthError) {
        if self.told.len() < MAX_TOLD && self.told.insert(from) {
            self.invitation.printers.message(&format!("refused a connection from {from}: {why}"));
        }
        self.last_refusal = Some((from, why));
    }

    fn check_agents(&mut self) -> Result<(), LaunchError> {
        for ((share, agent), connected) in self.shares.iter().zip(&mut self.agents).zip(&self.connected) {
            agent.feed();
            agent.listen();
            let Some(status) = agent.ended() else { continue };
            // An agent that ends well may have left the node running on purpose.
            if connected.is_some() || status.success() {
                continue;
            }
            agent.listen();
            let (step, subject) = match status.code().and_then(node::step_of) {
                Some(step) => (step, "its deckrun gave up".to_string()),
                None => (Step::Agent, format!("{} {}", agent.command(), End::of(status))),
            };
            // The shell's exit codes for a command that it cannot run; the command is deckrun.
            let hint = match status.code() {
                Some(126 | 127) => "; --remote-deckrun says where deckrun lies there",
                _ => "",
            };
            let why = format!("{subject}{}{hint}", agent.last_words());
            return Err(LaunchError::Host { host: share.host.clone(), step, why });
        }
        Ok(())
    }

    fn late(&self) -> LaunchError {
        let missing =
            || self.shares.iter().zip(&self.agents).zip(&self.connected).filter(|(_, c)| c.is_none());
        let hosts: Vec<_> = missing().map(|((share, _), _)| share.host.as_str()).collect();
        let words = missing().map(|((_, agent), _)| agent.last_words()).next().unwrap_or_default();
        let seconds = self.invitation.limit.as_secs_f32();
        if let Some((from, why)) = &self.last_refusal {
            let why =
                format!("a connection from {from} was refused, and no other came within {seconds} s: {why}");
            return LaunchError::Host { host: hosts.join(", "), step: Step::Prove, why };
        }
        let existing =
            udeck_sys::interfaces().map(|existing| udeck_sys::listed(&existing)).unwrap_or_default();
        let why = format!(
            "no connection to {} came within {seconds} s. Can it be reached from there? A firewall may drop it, or another \
             address be the right one (--iface; this host has: {existing}); slow agents need a longer --start-timeout{words}",
            self.root
        );
        LaunchError::Host { host: hosts.join(", "), step: Step::Connect, why }
    }
}
