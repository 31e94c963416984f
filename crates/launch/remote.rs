//! The other hosts of a job, as the root sees them: one node each, with its connection and its agent.
//!
//! All of this runs on the thread that watches over the job, without blocking. [`Remotes::sources`] returns
//! what to poll, [`Remotes::handle`] deals with a source that is ready, and [`Remotes::deliver`] sends the commands
//! of other threads to the nodes.

mod address;
pub(crate) mod agent;
pub(crate) mod agent_command;
mod job_spec;
mod node;
mod node_command;
mod node_join;

use std::{
    collections::BTreeSet,
    env, io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{event::PollFlags, process::Pid};
use udeck_auth::ControlKey;
use udeck_boot::{serve::Reporter, server::Config};

use self::{
    agent::wait_for_all,
    node::Node,
    node_command::{NodeCommand, NodeReceiver, channel},
    node_join::{Invitation, Join, join},
};
use crate::{
    End, Job, LaunchError, Step,
    control::{
        WINDOW,
        framed_stream::ControlError,
        wire::{RankSample, ToNode},
    },
    hosts::Share,
    print::Printers,
    ranks::Setting,
    signals::Signals,
    wait::ready,
};

pub(crate) use self::{address::choose as choose_address, node::in_words, node_command::NodeSender};

/// How long agents may take to end by themselves once their nodes have ended.
const LAST_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Remotes {
    nodes: Vec<Node>,
    node_receiver: NodeReceiver,
    node_sender: NodeSender,
    printers: Printers,
    /// Reading end of rank 0's standard input, if rank 0 is on another host.
    input: Option<OwnedFd>,
    /// Bytes that were sent to rank 0 and that it has not taken.
    input_under_way: usize,
    start_limit: Duration,
    start_by: Instant,
}

/// A source of events of the nodes, to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollSource {
    NodeCommands,
    Input,
    Control(usize),
    Agent(usize),
}

/// An event of ranks on another host.
#[derive(Debug)]
pub(crate) enum RankEvent {
    Ended(u32, End),
    /// All ranks of a host that were still running are lost; there may be none.
    Lost {
        host: String,
        ranks: Vec<u32>,
        why: String,
    },
    /// The state of some ranks of a host; `host` is its place among the other hosts.
    RankStates {
        host: usize,
        serial: u32,
        samples: Vec<RankSample>,
        last: bool,
    },
}

/// The result of bringing in the hosts, if there was no error.
pub(crate) enum Joined {
    All(Remotes),
    Interrupted(i32),
}

/// Returns the control keys of the hosts whose first ranks are `firsts`.
pub(crate) fn control_keys(config: &Config, firsts: impl IntoIterator<Item = u32>) -> Vec<ControlKey> {
    firsts.into_iter().map(|first| config.host_key(first).control_key()).collect()
}

impl Remotes {
    /// Brings all hosts but this one into the job and tells them what to start. Blocks at most for the start limit.
    pub(crate) fn join(
        job: &Job,
        shares: &[Share],
        address: Option<IpAddr>,
        config: &Config,
        setting: &Setting,
        signals: &Signals,
        printers: &Printers,
    ) -> Result<Joined, LaunchError> {
        let system = LaunchError::system::<io::Error>;
        let start_by = Instant::now() + job.start_limit;
        let there: Vec<Share> = shares.iter().filter(|share| !share.here).cloned().collect();
        let directory = env::current_dir().map_err(system("finding the current folder"))?;
        let specs: Vec<_> = there
            .iter()
            .map(|share| job_spec::of(job, share, config, &directory, setting.pipes.form))
            .collect();
        let encoded = specs.iter().map(job_spec::encoded).collect::<Result<Vec<_>, _>>()?;
        let invitation = Invitation {
            specs: &encoded,
            agent: &job.agent,
            deckrun: &job.remote_deckrun,
            address: address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
            secret: config.secret(),
            keys: control_keys(config, there.iter().map(|share| share.first)).into(),
            limit: job.start_limit,
            setting,
            printers,
        };
        let met = if there.is_empty() { Join::All(Vec::new()) } else { join(&invitation, &there, signals)? };
        let met = match met {
            Join::All(met) => met,
            Join::Interrupted(signal) => return Ok(Joined::Interrupted(signal)),
        };
        let (node_sender, node_receiver) = channel().map_err(system("making an event descriptor"))?;
        let mut remotes = Remotes {
            nodes: Vec::new(),
            node_receiver,
            node_sender,
            printers: printers.clone(),
            input: None,
            input_under_way: 0,
            start_limit: job.start_limit,
            start_by,
        };
        for ((share, spec), (agent, stream, secure)) in there.into_iter().zip(&specs).zip(met) {
            remotes.nodes.push(Node::new(share, agent, stream, secure, spec, job.detect)?);
        }
        Ok(Joined::All(remotes))
    }

    /// Returns the sender by which the name service sends its messages to ranks on other hosts.
    pub(crate) fn node_sender(&self) -> NodeSender {
        self.node_sender.clone()
    }

    /// Tells whether rank 0 is on another host, and needs its input from here.
    pub(crate) fn has_rank_0(&self) -> bool {
        self.nodes.iter().any(|node| node.share.first == 0)
    }

    /// Sets the pipe whose data become rank 0's standard input.
    pub(crate) fn feed(&mut self, pipe: OwnedFd) {
        self.input = Some(pipe);
    }

    /// Tells whether no rank is running on another host.
    pub(crate) fn have_no_ranks(&self) -> bool {
        self.nodes.iter().all(|node| node.running().next().is_none())
    }

    /// Returns the ranks that are running on other hosts, sorted.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.nodes.iter().flat_map(Node::running).collect()
    }

    /// Tells whether no host has anything more to say.
    pub(crate) fn are_over(&self) -> bool {
        self.nodes.iter().all(Node::is_over)
    }

    /// Tells whether this is the process of an agent that has not been reaped.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.nodes.iter().any(|node| node.agent.pid() == Some(pid))
    }

    /// Returns the time by which all ranks must have been started, if some have not.
    pub(crate) fn start_by(&self) -> Option<Instant> {
        self.nodes.iter().any(Node::is_starting).then_some(self.start_by)
    }

    /// Returns the descriptors to poll, with the events to wait for.
    pub(crate) fn sources(&self) -> Vec<(PollSource, BorrowedFd<'_>, PollFlags)> {
        let mut sources = vec![(PollSource::NodeCommands, self.node_receiver.wakeup(), PollFlags::IN)];
        if let Some(input) = self.input.as_ref().filter(|_| self.input_under_way < WINDOW) {
            sources.push((PollSource::Input, input.as_fd(), PollFlags::IN));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            sources.extend(
                node.control().map(|control| (PollSource::Control(index), control.fd(), control.interest())),
            );
            sources
                .extend(node.agent.output().map(|output| (PollSource::Agent(index), output, PollFlags::IN)));
        }
        sources
    }

    /// Deals with a source that is ready.
    ///
    /// # Errors
    /// When a node could not start its ranks, so that there is no job.
    pub(crate) fn handle(
        &mut self,
        source: PollSource,
        reporter: &Reporter,
        scratch: &mut [u8],
        events: &mut Vec<RankEvent>,
    ) -> Result<(), LaunchError> {
        match source {
            PollSource::NodeCommands => {}
            PollSource::Agent(index) => self.nodes[index].agent.listen(),
            PollSource::Input => self.read_input(scratch),
            PollSource::Control(index) => {
                let node = &mut self.nodes[index];
                let mut sinks = node::EventSinks {
                    index,
                    reporter,
                    printers: &self.printers,
                    node_sender: &self.node_sender,
                    taken: &mut self.input_under_way,
                    input: &mut self.input,
                    events,
                };
                if let Err(error) = node.receive(scratch, &mut sinks) {
                    self.lose(index, &error, events)?;
                }
            }
        }
        Ok(())
    }

    /// Passes on the commands of other threads, sends what the sockets take, and checks the agents.
    ///
    /// # Errors
    /// Those of [`handle`](Remotes::handle).
    pub(crate) fn deliver(&mut self, events: &mut Vec<RankEvent>) -> Result<(), LaunchError> {
        for command in self.node_receiver.take() {
            match command {
                NodeCommand::Boot { rank, bytes } => {
                    if let Some(node) = self.node_of(rank) {
                        node.send_in_pieces(&bytes, |bytes| ToNode::Boot { rank, bytes });
                    }
                }
                NodeCommand::BootConsumed { rank, bytes } => {
                    if let Some(node) = self.node_of(rank) {
                        node.send(&ToNode::BootConsumed { rank, bytes: bytes as u32 });
                    }
                }
                NodeCommand::BootEnd { rank } => {
                    if let Some(node) = self.node_of(rank) {
                        node.send(&ToNode::BootEnd { rank });
                    }
                }
                NodeCommand::Written { node, sink, bytes } => self.nodes[node].written(sink, bytes),
                NodeCommand::Unread { sink } => {
                    self.nodes.iter_mut().for_each(|node| node.send(&ToNode::Unread { sink }));
                }
            }
        }
        for index in 0..self.nodes.len() {
            // The agent is reaped here, because the code that reaps orphans must not meet it.
            let _ = self.nodes[index].agent.ended();
            if let Err(error) = self.nodes[index].flush() {
                self.lose(index, &error, events)?;
            }
        }
        match self.nodes.iter().find(|node| node.is_starting()) {
            Some(node) if Instant::now() >= self.start_by => Err(LaunchError::Host {
                host: node.share.host.clone(),
                step: Step::Start,
                why: format!(
                    "it did not start its ranks within {} s (--start-timeout)",
                    self.start_limit.as_secs_f32()
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Sends a signal to all running ranks of other hosts.
    pub(crate) fn signal(&mut self, number: i32) {
        self.nodes.iter_mut().for_each(|node| node.send(&ToNode::Signal { number }));
    }

    /// Asks the other hosts what their ranks are doing. Returns the hosts that were asked.
    pub(crate) fn sample(&mut self, serial: u32) -> BTreeSet<usize> {
        let there = |node: &Node| !node.is_over() && !node.is_starting();
        let asked: BTreeSet<usize> = (0..self.nodes.len()).filter(|at| there(&self.nodes[*at])).collect();
        asked.iter().for_each(|at| self.nodes[*at].send(&ToNode::SampleRanks { serial }));
        asked
    }

    /// Returns the other hosts' names, in their order.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.share.host.clone()).collect()
    }

    /// Stops all ranks of other hosts, and waits until the nodes have been told, for a second at most.
    pub(crate) fn stop(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.pause(true));
        let until = Instant::now() + LAST_WAIT;
        loop {
            // An error comes back at the next flush.
            self.nodes.iter_mut().for_each(|node| drop(node.flush()));
            let controls = self.nodes.iter().filter_map(Node::control).filter(|control| control.queued() > 0);
            let unsent: Vec<_> = controls.map(|control| (control.fd(), PollFlags::OUT)).collect();
            if unsent.is_empty() || Instant::now() >= until {
                return;
            }
            let _ = ready(unsent.into_iter(), Some(until));
        }
    }

    /// Continues the ranks of other hosts after a pause of this length.
    pub(crate) fn go_on(&mut self, pause: Duration) {
        self.nodes.iter_mut().for_each(|node| node.pause(false));
        self.start_by += pause;
    }

    /// Returns the index of the node that has this rank.
    pub(crate) fn index_of(&self, rank: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.share.ranks().contains(&rank))
    }

    fn node_of(&mut self, rank: u32) -> Option<&mut Node> {
        let index = self.index_of(rank)?;
        self.nodes.get_mut(index)
    }

    fn read_input(&mut self, scratch: &mut [u8]) {
        let Some(input) = &self.input else { return };
        // A read that returns no bytes, or an error, ends the input.
        let length = rustix::io::read(input, &mut *scratch).unwrap_or(0);
        if length == 0 {
            self.input = None;
        }
        self.input_under_way += length;
        if let Some(node) = self.node_of(0) {
            node.send(&ToNode::Input { bytes: scratch[..length].to_vec() });
        }
    }

    fn lose(
        &mut self,
        index: usize,
        error: &ControlError,
        events: &mut Vec<RankEvent>,
    ) -> Result<(), LaunchError> {
        let node = &mut self.nodes[index];
        if let Some(refusal) = node.refusal() {
            return Err(refusal);
        }
        node.agent.listen();
        let host = node.share.host.clone();
        let why = match error {
            ControlError::Silent(_) => error.to_string(),
            _ => format!("{error}{}", node.agent.last_words()),
        };
        if node.is_starting() {
            return Err(LaunchError::Host { host, step: Step::Start, why });
        }
        events.push(RankEvent::Lost { host, ranks: node.give_up(), why });
        Ok(())
    }
}

impl Drop for Remotes {
    /// The nodes end their ranks when their connections end, and the agents end with the nodes.
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(|node| drop(node.give_up()));
        wait_for_all(self.nodes.iter_mut().map(|node| &mut node.agent), LAST_WAIT);
    }
}
