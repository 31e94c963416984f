//! Ranks of the tests under launchers: `engines-rank PART ..`.
//!
//! * `hello`: joins the job, and prints its rank.
//! * `barrier FOLDER`: makes some barriers. Before each one a rank makes a file, and behind it the files of all
//!   exist.
//! * `all`: exchanges messages of all sizes by all protocols, between any two ranks in both directions.
//! * `killed RANK`: this rank is killed while all wait. The others print what they learn.
//! * `abort RANK CODE`: this rank ends the job, while the others wait.
//! * `names LABEL OTHER FOLDER`: meets the ranks of its own job by a name that another job, which runs at the same time, uses,
//!   too.
//! * `server WORD`: `hello` under a launcher whose service is `silent`, speaks `nonsense`, or `dies`.
//!
//! Each line is one write, so that lines of several ranks stay whole.

#[path = "rank/exchange.rs"]
mod exchange;
#[path = "rank/server.rs"]
mod server;

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Signal, getpid, kill_process};
use udeck::{Error, Mailbox, Postbox, Result, World};

/// Deadline of every call: it only ends a hang.
const LONG: Duration = Duration::from_secs(100);
/// Time before the victim dies: by then the others wait, unless the machine is busy.
const UNTIL_DEATH: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let part = env::args().nth(1).unwrap_or_default();
    if part == "server" {
        return server::run_under(&word(2));
    }
    let done = udeck::init().and_then(|world| match part.as_str() {
        "hello" => hello(world),
        "barrier" => barrier(world, &PathBuf::from(word(2))),
        "all" => exchange::all(world),
        "killed" => killed(world, number(2)),
        "abort" => abort(&world, number(2), number(3)),
        "names" => names(world, &word(2), &word(3), &PathBuf::from(word(4))),
        other => panic!("no part is named {other:?}"),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn word(index: usize) -> String {
    env::args().nth(index).unwrap_or_else(|| panic!("argument {index} is missing"))
}

fn number<T: FromStr>(index: usize) -> T {
    let word = word(index);
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
}

fn complain(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
}

fn hello(world: World) -> Result {
    say(&format!("rank {} of {}", world.rank(), world.size()));
    world.finish()
}

fn barrier(world: World, folder: &Path) -> Result {
    let (me, size) = (world.rank(), world.size());
    for round in 0..3 {
        // Each time another rank is late.
        if me == round % size {
            thread::sleep(Duration::from_millis(50));
        }
        fs::write(folder.join(format!("{round}.{me}")), "").expect("a folder to write to");
        world.barrier()?;
        let missing = (0..size).find(|rank| !folder.join(format!("{round}.{rank}")).exists());
        assert_eq!(missing, None, "the barrier lets ranks pass before this one has come");
    }
    say(&format!("rank {me} has passed"));
    world.finish()
}

/// Makes a mailbox, and a connection to every other rank's, over which a message has gone each way. The rank `one` must exist.
fn met(world: &World, one: usize) -> Result<(Mailbox<u64>, Vec<Postbox<u64>>)> {
    let (me, size) = (world.rank(), world.size());
    assert!(one < size, "there is no rank {one} among {size}");
    let inbox = world.mailbox::<u64>(&format!("in{me}"))?;
    let others = (0..size).filter(|peer| *peer != me);
    let outs = others.map(|peer| world.postbox(&format!("in{peer}"))).collect::<Result<Vec<_>>>()?;
    for out in &outs {
        out.post(&[me as u64][..]).map_err(|failed| failed.error)?;
    }
    for _ in &outs {
        inbox.retrieve_timeout(LONG)?;
    }
    world.barrier()?;
    say(&format!("rank {me} of {size} waits"));
    Ok((inbox, outs))
}

fn killed(world: World, victim: usize) -> Result {
    let me = world.rank();
    let (inbox, outs) = met(&world, victim)?;
    let start = Instant::now();
    if me == victim {
        thread::spawn(|| {
            thread::sleep(UNTIL_DEATH);
            kill_process(getpid(), Signal::KILL).expect("it is this process");
        });
    }
    let error = loop {
        if let Err(error) = inbox.retrieve_timeout(LONG) {
            break error;
        }
    };
    let Error::PeerLost { rank, how } = error else { return Err(error) };
    say(&format!("rank {me}: PeerLost rank={rank} after {} ms: {how}", start.elapsed().as_millis()));
    drop((inbox, outs));
    match world.finish() {
        // Rank 0 served the names: an error at its end is printed, but is no failure of this rank.
        Err(error) if victim == 0 => complain(&format!("rank {me}: finish: {error}")),
        other => other?,
    }
    Ok(())
}

fn abort(world: &World, who: usize, code: u8) -> Result {
    let (inbox, _outs) = met(world, who)?;
    if world.rank() == who {
        world.abort(code, "as the test wants");
    }
    // This rank may still learn of the other's end.
    let _ = inbox.retrieve_timeout(LONG);
    thread::sleep(LONG);
    say(&format!("rank {} lives on", world.rank()));
    Ok(())
}

fn names(world: World, label: &str, other: &str, folder: &Path) -> Result {
    const NAME: &str = "the same name in both jobs";
    let (me, size) = (world.rank(), world.size());
    let inbox = if me == 0 { Some(world.mailbox::<u8>(NAME)?) } else { None };
    both(me, label, other, folder, "here");
    world.barrier()?;
    if let Some(inbox) = &inbox {
        for _ in 1..size {
            let message = inbox.retrieve_timeout(LONG)?;
            assert_eq!(&message[..], label.as_bytes(), "a message of another job");
        }
    } else {
        let out = world.postbox::<u8>(NAME)?;
        out.post(label.as_bytes()).map_err(|failed| failed.error)?;
        out.flush()?;
    }
    world.barrier()?;
    both(me, label, other, folder, "done");
    say(&format!("rank {me} of {size} in {label}"));
    drop(inbox);
    world.finish()
}

/// Lets rank 0 continue when rank 0 of the other job has arrived here, too.
fn both(me: usize, label: &str, other: &str, folder: &Path, place: &str) {
    if me != 0 {
        return;
    }
    fs::write(folder.join(format!("{label}.{place}")), "").expect("a folder to write to");
    let start = Instant::now();
    while !folder.join(format!("{other}.{place}")).exists() {
        assert!(start.elapsed() < LONG, "the job {other} does not come");
        thread::sleep(Duration::from_millis(5));
    }
}
