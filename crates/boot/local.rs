//! A job inside one process: for a program started without a launcher (a world of one), and for tests.

use std::{io, os::unix::net::UnixStream, thread::JoinHandle};

use udeck_sys::{stream_pair, thread};

use crate::{
    Host, MAX_RANKS,
    serve::{Reporter, Service},
    server::Config,
};

/// A name service on a thread of this process. The thread ends when all its ranks' streams have ended; dropping
/// the job does not wait for it.
#[derive(Debug)]
pub struct Job {
    thread: JoinHandle<Result<io::Result<()>, String>>,
    reporter: Reporter,
}

impl Job {
    /// Makes a job of `ranks` ranks, and the streams for their [`Client`](crate::Client)s: rank `r` takes the
    /// `r`-th.
    ///
    /// # Errors
    /// When `ranks` is 0 or beyond [`MAX_RANKS`], or the system has no more descriptors (two per rank) or threads.
    pub fn new(ranks: u32) -> io::Result<(Job, Vec<UnixStream>)> {
        if ranks == 0 || ranks > MAX_RANKS {
            let why = format!("a job of {ranks} ranks: 1 to {MAX_RANKS} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Self::serve(Config::new(ranks)?)
    }

    /// Does as [`Job::new`], and tells the ranks that they run on several hosts, with the given number of ranks
    /// on each: for tests.
    ///
    /// # Errors
    /// Those of [`Job::new`].
    pub fn on_hosts(ranks: &[u32]) -> io::Result<(Job, Vec<UnixStream>)> {
        let host = |(nth, ranks): (usize, &u32)| Host { name: format!("host{nth}"), ranks: *ranks };
        let hosts = ranks.iter().enumerate().map(host).collect();
        Self::serve(Config::new(ranks.iter().sum())?.on(hosts, None))
    }

    fn serve(config: Config) -> io::Result<(Job, Vec<UnixStream>)> {
        let pairs = (0..config.size()).map(|_| stream_pair()).collect::<io::Result<Vec<_>>>()?;
        let (ours, theirs) = pairs.into_iter().unzip();
        let service = Service::new(config, ours)?;
        let reporter = service.reporter();
        // A service that panics is dropped, and its streams with it: the clients see their end.
        let thread = thread::spawn("boot-serve", || service.run(), |_| {})?;
        Ok((Job { thread, reporter }, theirs))
    }

    /// Returns the reporter, which can declare a rank lost.
    pub fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Waits until every rank's stream has ended. Blocks as long as one is open.
    ///
    /// # Errors
    /// Those of [`Service::run`].
    pub fn join(self) -> io::Result<()> {
        let ended = self.thread.join().unwrap_or_else(|_| Err("nobody knows why".into()));
        ended.map_err(|why| io::Error::other(format!("the name service's thread panicked: {why}")))?
    }
}
