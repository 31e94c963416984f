//! The thread that works while nobody looks.
//!
//! Callers and links whose program has left are its own. A completion queue's sockets are its business only while the
//! queue's owner neither polls nor sleeps beside them. It cannot ask the kernel to be told only then; so it is told of the
//! first arrival, and then naps, a millisecond at a time, as long as the owner looks by itself. A process in which nothing
//! comes costs no more than a look every two seconds, at hosts that may have died.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use udeck_sys::thread;
use udeck_wired::admission::Door;
use udeck_wired::poll::{EventFlags, Found};
use udeck_wired::station::Sleep;

use crate::core::{Core, Token};
use crate::incoming::IncomingRequest;
use crate::station::{Served, Station, serve_link};

/// How long who looks by itself is left alone.
const NAP: Duration = Duration::from_millis(1);
/// Looks at one station's sockets before others have their turn.
const ROUNDS: usize = 16;
/// How often links are checked for what no event tells.
const CHECK: Duration = Duration::from_secs(2);
/// The same when the NIC is closed and the thread shall end.
const LAST_CHECK: Duration = Duration::from_millis(50);
/// How long a closed NIC's links may take to end.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

struct Helper {
    core: Arc<Core>,
    door: Option<Door>,
    /// Stations on whose sockets something came, and that are not watched until they are served.
    due: Vec<Due>,
    next_check: Instant,
    found: Found,
    station_found: Found,
}

struct Due {
    station: Weak<Station>,
    /// Its owner's looks when it was last seen.
    looks: u64,
    /// Its owner was asleep beside its sockets then.
    parked: bool,
}

/// Starts the thread, `tcp-PORT`. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's.
pub fn start(core: Arc<Core>, door: Door) -> io::Result<()> {
    core.control.add(&door, Token::Door.encode(), EventFlags::IN)?;
    let name = format!("tcp-{}", door.address().port());
    let next_check = Instant::now() + CHECK;
    let (failing, its_name) = (core.clone(), name.clone());
    let mut helper = Helper {
        core,
        door: Some(door),
        due: Vec::new(),
        next_check,
        found: Found::default(),
        station_found: Found::default(),
    };
    thread::spawn(name, move || helper.run(), move |why| failing.fail(&its_name, why)).map(drop)
}

impl Helper {
    fn run(&mut self) {
        while !self.core.is_closing() || self.core.has_links() {
            if self.core.is_closing() {
                self.door = None;
            }
            let limit = self.limit();
            self.core.control.look(&mut self.found, limit);
            let tokens: Vec<u64> = self.found.tokens().collect();
            tokens.into_iter().map(Token::decode).for_each(|token| self.on(token));
            self.serve_due();
            self.check();
        }
    }

    /// How long it may sleep.
    fn limit(&mut self) -> Duration {
        let now = Instant::now();
        let door = self.door.as_mut().and_then(|door| door.tick(now));
        let next = door.into_iter().chain([self.next_check]).min().expect("not empty");
        let limit = next.saturating_duration_since(now);
        if self.due.is_empty() { limit } else { limit.min(NAP) }
    }

    fn on(&mut self, token: Token) {
        match token {
            Token::Bell => self.core.hush(),
            Token::Door => {
                if let Some(door) = &mut self.door {
                    door.serve(&mut |pending| IncomingRequest::deliver(&self.core, pending));
                }
            }
            Token::Station(number) => {
                if let Some(station) = self.core.stations.get(number) {
                    let (looks, station) = (station.quarters.looks_when_asked(), Arc::downgrade(&station));
                    self.due.push(Due { station, looks, parked: false });
                }
            }
            Token::Link(number) => {
                if let Some(link) = self.core.link(number) {
                    serve_link(&link);
                }
            }
        }
    }

    /// Serves the stations whose owners do not look, and has them watched again.
    fn serve_due(&mut self) {
        let found = &mut self.station_found;
        self.due.retain_mut(|due| {
            let Some(station) = due.station.upgrade() else { return false };
            let looks = station.looks();
            let looked = std::mem::replace(&mut due.looks, looks) != looks;
            match station.sleeps() {
                // It has woken up beside what came, or is about to: a nap is time enough for that.
                Sleep::Parked if !std::mem::replace(&mut due.parked, true) => return true,
                Sleep::Awake if looked => return true,
                Sleep::Parked => {}
                Sleep::Awake | Sleep::Armed => {
                    let mut rounds = (0..ROUNDS).map(|_| station.quarters.serve(found, Duration::ZERO));
                    // Who is at work there may be waiting for this thread's processor: asked at once, it would be told
                    // of the same socket at once.
                    if rounds.find(|served| *served != Served::Some) == Some(Served::NotAlone) {
                        return true;
                    }
                }
            }
            station.quarters.ask_helper(looks);
            false
        });
    }

    fn check(&mut self) {
        let now = Instant::now();
        if now < self.next_check {
            return;
        }
        let closing = self.core.is_closing();
        let patience = if closing { LAST_PATIENCE } else { self.core.admission.detect };
        self.next_check = now + if closing { LAST_CHECK } else { CHECK.min(self.core.admission.detect / 4) };
        for link in self.core.links() {
            link.try_with(|connection, driver| driver.check(connection, now, patience));
        }
    }
}
