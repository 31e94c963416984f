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

/// Longest silence, beyond the time of a mix; then the run ends.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest time in which a spare confirms no piece of a copy; then the run ends.
const COPY_PATIENCE: Duration = Duration::from_secs(60);

/// Longest time without a message, where each mix takes `time`: a spare, or a server of whose rows nobody asks, hears of a mix
/// only when it begins and when it ends.
fn patience(time: Duration) -> Duration {
    time + PATIENCE
}

/// Serves until the run is over, as a server or as a spare. Each mix takes `time`.
pub fn serve(link: &mut Link, rank: usize, servers: Servers, time: Duration) -> Result {
    let mut server = Node::new(rank, servers, Limits::USUAL);
    let mut copy = CopyWatch::default();
    loop {
        let limit = copy.limit(server.copy_progress(), Instant::now())?;
        let answers = match link.receive(limit.unwrap_or(patience(time)))? {
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
            Event::Idle if limit.is_some() => Vec::new(),
            Event::Idle => {
                return Err(HadbError::Overdue {
                    what: "anything from the clients".to_owned(),
                    after: patience(time),
                });
            }
        };
        answers.into_iter().try_for_each(|message| link.send(message))?;
        server.begin_copy().into_iter().try_for_each(|message| link.send(message))?;
    }
}

/// Time of the last progress of a copy to a spare.
#[derive(Default)]
struct CopyWatch {
    last: Option<((usize, u64), Instant)>,
}

impl CopyWatch {
    /// Longest time that the server may wait for the next event because of a copy; `None`: there is none. `progress` has the
    /// spare, and the number of its confirmations.
    fn limit(&mut self, progress: Option<(usize, u64)>, now: Instant) -> Result<Option<Duration>> {
        let Some(progress) = progress else {
            self.last = None;
            return Ok(None);
        };
        let since = self.last.filter(|(last, _)| *last == progress).map_or(now, |(_, since)| since);
        self.last = Some((progress, since));
        let left = (since + COPY_PATIENCE).saturating_duration_since(now);
        if left.is_zero() {
            let what = format!("spare {} to confirm a piece of the copy", progress.0);
            return Err(HadbError::Overdue { what, after: COPY_PATIENCE });
        }
        Ok(Some(left))
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
        assert_eq!(limit(None, 0), Ok(None));
        assert_eq!(limit(Some((4, 0)), 10), Ok(Some(COPY_PATIENCE)));
        assert_eq!(limit(Some((4, 0)), 50), Ok(Some(Duration::from_secs(20))));
        assert_eq!(limit(Some((4, 1)), 69), Ok(Some(COPY_PATIENCE)), "it has confirmed one");
        assert_eq!(limit(Some((5, 1)), 100), Ok(Some(COPY_PATIENCE)), "another spare");
        assert!(limit(Some((5, 1)), 160).is_err_and(|why| why.contains("spare 5")));
        assert_eq!(limit(None, 161), Ok(None));
    }

    /// A spare hears nothing while a mix runs, and a mix may take a day.
    #[test]
    fn a_spare_waits_longer_than_the_longest_mix() {
        for seconds in [1, 301, 86_400] {
            let time = Duration::from_secs(seconds);
            assert!(patience(time) >= time + Duration::from_secs(60), "{seconds}");
        }
    }
}
