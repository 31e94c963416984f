//! A job inside one process: for a program started without a launcher (a world of one), and for tests.

use std::{
    io,
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
};

use crate::{
    MAX_RANKS,
    serve::{Reporter, Service},
    server::Config,
};

/// A name service on a thread of this process. The thread ends when all its ranks' streams have ended; dropping the job
/// does not wait for that.
#[derive(Debug)]
pub struct Job {
    thread: JoinHandle<io::Result<()>>,
    reporter: Reporter,
}

impl Job {
    /// A job of `ranks` ranks, and the streams for their [`Client`](crate::Client)s: rank `r` takes the `r`-th.
    ///
    /// # Errors
    /// When `ranks` is 0 or beyond [`MAX_RANKS`], or the system has no more descriptors (two per rank) or threads.
    pub fn new(ranks: u32) -> io::Result<(Job, Vec<UnixStream>)> {
        if ranks == 0 || ranks > MAX_RANKS {
            let why = format!("a job of {ranks} ranks: 1 to {MAX_RANKS} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let pairs = (0..ranks).map(|_| UnixStream::pair()).collect::<io::Result<Vec<_>>>()?;
        let (ours, theirs) = pairs.into_iter().unzip();
        let service = Service::new(Config::new(ranks)?, ours)?;
        let reporter = service.reporter();
        let thread = thread::Builder::new().name("deck-boot-serve".into()).spawn(|| service.run())?;
        Ok((Job { thread, reporter }, theirs))
    }

    /// The way to declare a rank lost.
    pub fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Waits until every rank's stream has ended. Blocks as long as one is open.
    ///
    /// # Errors
    /// Those of [`Service::run`].
    pub fn join(self) -> io::Result<()> {
        self.thread.join().map_err(|_| io::Error::other("the name service's thread panicked"))?
    }
}
