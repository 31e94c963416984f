//! Forks: a rank forks while its streams run. The child can use nothing, and each of its calls says so at once. The parent
//! notices nothing.

#![allow(unsafe_code, reason = "it forks")]

use std::io;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};
use udeck::{Mailbox, Postbox, Result, World};
use udeck_jobs::soak::plan::Round;

use crate::{PATIENCE, Rank, mailbox_name};

const CHILDREN: usize = 4;
/// Seconds after which a hanging child ends.
const ALARM: u32 = 60;
/// Pause in which other threads post and retrieve between two forks.
const PAUSE: Duration = Duration::from_millis(20);

/// Forks children in the second round. The first round has none: after it, the resources of a connection to
/// itself are known.
pub fn children(rank: &Rank<'_>, round: Round) {
    let ends = match ends(rank, round) {
        Ok(ends) => ends,
        Err(error) => return rank.unexpected("making what a child is to use", &error),
    };
    let count = if round == Round::First { 0 } else { CHILDREN };
    for _ in 0..count {
        std::thread::sleep(PAUSE);
        let ended = fork(|| first_that_succeeds(rank.world, &ends)).and_then(|pid| {
            let ended = waitpid(Some(pid), WaitOptions::empty())?;
            Ok(ended.map(|(_, status)| status))
        });
        match ended {
            Ok(Some(status)) if status.exit_status() == Some(0) => {}
            // The child may lack memory, as its parent does.
            Ok(status) if rank.plan.is_cramped(rank.rank) => rank.note(format!("a child: {status:?}")),
            Err(error) if rank.plan.is_cramped(rank.rank) => rank.note(format!("forking: {error}")),
            Ok(status) => rank.wrong(format!("a child whose calls were to fail at once: {status:?}")),
            Err(error) => rank.wrong(format!("forking: {error}")),
        }
    }
    let sent = ends.1.post_timeout(&[7_u8][..], PATIENCE).map_err(udeck::Error::from);
    match sent.and_then(|()| ends.0.retrieve_timeout(PATIENCE)) {
        Ok(message) if message[..] == [7] => {}
        Ok(message) => rank.wrong(format!("after the forks came {:?}", &message[..])),
        Err(error) => rank.unexpected("a message after the forks", &error),
    }
}

type Ends = (Mailbox<u8>, Postbox<u8>);

/// Makes the connection that the child uses: the streams' ends belong to other threads.
fn ends(rank: &Rank<'_>, round: Round) -> Result<Ends> {
    let name = format!("{} of the forks", mailbox_name(round, rank.rank));
    let inbox = rank.watch.call("mailbox", PATIENCE, || rank.world.mailbox(&name))?;
    let out = rank.watch.call("postbox", PATIENCE, || rank.world.postbox_timeout(&name, PATIENCE))?;
    Ok((inbox, out))
}

/// In the child: number of the first call that does not report the fork; 0: all report it.
fn first_that_succeeds(world: &World, (inbox, out): &Ends) -> i32 {
    let is_told = |result: Result| result.is_err_and(|error| format!("{error:?}").contains("was forked"));
    let calls: [&dyn Fn() -> Result; 9] = [
        &|| out.post(&[1_u8][..]).map_err(|error| error.error),
        &|| out.flush(),
        &|| inbox.retrieve().map(drop),
        &|| inbox.try_retrieve().map(drop),
        &|| inbox.retrieve_tagged(3).map(drop),
        &|| world.buf::<u64>(100_000).map(drop),
        &|| world.mailbox::<u8>("a child's").map(drop),
        &|| world.postbox::<u8>("a child's").map(drop),
        &|| world.barrier(),
    ];
    calls.iter().zip(1..).find(|(call, _)| !is_told(call())).map_or(0, |(_, number)| number)
}

/// Runs `body` in a child of this process. The result of `body` becomes the child's exit code.
fn fork(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the child allocates, which the C library allows. Else it makes calls of the library's that are refused before they take a
    // lock of another thread's, and ends.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: no handler is set.
            unsafe { libc::alarm(ALARM) };
            let code = body();
            // SAFETY: nothing of the parent's is flushed or run.
            unsafe { libc::_exit(code) }
        }
        child => Pid::from_raw(child).ok_or_else(|| io::Error::other("a child without a number")),
    }
}
