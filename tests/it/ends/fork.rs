//! A child made by `fork()` while a world is open: its calls fail, its drops do nothing, and the parent notices neither. A
//! program started by `std::process::Command` inherits nothing.

#![allow(unsafe_code, reason = "it forks")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use udeck::{Mailbox, Postbox, World, run_local};

use crate::common::apart;

/// Variable with the transport, set in the process that forks.
const TRANSPORT: &str = "DECK_TRANSPORT";
/// Seconds after which a hanging child ends.
const PATIENCE: u32 = 60;

type Ends = (Mailbox<u64>, Postbox<u64>);

/// Runs `test` in a process of its own, so that the forked child lacks no thread of another test.
fn alone(test: &str, transport: &str) -> bool {
    apart(test, |process| _ = process.env(TRANSPORT, transport))
}

/// Makes a mailbox of this rank, and a postbox of the other's.
fn ends(world: &World, name: &str) -> udeck::Result<Ends> {
    let inbox = world.mailbox(&format!("{name} {}", world.rank()))?;
    Ok((inbox, world.postbox(&format!("{name} {}", 1 - world.rank()))?))
}

/// Exchanges short and long messages, both ways.
fn exchange(world: &World, (inbox, outbox): &Ends) -> udeck::Result {
    for len in [1, 100_000] {
        let mut buf = world.buf::<u64>(len)?;
        buf.fill(len as u64);
        outbox.post(buf)?;
        let received = inbox.retrieve()?;
        assert!(received.len() == len && received.iter().all(|word| *word == len as u64));
    }
    Ok(())
}

/// Runs the child's calls. Returns whether every call failed.
fn child(world: World, (inbox, outbox): Ends, buf: udeck::Buf<u64>, short: udeck::Buf<u64>) -> bool {
    let words = |failed: Result<(), String>| failed.is_err_and(|why| why.contains("was forked"));
    let told = |error: udeck::Result| words(error.map_err(|error| format!("{error:?}")));
    let all = [
        told(outbox.post(buf).map_err(|error| error.error)),
        told(outbox.post(short).map_err(|error| error.error)),
        told(outbox.flush()),
        told(inbox.retrieve().map(drop)),
        told(inbox.try_retrieve().map(drop)),
        told(inbox.retrieve_timeout(Duration::ZERO).map(drop)),
        told(inbox.retrieve_into(&mut [0; 4]).map(drop)),
        told(world.buf::<u64>(5).map(drop)),
        told(world.buf::<u64>(100_000).map(drop)),
        told(world.mailbox::<u64>("another").map(drop)),
        told(world.postbox::<u64>("fork 0").map(drop)),
        told(world.barrier()),
        told(
            world
                .nic()
                .check()
                .map_err(|error| udeck::Error::Via { what: String::new(), source: error.into() }),
        ),
    ];
    drop((inbox, outbox));
    let finished = told(world.finish());
    let good = finished && all.iter().all(|told| *told);
    if !good {
        eprintln!("the child's calls: {all:?}, finish: {finished}");
    }
    good
}

fn a_forked_child_disturbs_nobody(world: World) -> udeck::Result {
    let ends = ends(&world, "fork")?;
    exchange(&world, &ends)?;
    world.barrier()?;
    let unfinished = [100_000, 1].map(|len| world.buf::<u64>(len));
    let [buf, short] = unfinished;
    let (buf, short) = (buf?, short?);
    let held = {
        ends.1.post(world.buf::<u64>(70_000)?)?;
        ends.0.retrieve()?
    };
    for merely_drops in if world.rank() == 0 { vec![true, false] } else { vec![] } {
        // SAFETY: the child allocates, which the C library allows; what it calls else takes no lock of another thread's.
        match unsafe { libc::fork() } {
            -1 => panic!("{}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: no handler is set.
                unsafe { libc::alarm(PATIENCE) };
                let act = || {
                    drop(held);
                    if merely_drops {
                        drop((ends, buf, short, world));
                        return true;
                    }
                    child(world, ends, buf, short)
                };
                let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
                // SAFETY: nothing of the parent's is flushed or run.
                unsafe { libc::_exit(if good.is_ok_and(|good| good) { 0 } else { 1 }) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: the child's status goes into a living integer.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                assert_eq!(status, 0, "the child has come to its end, and every call of it failed");
            }
        }
    }
    drop((buf, short));
    world.barrier()?;
    assert!(held.iter().all(|word| *word == 0));
    drop(held);
    // The connections work, and the reactor and the launcher's thread still listen: new connections are made,
    // too.
    for _ in 0..3 {
        exchange(&world, &ends)?;
    }
    exchange(&world, &self::ends(&world, "later")?)?;
    world.finish()
}

#[test]
fn a_forked_child_disturbs_nobody_over_shm() {
    if alone("ends::fork::a_forked_child_disturbs_nobody_over_shm", "shm") {
        run_local(2, a_forked_child_disturbs_nobody).unwrap();
    }
}

#[test]
fn a_forked_child_disturbs_nobody_over_tcp() {
    if alone("ends::fork::a_forked_child_disturbs_nobody_over_tcp", "tcp") {
        run_local(2, a_forked_child_disturbs_nobody).unwrap();
    }
}

#[test]
fn a_forked_child_disturbs_nobody_over_udp() {
    if alone("ends::fork::a_forked_child_disturbs_nobody_over_udp", "udp") {
        run_local(2, a_forked_child_disturbs_nobody).unwrap();
    }
}

#[test]
fn programs_that_a_rank_starts_inherit_nothing() {
    if !alone("ends::fork::programs_that_a_rank_starts_inherit_nothing", "shm,tcp,udp") {
        return;
    }
    run_local(2, |world| {
        let ends = ends(&world, "command")?;
        exchange(&world, &ends)?;
        let mut list = Command::new("sh");
        list.args(["-c", "for fd in /proc/$$/fd/*; do readlink $fd; done"])
            .stdin(std::process::Stdio::null());
        for forks in [false, true] {
            if forks {
                // SAFETY: it does nothing.
                unsafe { list.pre_exec(|| Ok(())) };
            }
            let said = list.output().unwrap();
            let said = String::from_utf8_lossy(&said.stdout);
            assert!(said.contains("/dev/null"), "{said}");
            assert!(
                !said.contains("socket:") && !said.contains("memfd:") && !said.contains("anon_inode:"),
                "{said}"
            );
        }
        exchange(&world, &ends)?;
        world.barrier()?;
        world.finish()
    })
    .unwrap();
}

/// A run of messages that the parent has taken belongs to the parent: the child sees none of them, only the error.
fn a_child_forked_while_draining_sees_no_message(world: World) -> udeck::Result {
    let (inbox, out) = (world.mailbox::<u64>("own")?, world.postbox::<u64>("own")?);
    out.post_each(&(0..10).collect::<Vec<u64>>())?;
    let (parent, mut child, mut seen) = (std::process::id(), Vec::new(), Vec::new());
    let drained = inbox.drain(10, |received| {
        if std::process::id() != parent {
            child.push(received[0]);
            return;
        }
        seen.push(received[0]);
        if received[0] == 1 {
            // SAFETY: as above.
            match unsafe { libc::fork() } {
                -1 => panic!("{}", std::io::Error::last_os_error()),
                // SAFETY: no handler is set.
                0 => _ = unsafe { libc::alarm(PATIENCE) },
                pid => {
                    let mut status = 0;
                    // SAFETY: the child's status goes into a living integer.
                    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                    assert_eq!(
                        libc::WEXITSTATUS(status),
                        0,
                        "messages that the child saw, too (100: no error)"
                    );
                }
            }
        }
    });
    if std::process::id() != parent {
        let count = child.len() as i32;
        // SAFETY: nothing of the parent's is flushed or run.
        unsafe { libc::_exit(if drained.is_ok() { 100 + count } else { count }) }
    }
    assert_eq!(seen, (0..10).collect::<Vec<u64>>());
    drop(drained);
    world.finish()
}

#[test]
fn a_child_forked_while_draining_sees_no_message_over_shm() {
    if alone("ends::fork::a_child_forked_while_draining_sees_no_message_over_shm", "shm") {
        run_local(1, a_child_forked_while_draining_sees_no_message).unwrap();
    }
}

/// A lock that another thread of the parent held stays held in the child for ever: no call there waits for it.
fn a_lock_held_by_another_thread_holds_up_no_child(world: World) -> udeck::Result {
    let all = world.all()?;
    all.barrier()?;
    // The collective call runs the operator while it holds the group's lock.
    let (inside, go_on) = (Barrier::new(2), Barrier::new(2));
    let slow = |left: u64, right: u64| {
        inside.wait();
        go_on.wait();
        left + right
    };
    if world.rank() == 1 {
        all.all_reduce(&mut [1_u64], |left, right| left + right)?;
        return world.finish();
    }
    std::thread::scope(|scope| {
        let reduced = scope.spawn(|| all.all_reduce(&mut [1_u64], slow));
        inside.wait();
        // SAFETY: as above.
        match unsafe { libc::fork() } {
            -1 => panic!("{}", std::io::Error::last_os_error()),
            0 => {
                // SAFETY: no handler is set.
                unsafe { libc::alarm(PATIENCE) };
                let calls = [
                    all.split(Some(0), 0).map(drop),
                    all.barrier(),
                    all.barrier_nonblocking().map(drop),
                    all.all_reduce(&mut [1_u64], |left, right| left + right),
                ];
                let told = |call: &udeck::Result| {
                    call.as_ref().is_err_and(|error| error.to_string().contains("was forked"))
                };
                // SAFETY: nothing of the parent's is flushed or run.
                unsafe { libc::_exit(if calls.iter().all(told) { 0 } else { 1 }) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: the child's status goes into a living integer.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                go_on.wait();
                assert_eq!(status, 0, "every call of the child's failed, and none waited for the lock");
            }
        }
        reduced.join().expect("it does not panic")
    })?;
    world.finish()
}

#[test]
fn a_lock_held_by_another_thread_holds_up_no_child_over_shm() {
    if alone("ends::fork::a_lock_held_by_another_thread_holds_up_no_child_over_shm", "shm") {
        run_local(2, a_lock_held_by_another_thread_holds_up_no_child).unwrap();
    }
}
