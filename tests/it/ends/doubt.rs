//! Doubt: a connection broke, and the launcher has not yet said whether its rank finished. No call waits for the answer
//! beyond its own deadline, and none guesses.

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
use udeck_faults::{Disguise, Fault, PermittedFaults, wrapped};

/// Number of messages that a connection carries before it breaks.
const GOOD: u64 = 4;

/// A rank's connection to its launcher. The launcher's messages are withheld from the moment `silent` is set
/// until `heard` happens.
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

/// A rank that posts, and one that owns the mailbox "in". After `silent` is set, the launcher's messages do not reach the
/// poster.
struct Pair {
    poster: World,
    owner: World,
    inbox: Mailbox<u8>,
    silent: Arc<AtomicBool>,
    heard: Arc<Event>,
    _job: Job,
}

/// Makes the pair, with the poster's NIC changed by `spoil`.
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
    let luck = PermittedFaults { lose_after: Some(GOOD), ..PermittedFaults::default() };
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

/// Lets the owner finish, and checks that the poster then learns it.
fn settled(owner: World, inbox: Mailbox<u8>, heard: &Event, look: impl Fn() -> Error) {
    drop(inbox);
    owner.finish().unwrap();
    heard.happen();
    let limit = Instant::now() + LONG;
    while !matches!(look(), Error::MailboxGone { .. }) {
        assert!(Instant::now() < limit, "its goodbye is not heard");
    }
}

/// Checks the errors about a rank whose connection is broken; `look` is the call, and `verb` its action.
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

/// Whether the error says that nobody knows yet. On a slow machine a second may have passed, after which the call reports what
/// is known.
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

/// Repeats the attempt until it is fast enough for the error to say that nobody knows yet.
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
        // Each message is announced, and nobody answers.
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

/// Shorter than the second after which a call reports what is known.
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
