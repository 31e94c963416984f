//! Commands from the root's other threads to the nodes. An eventfd wakes the thread that sends them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
};

use udeck_boot::serve::Outlet;
use udeck_sys::EventFd;

use crate::control::wire::Sink;

#[derive(Debug)]
pub(crate) enum NodeCommand {
    /// A piece of the name service's stream to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The name service has dealt with `bytes` from this rank.
    BootConsumed { rank: u32, bytes: usize },
    /// The name service has closed this rank's connection.
    BootEnd { rank: u32 },
    /// `bytes` of a node's output have been written.
    Written { node: usize, sink: Sink, bytes: usize },
    /// The output cannot be written any more.
    Unread { sink: Sink },
}

/// Sender of commands to the nodes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct NodeSender {
    commands: Sender<NodeCommand>,
    wakeup: Arc<EventFd>,
}

/// Receiver of commands to the nodes.
pub(crate) struct NodeReceiver {
    commands: Receiver<NodeCommand>,
    wakeup: Arc<EventFd>,
}

pub(crate) fn channel() -> io::Result<(NodeSender, NodeReceiver)> {
    let wakeup = Arc::new(EventFd::new()?);
    let (sender, receiver) = mpsc::channel();
    Ok((
        NodeSender { commands: sender, wakeup: Arc::clone(&wakeup) },
        NodeReceiver { commands: receiver, wakeup },
    ))
}

impl NodeSender {
    pub(crate) fn post(&self, command: NodeCommand) {
        // If the receiver is gone, so are the nodes.
        let _ = self.commands.send(command);
        self.wakeup.signal();
    }
}

impl NodeReceiver {
    /// Readable when a command has come.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(crate) fn take(&self) -> Vec<NodeCommand> {
        // Reset first: a command that comes in between signals again.
        self.wakeup.reset();
        self.commands.try_iter().collect()
    }
}

impl Outlet for NodeSender {
    fn send(&mut self, rank: u32, bytes: Vec<u8>) {
        self.post(NodeCommand::Boot { rank, bytes });
    }

    fn consumed(&mut self, rank: u32, bytes: usize) {
        self.post(NodeCommand::BootConsumed { rank, bytes });
    }

    fn close(&mut self, rank: u32) {
        self.post(NodeCommand::BootEnd { rank });
    }
}
