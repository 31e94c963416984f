//! The ranks' output, each line led by its rank: `[2] text`.
//!
//! One thread reads all the pipes of the ranks of this host and has their lines written whole ([`lines`]). When our own
//! reader is slow the ranks are slowed, as they would be without us between; when it goes away the pipes are closed and the
//! ranks get their SIGPIPE. A node reads [`Source`]s too, and sends on what it read.

mod lines;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use udeck_sys::thread::spawn;

use crate::{
    link::wire::Sink,
    print::{Printers, Stream},
    wait::ready,
};

#[cfg(test)]
pub(crate) use self::lines::HOLD;
pub(crate) use self::lines::{Gather, MAX_LINE, Source, Turn, continuation};

/// The thread that tags. It ends when it has read everything; until then it has a copy of the printers.
pub(crate) struct Output(Arc<Desk>);

/// What that thread is told by others.
struct Desk {
    bell: OwnedFd,
    news: Mutex<News>,
}

#[derive(Default)]
struct News {
    /// Of standard output and error, in bytes.
    written: [usize; 2],
    /// Nobody reads it any more.
    unread: [bool; 2],
    /// The ranks have ended.
    last_call: bool,
}

impl Output {
    pub(crate) fn start(sources: Vec<Source>, printers: Printers) -> io::Result<Output> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let desk = Arc::new(Desk { bell, news: Mutex::default() });
        if !sources.is_empty() {
            let own = Arc::clone(&desk);
            let gather = Gather::new(sources);
            let forwarding = move || forward(gather, &own, &printers);
            // After a panic the pipes are closed, as at the end.
            spawn("deckrun-output", forwarding, |_| {})?;
        }
        Ok(Output(desk))
    }

    /// Has it read what lies in the pipes, and end; whoever may still hold their other ends is not waited for.
    pub(crate) fn last_call(&self) {
        self.0.tell(|news| news.last_call = true);
    }
}

impl Desk {
    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn take(&self) -> News {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let last_call = news.last_call;
        std::mem::replace(&mut news, News { last_call, ..News::default() })
    }
}

fn forward(mut gather: Gather, desk: &Arc<Desk>, printers: &Printers) {
    let mut scratch = vec![0; MAX_LINE];
    loop {
        let news = desk.take();
        for sink in [Sink::Stdout, Sink::Stderr] {
            gather.written(sink, news.written[sink as usize]);
            if news.unread[sink as usize] {
                gather.unread(sink);
            }
        }
        gather.tidy();
        let now = Instant::now();
        if news.last_call {
            for (sink, text) in gather.close_silent(now) {
                print(printers, desk, sink, text);
            }
        }
        if gather.is_empty() {
            return;
        }
        let open: Vec<_> = gather.open(now).collect();
        let fds = open.iter().map(|(_, fd)| *fd).chain([desk.bell.as_fd()]).map(|fd| (fd, PollFlags::IN));
        let Ok(are_ready) = ready(fds, gather.due(now)) else { return };
        let found = open.iter().zip(are_ready).filter(|(_, is_ready)| *is_ready);
        let found: Vec<usize> = found.map(|((index, _), _)| *index).collect();
        for index in found {
            let (sink, text) = gather.read(index, &mut scratch, Instant::now());
            print(printers, desk, sink, text);
        }
    }
}

fn print(printers: &Printers, desk: &Arc<Desk>, sink: Sink, text: Vec<u8>) {
    if text.is_empty() {
        return;
    }
    let (desk, length) = (Arc::clone(desk), text.len());
    let done = move |is_written| {
        desk.tell(|news| match is_written {
            true => news.written[sink as usize] += length,
            false => news.unread[sink as usize] = true,
        });
    };
    printers.print(Stream::Here, sink, text, Box::new(done));
}
