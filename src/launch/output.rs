//! The ranks' output, each line led by its rank: `[2] text`.
//!
//! One thread reads all the pipes of the ranks of this host and has their lines written whole ([`lines`]). When our own
//! reader is slow the ranks are slowed, as they would be without us between; when it goes away the pipes are closed and the
//! ranks get their SIGPIPE. A node reads [`OutputPipe`]s too, and sends on what it read.

pub(crate) mod lines;

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use rustix::event::PollFlags;
use udeck_sys::{EventFd, thread::spawn};

use crate::{
    control::wire::Sink,
    print::{Printers, Stream},
    wait::ready,
};

#[cfg(test)]
pub(crate) use self::lines::HOLD;
pub(crate) use self::lines::{Gather, MAX_LINE, OutputPipe};

/// The thread that tags. It ends when it has read everything; until then it has a copy of the printers.
pub(crate) struct Output(Arc<OutputShared>);

/// What that thread is told by others.
struct OutputShared {
    wakeup: EventFd,
    events: Mutex<OutputEvents>,
}

#[derive(Default)]
struct OutputEvents {
    /// Of standard output and error, in bytes.
    written: [usize; 2],
    /// Nobody reads it any more.
    unread: [bool; 2],
    /// The ranks have ended.
    last_call: bool,
}

impl Output {
    pub(crate) fn start(sources: Vec<OutputPipe>, printers: Printers) -> io::Result<Output> {
        let shared = Arc::new(OutputShared { wakeup: EventFd::new()?, events: Mutex::default() });
        if !sources.is_empty() {
            let own = Arc::clone(&shared);
            let gather = Gather::new(sources);
            let forwarding = move || forward(gather, &own, &printers);
            // After a panic the pipes are closed, as at the end.
            spawn("deckrun-output", forwarding, |_| {})?;
        }
        Ok(Output(shared))
    }

    /// Has it read what lies in the pipes, and end; whoever may still hold their other ends is not waited for.
    pub(crate) fn last_call(&self) {
        self.0.update(|events| events.last_call = true);
    }
}

impl OutputShared {
    fn update(&self, change: impl FnOnce(&mut OutputEvents)) {
        change(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner));
        self.wakeup.signal();
    }

    fn take(&self) -> OutputEvents {
        self.wakeup.reset();
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let last_call = events.last_call;
        std::mem::replace(&mut events, OutputEvents { last_call, ..OutputEvents::default() })
    }
}

fn forward(mut gather: Gather, shared: &Arc<OutputShared>, printers: &Printers) {
    let mut scratch = vec![0; MAX_LINE];
    loop {
        let events = shared.take();
        for sink in [Sink::Stdout, Sink::Stderr] {
            gather.written(sink, events.written[sink as usize]);
            if events.unread[sink as usize] {
                gather.unread(sink);
            }
        }
        gather.tidy();
        let now = Instant::now();
        if events.last_call {
            for (sink, text) in gather.close_silent(now) {
                print(printers, shared, sink, text);
            }
        }
        if gather.is_empty() {
            return;
        }
        let open: Vec<_> = gather.open(now).collect();
        let fds = open.iter().map(|(_, fd)| *fd).chain([shared.wakeup.as_fd()]).map(|fd| (fd, PollFlags::IN));
        let Ok(are_ready) = ready(fds, gather.due(now)) else { return };
        let found = open.iter().zip(are_ready).filter(|(_, is_ready)| *is_ready);
        let found: Vec<usize> = found.map(|((index, _), _)| *index).collect();
        for index in found {
            let (sink, text) = gather.read(index, &mut scratch, Instant::now());
            print(printers, shared, sink, text);
        }
    }
}

fn print(printers: &Printers, shared: &Arc<OutputShared>, sink: Sink, text: Vec<u8>) {
    if text.is_empty() {
        return;
    }
    let (shared, length) = (Arc::clone(shared), text.len());
    let done = move |is_written| {
        shared.update(|events| match is_written {
            true => events.written[sink as usize] += length,
            false => events.unread[sink as usize] = true,
        });
    };
    printers.print(Stream::Here, sink, text, Box::new(done));
}
