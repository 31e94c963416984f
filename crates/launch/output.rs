//! The ranks' output, by whole lines; with tags each begins with its rank: `[2] text`.
//!
//! One thread reads all pipes of the ranks of this host and has their lines written whole ([`lines`]). If
//! deckrun's own reader is slow, the ranks are slowed, as if they wrote to it directly. If the reader goes
//! away, the pipes are closed and the ranks get their SIGPIPE. A node reads [`OutputPipe`]s too, and sends
//! their data on.

pub(crate) mod form;
pub(crate) mod lines;

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
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

/// How long a message about a rank's end waits for the rank's own last output, which a slow reader may delay.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Maximum number of reads of an ended rank's last output: both of its pipes, and their ends.
const LAST_READS: usize = 4;

/// The thread that reads. It ends when it has read everything; until then it has a copy of the printers.
pub(crate) struct Output {
    shared: Arc<OutputShared>,
    printers: Printers,
}

/// Events for the reading thread, from other threads.
struct OutputShared {
    wakeup: EventFd,
    events: Mutex<OutputEvents>,
}

#[derive(Default)]
struct OutputEvents {
    /// Bytes written to standard output and to standard error.
    written: [usize; 2],
    /// Standard output or error has no reader any more.
    unread: [bool; 2],
    /// The ranks have ended.
    last_call: bool,
    /// Messages that are printed behind the output of these ranks.
    pending: Vec<PendingMessage>,
    /// The reading thread has ended: nobody takes further events.
    over: bool,
}

struct PendingMessage {
    ranks: Vec<u32>,
    what: String,
    until: Instant,
}

impl Output {
    pub(crate) fn start(sources: Vec<OutputPipe>, printers: Printers) -> io::Result<Output> {
        let shared = Arc::new(OutputShared { wakeup: EventFd::new()?, events: Mutex::default() });
        if sources.is_empty() {
            shared.update(|events| events.over = true);
        } else {
            let (own, panicked) = (Arc::clone(&shared), Arc::clone(&shared));
            let (gather, to, to_at_panic) = (Gather::new(sources), printers.clone(), printers.clone());
            let forwarding = move || {
                forward(gather, &own, &to);
                own.leave(&to);
            };
            // After a panic the pipes are closed, as at the end.
            spawn("output", forwarding, move |_| panicked.leave(&to_at_panic))?;
        }
        Ok(Output { shared, printers })
    }

    /// Writes a line for the user to standard error, without waiting. It comes behind the earlier output of
    /// these ranks, which have ended.
    pub(crate) fn message_behind(&self, ranks: &[u32], what: String) {
        let until = Instant::now() + LAST_WORDS;
        self.shared.update(|events| match events.over {
            true => self.printers.message_behind(Stream::Here, &what),
            false => events.pending.push(PendingMessage { ranks: ranks.to_vec(), what, until }),
        });
    }

    /// Makes the thread read what lies in the pipes, and end. A process that still holds a writing end is not
    /// waited for.
    pub(crate) fn last_call(&self) {
        self.shared.update(|events| events.last_call = true);
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
        let OutputEvents { last_call, over, .. } = *events;
        let pending = std::mem::take(&mut events.pending);
        std::mem::replace(&mut events, OutputEvents { last_call, over, pending, ..OutputEvents::default() })
    }

    /// Takes the messages that no longer wait, and returns the earliest time limit of the others.
    fn take_due(
        &self,
        mut waits: impl FnMut(&PendingMessage) -> bool,
    ) -> (Vec<PendingMessage>, Option<Instant>) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let due = events.pending.extract_if(.., |pending| !waits(pending)).collect();
        (due, events.pending.iter().map(|pending| pending.until).min())
    }

    /// Notes that the thread has ended, for any reason. Messages that still wait are printed.
    fn leave(&self, printers: &Printers) {
        self.update(|events| {
            events.over = true;
            let left = events.pending.drain(..);
            left.for_each(|pending| printers.message_behind(Stream::Here, &pending.what));
        });
    }

    /// Tells whether the thread may end. If so, no further event reaches it.
    fn end(&self) -> bool {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.over = events.pending.is_empty();
        events.over
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
        let now = Instant::now();
        let mut passed = gather.overdue(now);
        if events.last_call {
            passed.extend(gather.close_silent(now));
        }
        passed.into_iter().for_each(|(sink, text)| print(printers, shared, sink, text));
        let waits = |pending: &PendingMessage| now < pending.until && gather.has_unread_of(&pending.ranks);
        let (due_messages, next_limit) = shared.take_due(waits);
        for PendingMessage { ranks, what, .. } in due_messages {
            for rank in ranks {
                // The time limit may have passed before this thread ran: there may still be something to read.
                let last = gather.read_last_of(rank, &mut scratch, LAST_READS, now);
                last.into_iter().for_each(|(sink, text)| print(printers, shared, sink, text));
            }
            printers.message_behind(Stream::Here, &what);
        }
        gather.tidy();
        if gather.is_empty() && shared.end() {
            return;
        }
        let open: Vec<_> = gather.open(now).collect();
        let fds = open.iter().map(|(_, fd)| *fd).chain([shared.wakeup.as_fd()]).map(|fd| (fd, PollFlags::IN));
        let due = gather.due(now).into_iter().chain(next_limit).min();
        let Ok(are_ready) = ready(fds, due) else { return };
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
