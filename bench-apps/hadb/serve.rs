//! A server's process: its state machine over a link.

use crate::cpu;
use crate::failure::{Failure, Result};
use crate::link::{Blob, Event, Link};
use crate::message::{Body, Control, Outgoing, Usage};
use crate::server::Server;
use crate::verdict::Dump;
use rustix::process::{Signal, getpid, kill_process};
use std::thread;
use std::time::Duration;

/// The two servers are ranks 0 and 1.
pub const SERVERS: usize = 2;
/// Until a client that says nothing ends the run.
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
            Event::Lost(dead) => return Err(Failure::Lost(dead)),
            Event::Idle => {
                return Err(Failure::Overdue {
                    what: "anything from the clients".to_owned(),
                    after: PATIENCE,
                });
            }
        };
        answers.into_iter().try_for_each(|message| link.send(message))?;
    }
}

/// What will be in the tables has to outlive its sender. What was fetched only passes through.
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
                    // Whatever the other thread is doing.
                    kill_process(getpid(), Signal::KILL)
                })
                .map_err(Failure::system("starting the thread that kills this server"))?;
            Answer::Nothing
        }
        Control::Ask => Answer::Say(Control::Usage(usage(link))),
        Control::Show => {
            let dump = postcard::to_allocvec(&Dump::of(server.tables()));
            Answer::Say(Control::Shown(dump.map_err(|_| Failure::BadMessage { from: 0 })?))
        }
        Control::Quit => Answer::Quit,
        _ => Answer::Nothing,
    })
}

/// What this process has used so far.
pub fn usage(link: &Link) -> Usage {
    let (user, system) = cpu::used();
    Usage { user, system, ..link.usage() }
}
