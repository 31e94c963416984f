//! A server's process: its state machine over a link.

use crate::copy::Limits;
use crate::cpu;
use crate::failure::{HadbError, Result};
use crate::link::{Blob, Event, Link};
use crate::message::{Body, Control, Outgoing, Usage};
use crate::node::Node;
use crate::ranks::Servers;
use crate::verdict::Dump;
use rustix::process::{Signal, getpid, kill_process};
use std::thread;
use std::time::{Duration, Instant};

/// Longest silence of a client; then the run ends.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest time in which a spare confirms no piece of a copy; then the run ends.
const COPY_PATIENCE: Duration = Duration::from_secs(60);

/// Serves until the run is over, as a server or as a spare.
pub fn serve(link: &mut Link, rank: usize, servers: Servers) -> Result {
    let mut server = Node::new(rank, servers, Limits::USUAL);
    let mut copy = CopyWatch::default();
    loop {
        let limit = copy.limit(server.copy_progress(), Instant::now())?;
        let answers = match link.receive(limit)? {
            Event::Message { body: Body::Control(control), from, .. } => {
                match answer(link, &server, control)? {
                    Answer::Nothing => Vec::new(),
                    Answer::Say(control) => {
                        vec![Outgoing { to: from, body: Body::Control(control), blob: None }]
                    }
                    Answer::Quit => return Ok(()),
                }
            }
            Event::Message { from, body, blob } => {
                let blob = blob.map(|blob| keep(link, &body, blob)).transpose()?;
                server.handle(from, body, blob)
            }
            Event::Lost(dead) if servers.has(dead) => server.lost(dead),
            Event::Lost(dead) => return Err(HadbError::Lost(dead)),
            Event::Idle if limit < PATIENCE => Vec::new(),
            Event::Idle => {
                return Err(HadbError::Overdue {
                    what: "anything from the clients".to_owned(),
                    after: PATIENCE,
                });
            }
        };
        answers.into_iter().try_for_each(|message| link.send(message))?;
    }
}

/// Time of the last progress of a copy to a spare.
#[derive(Default)]
struct CopyWatch {
    last: Option<((usize, u64), Instant)>,
}

impl CopyWatch {
    /// Longest time that the server may wait for the next event. `progress` has the spare, and the number of its confirmations.
    fn limit(&mut self, progress: Option<(usize, u64)>, now: Instant) -> Result<Duration> {
        let Some(progress) = progress else {
            self.last = None;
            return Ok(PATIENCE);
        };
        let since = self.last.filter(|(last, _)| *last == progress).map_or(now, |(_, since)| since);
        self.last = Some((progress, since));
        let left = (since + COPY_PATIENCE).saturating_duration_since(now);
        if left.is_zero() {
            let what = format!("spare {} to confirm a piece of the copy", progress.0);
            return Err(HadbError::Overdue { what, after: COPY_PATIENCE });
        }
        Ok(left)
    }
}

/// Keeps a BLOB for the tables, where it must outlive its sender. A fetched BLOB only passes through.
fn keep(link: &Link, body: &Body, blob: Blob) -> Result<Blob> {
    if matches!(body, Body::Fetched { .. }) { Ok(blob) } else { link.keep(blob) }
}

enum Answer {
    Nothing,
    Say(Control),
    Quit,
}

fn answer(link: &Link, server: &Node<Blob>, control: Control) -> Result<Answer> {
    Ok(match control {
        Control::Die { after } => {
            thread::Builder::new()
                .name("hadb-killer".to_owned())
                .spawn(move || {
                    thread::sleep(Duration::from_millis(after));
                    // The signal ends the process whatever the main thread is doing.
                    kill_process(getpid(), Signal::KILL)
                })
                .map_err(HadbError::system("starting the thread that kills this server"))?;
            Answer::Nothing
        }
        Control::Ask => Answer::Say(Control::Usage(usage(link))),
        Control::Show => {
            let dump = server.tables().map(|tables| postcard::to_allocvec(&Dump::of(tables)));
            Answer::Say(Control::Shown(dump.transpose().map_err(|_| HadbError::BadMessage { from: 0 })?))
        }
        Control::Quit => Answer::Quit,
        _ => Answer::Nothing,
    })
}

/// Usage of this process up to now.
pub fn usage(link: &Link) -> Usage {
    let (user, system) = cpu::used();
    Usage { user, system, ..link.usage() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_progress_ends_the_run_and_names_the_spare() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut watch = CopyWatch::default();
        let mut limit =
            |progress, seconds| watch.limit(progress, after(seconds)).map_err(|error| error.to_string());
        assert_eq!(limit(None, 0), Ok(PATIENCE));
        assert_eq!(limit(Some((4, 0)), 10), Ok(COPY_PATIENCE));
        assert_eq!(limit(Some((4, 0)), 50), Ok(Duration::from_secs(20)));
        assert_eq!(limit(Some((4, 1)), 69), Ok(COPY_PATIENCE), "it has confirmed one");
        assert_eq!(limit(Some((5, 1)), 100), Ok(COPY_PATIENCE), "another spare");
        assert!(limit(Some((5, 1)), 160).is_err_and(|why| why.contains("spare 5")));
        assert_eq!(limit(None, 161), Ok(PATIENCE));
    }
}
