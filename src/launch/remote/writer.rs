//! Writes what comes from other hosts to our own output, on a thread of its own: our reader may be slow, and nothing else
//! must wait for it. What lies here is bounded by the nodes' windows.

use std::{
    io,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

use super::mail::{Mail, Mailbox};
use crate::link::wire::Sink;

/// The thread that writes.
pub(crate) struct Writer {
    pieces: Sender<(usize, Sink, Vec<u8>)>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// What has been written, or cannot be, is told to `mailbox`.
    pub(crate) fn start(mailbox: Mailbox) -> io::Result<Writer> {
        let (pieces, queue) = mpsc::channel::<(usize, Sink, Vec<u8>)>();
        let thread = thread::Builder::new().name("deckrun-writer".into()).spawn(move || {
            let mut gone = Vec::new();
            for (node, sink, bytes) in queue {
                write(node, sink, &bytes, &mut gone, &mailbox);
            }
        })?;
        Ok(Writer { pieces, thread })
    }

    /// Writes this piece of a node's, behind those before it.
    pub(crate) fn write(&self, node: usize, sink: Sink, bytes: Vec<u8>) {
        // A writer that panicked has said so.
        let _ = self.pieces.send((node, sink, bytes));
    }

    /// Writes what is left; blocks as long as our own reader does.
    pub(crate) fn finish(self) {
        drop(self.pieces);
        let _ = self.thread.join();
    }
}

fn write(node: usize, sink: Sink, bytes: &[u8], gone: &mut Vec<Sink>, mailbox: &Mailbox) {
    if gone.contains(&sink) {
        return;
    }
    if sink.write(bytes).is_ok() {
        mailbox.post(Mail::Written { node, sink, bytes: bytes.len() });
    } else {
        gone.push(sink);
        mailbox.post(Mail::Unread { sink });
    }
}
