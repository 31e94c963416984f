//! Ranks in collective calls: `group-rank CALL [MS]`. All ranks repeat the call, and check its result each time.
//!
//! Without `MS` they make 50 calls. With it, rank 1 is killed after that many milliseconds, somewhere in a call. The others
//! continue until they learn of it, make a group of the remaining ranks, make the call there, and print `rank N: ERROR; LEFT went
//! on`.

use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use udeck::op::{Max, Sum};
use udeck::{Group, Result, World};

/// Number of elements of long data: several pieces.
const LONG: usize = 100_000;
const ROUNDS: usize = 50;

fn main() -> Result {
    let mut args = std::env::args().skip(1);
    let call = args.next().unwrap_or_default();
    let kill_after: Option<u64> = args.next().and_then(|ms| ms.parse().ok());
    let world = udeck::init()?;
    world.barrier()?;
    let Some(ms) = kill_after else {
        for _ in 0..ROUNDS {
            make(&call, &world, world.all()?)?;
        }
        println!("rank {}: right", world.rank());
        world.barrier()?;
        return world.finish();
    };
    let die = move || {
        thread::sleep(Duration::from_millis(ms));
        kill_process(getpid(), Signal::KILL).expect("it is this process");
    };
    // A rank that has passed this barrier knows that all others are in it, or have passed it: news of a death from here on is no
    // failure of theirs, however late they are.
    let mut done = world.all()?.barrier();
    if world.rank() == 1 {
        thread::spawn(die);
    }
    let error = loop {
        if let Err(error) = done {
            break error;
        }
        done = make(&call, &world, world.all()?);
    };
    let left: Vec<usize> = (0..world.size()).filter(|rank| *rank != 1).collect();
    let left = world.group("left", &left)?;
    make(&call, &world, &left)?;
    left.barrier()?;
    println!("rank {}: {error}; {} went on", world.rank(), left.size());
    world.finish()
}

/// Makes the call, and checks its result.
fn make(call: &str, world: &World, group: &Group) -> Result {
    let (me, size) = (group.rank(), group.size());
    let sum = (0..size).sum::<usize>();
    match call {
        "barrier" => group.barrier()?,
        "all_reduce" => {
            let mut data = [me];
            group.all_reduce(&mut data, Sum)?;
            assert_eq!(data, [sum]);
        }
        "long_all_reduce" => {
            let mut data = vec![me; LONG];
            group.all_reduce(&mut data, Sum)?;
            assert!(data.iter().all(|element| *element == sum));
        }
        "reduce" => {
            let mut data = vec![me; 1000];
            group.reduce(0, &mut data, Max)?;
            assert!(me != 0 || data == [size - 1; 1000]);
            group.barrier()?;
        }
        "broadcast" => {
            let mut data = vec![me; LONG];
            group.broadcast(size - 1, &mut data)?;
            assert!(data.iter().all(|element| *element == size - 1));
            group.barrier()?;
        }
        "gather_scatter" => {
            let mut all = vec![0; if me == 0 { size } else { 0 }];
            group.gather(0, &[me], &mut all)?;
            let mut mine = [usize::MAX];
            group.scatter(0, &all, &mut mine)?;
            assert_eq!(mine, [me]);
        }
        "all_gather" => {
            let mut all = vec![0; size];
            group.all_gather(&[me], &mut all)?;
            assert!(all.into_iter().eq(0..size));
        }
        "all_to_all" => {
            let each = 20_000;
            let mut all = vec![0; size * each];
            group.all_to_all(&vec![me; size * each], &mut all)?;
            assert!(all.chunks(each).enumerate().all(|(of, part)| part.iter().all(|element| *element == of)));
        }
        "whole_messages" => {
            let messages = (0..size).map(|_| world.buf::<u64>(5000)).collect::<Result<Vec<_>>>()?;
            assert_eq!(group.all_to_all_buf::<u64>(messages)?.len(), size);
            let message = if me == 0 { Some(world.buf::<u64>(5000)?) } else { None };
            assert_eq!(group.broadcast_buf::<u64>(0, message)?.len(), 5000);
            group.barrier()?;
        }
        "scan" => {
            let mut data = [me];
            group.scan(&mut data, Sum)?;
            assert_eq!(data, [(0..me + 1).sum::<usize>()]);
            group.barrier()?;
        }
        "request" => {
            let request = group.all_reduce_nonblocking(vec![me; LONG], Sum)?;
            assert_eq!(request.wait()?[LONG - 1], sum);
        }
        _ => panic!("no call {call:?}"),
    }
    Ok(())
}
