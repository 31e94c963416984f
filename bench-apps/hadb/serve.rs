//! A server's process: its state machine over a link.

use crate::cpu;
use crate::failure::{HadbError, Result};
use crate::link::{Blob, Event, Link};
use crate::message::{Body, Control, Outgoing, Usage};
use crate::server::Server;
use crate::verdict::Dump;
use rustix::process::{Signal, getpid, kill_process};
use std::thread;
use std::time::Duration;

/// Number of servers, which are ranks 0 and 1.
pub const SERVERS: usize = 2;
/// Longest silence of a client; then the run ends.
const PATIENCE: Duration = Duration::from_secs(300);

/// Serves until the run is over.
pub fn serve(link: &mut Link, rank: usize) -> Result {
    let mut server = Server::new(rank as u8);
    loop {
        let answers = match link.receive(PATIENCE)? {
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
            Event::Lost(dead) if dead < SERVERS => server.take_over(),
            Event::Lost(dead) => return Err(HadbError::Lost(dead)),
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

/// Keeps a BLOB for the tables, where it must outlive its sender. A fetched BLOB only passes through.
fn keep(link: &Link, body: &Body, blob: Blob) -> Result<Blob> {
    if matches!(body, Body::Fetched { .. }) { Ok(blob) } else { link.keep(blob) }
}

enum Answer {
    Nothing,
    Say(Control),
    Quit,
}

fn answer(link: &Link, server: &Server<Blob>, control: Control) -> Result<Answer> {
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
            let dump = postcard::to_allocvec(&Dump::of(server.tables()));
            Answer::Say(Control::Shown(dump.map_err(|_| HadbError::BadMessage { from: 0 })?))
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
