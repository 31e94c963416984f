//! A connection broke, and the launcher does not say yet whether its rank has finished: no call waits for that beyond its own
//! time, nor guesses.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Event, LONG, SHORT, config};
use udeck::via::{NetAddress, Nic};
use udeck::{Error, Mailbox, NicOptions, Postbox, Protocol, World};
use udeck_boot::{Client, local::Job};
use udeck_faults::{Disguise, Fault, Luck, wrapped};

/// Messages that a connection carries before it breaks.
const GOOD: u64 = 4;

/// A rank's way to its launcher, whose words stay away from the first sign to the second.
fn delayed(launcher: UnixStream, silent: &Arc<AtomicBool>, heard: &Arc<Event>) -> UnixStream {
    let (ours, rank) = UnixStream::pair().unwrap();
    let pump = |mut from: UnixStream, mut to: UnixStream, before: Box<dyn Fn() + Send>| {
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(read @ 1..) = from.read(&mut piece) {
                before();
                if to.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    };
    let (silent, heard) = (silent.clone(), heard.clone());
    let hold = move || {
        if silent.load(Ordering::SeqCst) {
            heard.wait();
        }
    };
    pump(launcher.try_clone().unwrap(), ours.try_clone().unwrap(), Box::new(hold));
    pump(ours, launcher, Box::new(|| {}));
    rank
}

/// A rank that posts, and one that owns the mailbox "in". What the launcher says stays away from the poster once it is silent.
struct Pair {
    poster: World,
    owner: World,
    inbox: Mailbox<u8>,
    silent: Arc<AtomicBool>,
    heard: Arc<Event>,
    _job: Job,
}

/// The poster's NIC is as `spoil` makes it.
fn pair(spoil: impl FnOnce(&Nic, &Arc<AtomicBool>) -> Nic) -> Pair {
    let (silent, heard) = (Arc::new(AtomicBool::new(false)), Event::new());
    let (job, mut streams) = Job::new(2).unwrap();
    let owner = Client::new(streams.pop().unwrap()).unwrap();
    let poster = Client::new(delayed(streams.pop().unwrap(), &silent, &heard)).unwrap();
    let nic = |client: &Client| udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap();
    let (plain, spoilt) = (nic(&owner), spoil(&nic(&poster), &silent));
    let owner = thread::spawn(move || {
        let world = World::new(owner, vec![plain], config(), true).unwrap();
        let inbox = world.mailbox::<u8>("in").unwrap();
        (world, inbox)
    });
    let poster = World::new(poster, vec![spoilt], config(), true).unwrap();
    let (owner, inbox) = owner.join().unwrap();
    Pair { poster, owner, inbox, silent, heard, _job: job }
}

/// A NIC whose connections break after a few messages.
fn breaking(nic: &Nic, _: &Arc<AtomicBool>) -> Nic {
    let luck = Luck { lose_after: Some(GOOD), ..Luck::default() };
    wrapped(nic, Fault::honest(luck, 1))
}

/// A NIC that makes `good` connections, and then breaks each request for one; from then on the launcher is silent.
fn unreached(good: usize) -> impl FnOnce(&Nic, &Arc<AtomicBool>) -> Nic {
    move |nic, silent| {
        let (silent, asked) = (silent.clone(), AtomicUsize::new(0));
        let reach = move |_: &NetAddress| {
            if asked.fetch_add(1, Ordering::SeqCst) < good {
                return Ok(());
            }
            silent.store(true, Ordering::SeqCst);
            Err(udeck::via::Error::Lost("broken while it was made".into()))
        };
        wrapped(nic, Disguise::named("shm0").reaching(reach))
    }
}

/// The rank has finished, which the poster hears then.
fn settled(owner: World, inbox: Mailbox<u8>, heard: &Event, look: impl Fn() -> Error) {
    drop(inbox);
    owner.finish().unwrap();
    heard.happen();
    let limit = Instant::now() + LONG;
    while !matches!(look(), Error::MailboxGone { .. }) {
        assert!(Instant::now() < limit, "its goodbye is not heard");
    }
}

/// What becomes of a rank whose connection is broken; `look` is what asks, and `verb` what it does.
fn doubted(protocol: Protocol, look: fn(&Postbox<u8>) -> Error, verb: &str) {
    let Pair { poster: world, owner, inbox, silent, heard, _job } = pair(breaking);
    let out = world.postbox::<u8>("in").unwrap();
    out.set_protocol(protocol).unwrap();
    silent.store(true, Ordering::SeqCst);
    let first = (0..=GOOD).find_map(|_| out.try_post(&[7][..]).err()).expect("the connection breaks").error;
    assert!(matches!(first, Error::WouldBlock { .. }), "nobody may wait, and nobody knows: {first}");
    is_open(&look(&out), verb);
    settled(owner, inbox, &heard, || look(&out));
}

/// Nobody knows yet. Whether that is what the error says; on a slow machine it is a second later, when what is known has to do.
fn is_open(error: &Error, verb: &str) -> bool {
    match error {
        Error::WouldBlock { .. } => true,
        Error::Deadline { what, whom, .. } => {
            assert!(what.starts_with(verb) && whom.contains("the launcher to say"), "{error}");
            true
        }
        Error::PeerLost { .. } => false,
        _ => panic!("{error}"),
    }
}

/// Tries until it is fast enough for the error to say that nobody knows yet.
fn said_at_last(attempt: impl Fn() -> bool) {
    assert!((0..10).any(|_| attempt()), "the rank is said to be lost, and has finished");
}

#[test]
fn nobody_waits_for_the_launchers_word_beyond_his_own_time() {
    type Look = fn(&Postbox<u8>) -> Error;
    let looks: [(Look, &str); 5] = [
        (|out| out.try_post(&[7][..]).unwrap_err().error, "posting to"),
        (|out| out.post_timeout(&[7][..], SHORT).unwrap_err().error, "posting to"),
        (|out| out.post(&[7][..]).unwrap_err().error, "posting to"),
        (|out| out.flush_timeout(SHORT).unwrap_err(), "flushing to"),
        (|out| out.post_nonblocking(&[7][..]).map(drop).unwrap_err().error, "posting to"),
    ];
    for (look, verb) in looks {
        doubted(Protocol::Eager, look, verb);
        doubted(Protocol::HandOff, look, verb);
    }
}

#[test]
fn a_handle_says_that_nobody_knows_yet() {
    said_at_last(|| {
        let Pair { poster: world, owner, inbox, silent, heard, _job } = pair(breaking);
        let out = world.postbox::<u8>("in").unwrap();
        silent.store(true, Ordering::SeqCst);
        // Each is announced, and nobody answers.
        let mut handles = Vec::new();
        while let Ok(handle) = out.post_nonblocking_with(Protocol::RdmaWrite, &[7; 100][..]) {
            handles.push(handle);
        }
        let mut handle = handles.swap_remove(0);
        assert!(handle.is_done());
        let is_open = is_open(&handle.wait_timeout(SHORT).unwrap_err(), "delivering a message to");
        if is_open {
            let handle = std::cell::RefCell::new(handle);
            settled(owner, inbox, &heard, || handle.borrow_mut().wait_timeout(LONG).unwrap_err());
        } else {
            heard.happen();
        }
        is_open
    });
}

/// Less than the second after which what is known has to do.
const LIMIT: Duration = Duration::from_millis(800);

#[test]
fn a_connection_that_breaks_while_it_is_made_says_that_nobody_knows_yet() {
    said_at_last(|| {
        let Pair { poster: world, owner, inbox, heard, .. } = pair(unreached(0));
        let connect = || world.postbox_timeout::<u8>("in", LIMIT).unwrap_err();
        let error = connect();
        // On a slow machine the name service may not have answered in time.
        let is_open = !matches!(error, Error::NoSuchMailbox { .. }) && is_open(&error, "connecting to");
        settled(owner, inbox, &heard, connect);
        is_open
    });
}

#[test]
fn a_handshake_whose_data_connection_breaks_says_that_nobody_knows_yet() {
    said_at_last(|| {
        let Pair { poster: world, owner, inbox, heard, .. } = pair(unreached(1));
        let out = world.postbox::<u8>("in").unwrap();
        out.set_protocol(Protocol::Handshake).unwrap();
        let post = || out.post_timeout(&[7][..], LIMIT).unwrap_err().error;
        let is_open = is_open(&post(), "connecting to");
        settled(owner, inbox, &heard, post);
        is_open
    });
}
