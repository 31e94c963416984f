//! One node, as seen by the root.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    net::TcpStream,
    os::{fd::OwnedFd, unix::ffi::OsStringExt},
    path::Path,
    time::Duration,
};

use udeck_auth::SecureStream;
use udeck_boot::serve::{OUT_BOUND, Reporter, WINDOW as BOOT_WINDOW};

use super::{
    RankEvent,
    agent::Agent,
    node_command::{NodeCommand, NodeSender},
};
use crate::{
    End, LaunchError,
    control::{
        WINDOW,
        framed_stream::{ControlError, FramedStream},
        wire::{JobSpec, MAX_PIECE, NotStarted, Sink, ToNode, ToRoot, WireEnd},
    },
    hosts::Share,
    print::{Printers, Stream},
    words::printable,
};

/// Upper bound of unsent bytes for a node of `ranks` ranks, before the node counts as one that has stopped
/// reading. The ranks' own requests to the name service cannot reach it, whether they read or not: each rank
/// has a window, and its frames.
fn bound(ranks: u32) -> usize {
    OUT_BOUND + 4 * BOOT_WINDOW * ranks as usize
}

pub(crate) struct Node {
    pub(crate) share: Share,
    pub(crate) agent: Agent,
    /// The connection; `None` when no more messages are expected.
    control: Option<FramedStream>,
    running: BTreeSet<u32>,
    starting: bool,
    /// Bytes of output that were received and are not written: of standard output and of standard error.
    unwritten: [usize; 2],
    /// The program and the folder, for the error of a host that could not start it.
    program: OsString,
    directory: OsString,
    refusal: Option<NotStarted>,
}

/// Receivers of a node's messages.
pub(crate) struct EventSinks<'a> {
    pub(crate) index: usize,
    pub(crate) reporter: &'a Reporter,
    pub(crate) printers: &'a Printers,
    pub(crate) node_sender: &'a NodeSender,
    /// Bytes of input in flight.
    pub(crate) taken: &'a mut usize,
    pub(crate) input: &'a mut Option<OwnedFd>,
    pub(crate) events: &'a mut Vec<RankEvent>,
}

impl EventSinks<'_> {
    /// Prints a piece of output; the node is told once it is written.
    fn print(&self, sink: Sink, bytes: Vec<u8>) {
        let (node, length, node_sender) = (self.index, bytes.len(), self.node_sender.clone());
        let done = move |is_written| {
            node_sender.post(match is_written {
                true => NodeCommand::Written { node, sink, bytes: length },
                false => NodeCommand::Unread { sink },
            });
        };
        self.printers.print(Stream::Node(node), sink, bytes, Box::new(done));
    }
}

impl Node {
    /// Makes the node of a connection that has proved itself and whose node has its spec, and tells the node to
    /// start it.
    pub(crate) fn new(
        share: Share,
        agent: Agent,
        stream: TcpStream,
        secure: SecureStream,
        spec: &JobSpec,
        detect: Duration,
    ) -> Result<Node, LaunchError> {
        let control = FramedStream::new(stream, secure, detect)
            .map_err(LaunchError::system("setting up a node's connection"))?;
        let running = share.ranks().collect();
        let mut node = Node {
            share,
            agent,
            control: Some(control),
            running,
            starting: true,
            unwritten: [0; 2],
            program: OsString::from_vec(spec.program.clone()),
            directory: OsString::from_vec(spec.directory.clone()),
            refusal: None,
        };
        node.send(&ToNode::Start);
        Ok(node)
    }

    pub(crate) fn control(&self) -> Option<&FramedStream> {
        self.control.as_ref()
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = u32> + '_ {
        self.running.iter().copied()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.control.is_none()
    }

    pub(crate) fn is_starting(&self) -> bool {
        self.starting
    }

    /// Returns the error of a node that could not start its ranks.
    pub(crate) fn refusal(&mut self) -> Option<LaunchError> {
        let source = Box::new(in_words(self.refusal.take()?, &self.program, Path::new(&self.directory)));
        Some(LaunchError::OnHost { host: self.share.host.clone(), source })
    }

    /// Closes the connection. Returns the ranks that were still running.
    pub(crate) fn give_up(&mut self) -> Vec<u32> {
        self.control = None;
        std::mem::take(&mut self.running).into_iter().collect()
    }

    pub(crate) fn send(&mut self, message: &ToNode) {
        if let Some(control) = &mut self.control {
            // All messages are shorter than a frame may be.
            let _ = control.send(message);
        }
    }

    /// Stops or continues the node's ranks.
    pub(crate) fn pause(&mut self, pause: bool) {
        self.send(&ToNode::Signal { number: if pause { libc::SIGSTOP } else { libc::SIGCONT } });
        if let Some(control) = &mut self.control {
            // The end of a connection is noticed elsewhere.
            let _ = if pause { control.detect_death_only() } else { control.detect_again() };
        }
    }

    pub(crate) fn send_in_pieces(&mut self, bytes: &[u8], message: impl Fn(Vec<u8>) -> ToNode) {
        bytes.chunks(MAX_PIECE).for_each(|piece| self.send(&message(piece.to_vec())));
    }

    /// Notes that `bytes` of the node's output have been written, and tells the node: the same number more may
    /// come.
    pub(crate) fn written(&mut self, sink: Sink, bytes: usize) {
        let unwritten = &mut self.unwritten[sink as usize];
        *unwritten = unwritten.saturating_sub(bytes);
        self.send(&ToNode::Written { sink, bytes: bytes as u32 });
    }

    pub(crate) fn flush(&mut self) -> Result<(), ControlError> {
        match &mut self.control {
            Some(control) if control.queued() > bound(self.share.count) => Err(ControlError::NotReading),
            Some(control) => control.flush(),
            None => Ok(()),
        }
    }

    /// Reads once and handles the messages that came.
    pub(crate) fn receive(
        &mut self,
        scratch: &mut [u8],
        sinks: &mut EventSinks<'_>,
    ) -> Result<(), ControlError> {
        let Some(control) = &mut self.control else { return Ok(()) };
        control.receive(scratch)?;
        while let Some(control) = &mut self.control {
            let Some(message) = control.next()? else { break };
            self.take(message, sinks)?;
        }
        Ok(())
    }

    fn take(&mut self, message: ToRoot, sinks: &mut EventSinks<'_>) -> Result<(), ControlError> {
        match message {
            ToRoot::Started => self.starting = false,
            ToRoot::NotStarted(why) => {
                self.refusal = Some(why);
                return Err(ControlError::ProtocolBroken("a refusal to start"));
            }
            ToRoot::Boot { rank, bytes } => {
                self.check_own(rank)?;
                sinks.reporter.relayed(rank, bytes);
            }
            ToRoot::BootEnd { rank, why } => {
                self.check_own(rank)?;
                match why {
                    Some(why) => sinks.reporter.report_ended(rank, &printable(&why)),
                    None => sinks.reporter.hung_up(rank),
                }
            }
            ToRoot::BootTaken { rank, bytes } => {
                self.check_own(rank)?;
                sinks.reporter.taken(rank, bytes as usize);
            }
            ToRoot::Output { sink, bytes } => {
                let unwritten = &mut self.unwritten[sink as usize];
                if *unwritten > WINDOW + MAX_PIECE {
                    return Err(ControlError::ProtocolBroken("more output than its window"));
                }
                *unwritten += bytes.len();
                sinks.print(sink, bytes);
            }
            ToRoot::Taken { bytes } => *sinks.taken = sinks.taken.saturating_sub(bytes as usize),
            ToRoot::InputEnd => *sinks.input = None,
            ToRoot::Ended { rank, how } => {
                if !self.running.remove(&rank) {
                    return Err(ControlError::ProtocolBroken("the end of a rank that it does not run"));
                }
                let end = match how {
                    WireEnd::Exited(code) => End::Exited(code & 0xFF),
                    WireEnd::Killed(signal) => End::Killed(signal & 0x7F),
                };
                sinks.events.push(RankEvent::Ended(rank, end));
            }
            ToRoot::RankStates { serial, samples, last } => {
                samples.iter().try_for_each(|sample| self.check_own(sample.rank))?;
                sinks.events.push(RankEvent::RankStates { host: sinks.index, serial, samples, last });
            }
            ToRoot::Bye if self.running.is_empty() => self.control = None,
            ToRoot::Bye => return Err(ControlError::ProtocolBroken("goodbye while ranks run")),
        }
        Ok(())
    }

    fn check_own(&self, rank: u32) -> Result<(), ControlError> {
        if self.share.ranks().contains(&rank) {
            Ok(())
        } else {
            Err(ControlError::ProtocolBroken("words of a rank not its own"))
        }
    }
}

/// Returns the node's error as if it had happened here.
pub(crate) fn in_words(why: NotStarted, program: &OsString, directory: &Path) -> LaunchError {
    let (program, os) = (program.clone(), io::Error::from_raw_os_error);
    match why {
        NotStarted::NotFound => LaunchError::NotFound { program },
        NotStarted::NotExecutable { errno } => LaunchError::NotExecutable { program, source: os(errno) },
        NotStarted::Directory { errno } => {
            LaunchError::NoDirectory { directory: directory.into(), source: os(errno) }
        }
        NotStarted::Spawn { rank, errno } => LaunchError::Spawn { rank, program, source: os(errno) },
        NotStarted::TooFewDescriptors { ranks, needed, limit } => {
            LaunchError::TooFewDescriptors { ranks, needed, limit }
        }
        NotStarted::Other { what } => LaunchError::System {
            what: "starting the ranks there",
            source: io::Error::other(printable(&what)),
        },
    }
}
