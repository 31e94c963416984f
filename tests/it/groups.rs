//! Groups: every collective call gives the result of a loop over all members' data, with every algorithm.

use udeck::op::{self, BitXor, Max, Min, Product, Sum};
use udeck::{Algorithm, Config, Group, Result, World};

mod barrier;
mod grid;
mod mistakes;
mod operators;
mod requests;
mod surprises;
mod values;
mod wait_set;
mod whole_messages;

use crate::common::{LONG, config, on_hosts, ranks_believing, ranks_over};
use crate::networks::late;

/// Number of elements of a member's data: none, a few, an odd number, more than a piece.
const LENGTHS: [usize; 4] = [0, 1, 37, 3000];
const LONG_LENGTHS: [usize; 2] = [5, 40_000];

const ALGORITHMS: [&str; 8] =
    ["direct", "binomial", "doubling", "rabenseifner", "ring", "bruck", "pairwise", "hosts"];

/// Data of a member, different for each.
fn data(member: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|nth| (member as u64 + 3).wrapping_mul(nth * 2 + 0x9e37_79b9_7f4a_7c15) >> 7)
        .collect()
}

/// Data of all `members`, combined in their order.
fn combined(members: std::ops::Range<usize>, len: usize, op: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let mut all = members.map(|member| data(member, len));
    let first = all.next().unwrap();
    all.fold(first, |sum, next| sum.iter().zip(next).map(|(a, b)| op(*a, b)).collect())
}

/// An associative operator that is not commutative, so that a wrong order shows: composes functions x -> ax + b,
/// with 32 bits for each of a and b.
fn compose(f: u64, g: u64) -> u64 {
    let parts = |f: u64| ((f >> 32) as u32 | 1, f as u32);
    let ((a, b), (c, d)) = (parts(f), parts(g));
    let (slope, offset) = (a.wrapping_mul(c), c.wrapping_mul(b).wrapping_add(d));
    u64::from(slope) << 32 | u64::from(offset)
}

fn whole(size: usize, len: usize) -> Vec<u64> {
    (0..size).flat_map(|member| data(member, len)).collect()
}

/// Makes every collective call, by all members, for data of this length.
fn all_collectives(group: &Group, len: usize) -> Result {
    let (me, size) = (group.rank(), group.size());
    let mine = data(me, len);
    let root = len % size;
    let what = |call: &str| format!("{call} of {len} in {group:?}");

    let mut got = if me == root { mine.clone() } else { vec![0; len] };
    group.broadcast(root, &mut got)?;
    assert_eq!(got, data(root, len), "{}", what("broadcast"));

    let mut got = mine.clone();
    group.reduce(root, &mut got, |a: u64, b: u64| a.wrapping_add(b))?;
    let expected = if me == root { combined(0..size, len, u64::wrapping_add) } else { mine.clone() };
    assert_eq!(got, expected, "{}", what("reduce"));

    let mut got = mine.clone();
    group.all_reduce(&mut got, BitXor)?;
    assert_eq!(got, combined(0..size, len, |a, b| a ^ b), "{}", what("all_reduce"));

    let mut got = mine.clone();
    group.all_reduce(&mut got, op::in_order(compose))?;
    assert_eq!(got, combined(0..size, len, compose), "{}", what("all_reduce in order"));

    let mut got = vec![0; if me == root { size * len } else { 0 }];
    group.gather(root, &mine, &mut got)?;
    assert!(me != root || got == whole(size, len), "{}", what("gather"));

    let all = if me == root { whole(size, len) } else { Vec::new() };
    let mut got = vec![0; len];
    group.scatter(root, &all, &mut got)?;
    assert_eq!(got, mine, "{}", what("scatter"));

    let mut got = vec![0; size * len];
    group.all_gather(&mine, &mut got)?;
    assert_eq!(got, whole(size, len), "{}", what("all_gather"));

    let part = |from: usize, to: usize| data(from * size + to, len);
    let from: Vec<u64> = (0..size).flat_map(|to| part(me, to)).collect();
    let mut got = vec![0; size * len];
    group.all_to_all(&from, &mut got)?;
    let expected: Vec<u64> = (0..size).flat_map(|of| part(of, me)).collect();
    assert_eq!(got, expected, "{}", what("all_to_all"));

    let mut got = vec![0; len];
    group.reduce_scatter(&from, &mut got, Max)?;
    let columns = (0..size).map(|of| part(of, me));
    let expected = columns.reduce(|a, b| a.iter().zip(b).map(|(a, b)| (*a).max(b)).collect());
    assert_eq!(got, expected.unwrap(), "{}", what("reduce_scatter"));

    let mut got = mine.clone();
    group.scan(&mut got, op::in_order(compose))?;
    assert_eq!(got, combined(0..me + 1, len, compose), "{}", what("scan in order"));

    // Scans only need an associative operator.
    let mut got = mine.clone();
    group.scan(&mut got, compose)?;
    assert_eq!(got, combined(0..me + 1, len, compose), "{}", what("scan"));

    let mut got = mine.clone();
    group.exscan(&mut got, compose)?;
    let expected = if me == 0 { mine.clone() } else { combined(0..me, len, compose) };
    assert_eq!(got, expected, "{}", what("exscan"));
    group.barrier()
}

/// Makes the calls with parts of different lengths: member k has k mod 3 times `len`, and one more. Some members use
/// the allocating form, others their own memory.
fn all_ragged(group: &Group, len: usize) -> Result {
    let (me, size) = (group.rank(), group.size());
    let length = |member: usize| member % 3 * len + 1;
    let root = size - 1;
    let own_memory = me % 2 == len % 2;
    let mut parts: Vec<Vec<u64>> = (0..size).map(|member| vec![0; length(member)]).collect();
    let filled: Vec<Vec<u64>> = (0..size).map(|member| data(member, length(member))).collect();

    if own_memory {
        group.gather_v_into(root, &filled[me], &mut parts)?;
        assert!(me != root || parts == filled, "gather_v_into of {len} in {group:?}");
    } else {
        let got = group.gather_v(root, &filled[me])?;
        assert_eq!(got, if me == root { &filled[..] } else { &[] }, "gather_v of {len} in {group:?}");
    }

    let of_root = if me == root { &filled[..] } else { &[] };
    if own_memory {
        let mut got = vec![0; length(me)];
        group.scatter_v_into(root, of_root, &mut got)?;
        assert_eq!(got, filled[me], "scatter_v_into of {len} in {group:?}");
    } else {
        let got = group.scatter_v(root, of_root)?;
        assert_eq!(got, filled[me], "scatter_v of {len} in {group:?}");
    }

    if own_memory {
        parts.iter_mut().for_each(|part| part.fill(0));
        group.all_gather_v_into(&filled[me], &mut parts)?;
        assert_eq!(parts, filled, "all_gather_v_into of {len} in {group:?}");
    } else {
        assert_eq!(group.all_gather_v(&filled[me])?, filled, "all_gather_v of {len} in {group:?}");
    }

    let between = |from: usize, to: usize| data(from + to, (from + 2 * to) % 5 * len);
    let from: Vec<Vec<u64>> = (0..size).map(|to| between(me, to)).collect();
    let expected: Vec<Vec<u64>> = (0..size).map(|of| between(of, me)).collect();
    if own_memory {
        let mut got: Vec<Vec<u64>> = expected.iter().map(|part| vec![0; part.len()]).collect();
        let mut slices: Vec<&mut [u64]> = got.iter_mut().map(Vec::as_mut_slice).collect();
        group.all_to_all_v_into(&from, &mut slices)?;
        assert_eq!(got, expected, "all_to_all_v_into of {len} in {group:?}");
    } else {
        let slices: Vec<&[u64]> = from.iter().map(Vec::as_slice).collect();
        assert_eq!(group.all_to_all_v(&slices)?, expected, "all_to_all_v of {len} in {group:?}");
    }

    let mut got = vec![0; length(me)];
    group.reduce_scatter_v(&filled, &mut got, BitXor)?;
    let expected = if size % 2 == 1 { filled[me].clone() } else { vec![0; length(me)] };
    assert_eq!(got, expected, "reduce_scatter_v of {len} in {group:?}");

    // The members form a ring in both directions; a single member is its own neighbour.
    let (after, before) = ((me + 1) % size, (me + size - 1) % size);
    let (mut from_before, mut from_after) = (vec![0; length(before)], vec![0; len]);
    group.neighbours(
        &[(after, &filled[me][..]), (before, &data(me, len)[..])],
        &mut [(before, &mut from_before[..]), (after, &mut from_after[..])],
    )?;
    assert_eq!((from_before, from_after), (filled[before].clone(), data(after, len)), "in {group:?}");
    Ok(())
}

fn forced(algorithm: &str) -> Config {
    let mut config = config();
    config.group = Some(algorithm.parse().expect("an algorithm"));
    config
}

fn everything(world: World, lengths: &[usize]) -> Result {
    for len in lengths {
        all_collectives(world.all()?, *len)?;
        all_ragged(world.all()?, *len)?;
    }
    world.finish()
}

#[test]
fn all_collectives_give_what_a_loop_gives() {
    for size in 1..=17 {
        ranks_believing(size, |_| config(), |_| size > 2, |world| everything(world, &LENGTHS));
    }
}

#[test]
fn by_every_algorithm() {
    for algorithm in ALGORITHMS {
        for size in [1, 2, 3, 4, 5, 7, 8, 12] {
            ranks_believing(size, |_| forced(algorithm), |_| false, |world| everything(world, &[0, 1, 37]));
        }
    }
}

#[test]
fn long_data_travel_in_pieces() {
    for algorithm in ALGORITHMS {
        for size in [2, 3, 4] {
            ranks_believing(size, |_| forced(algorithm), |_| true, |world| everything(world, &LONG_LENGTHS));
        }
    }
}

/// The ranks share memory, but believe that they are on several hosts.
#[test]
fn over_hosts() {
    for hosts in [&[2, 2, 2][..], &[1, 1, 1, 1], &[3, 1], &[1, 4, 2], &[5, 5]] {
        on_hosts(hosts, &config(), |world| everything(world, &[1, 37, 3000]));
    }
}

#[test]
fn over_a_network() {
    for size in 1..=17 {
        ranks_over("tcp", size, |_| config(), |_| size > 2, |world| everything(world, &[1, 3000]));
    }
}

/// The links are slow, and each message takes another time.
#[test]
fn over_slow_links() {
    for size in [2, 3, 5] {
        late::ranks(size, &late::fabric(), &config(), |world| everything(world, &[0, 1, 3000]));
    }
}

/// Lengths and numbers of members are random, from a seed that a failure prints.
#[test]
fn of_any_length() {
    let seed = u64::from(std::process::id());
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for round in 0..12 {
        let (size, len) = (below(17) as u32 + 1, below(20_000) as usize);
        let transport = if round % 3 == 0 { "tcp" } else { "shm" };
        println!("seed {seed}, round {round}: {size} members, {len} elements over {transport}");
        ranks_over(transport, size, |_| config(), |_| size > 2, move |world| everything(world, &[len]));
    }
}

/// A sum whose rounding depends on the order is the same at all members, and equals the loop's if that was
/// requested.
#[test]
fn all_members_round_alike() {
    let of = |member: usize, nth: usize| 1.0 / (3.0 + member as f64 + nth as f64 * 0.37);
    for (size, algorithm) in [(2, "direct"), (7, "direct"), (7, "doubling"), (8, "rabenseifner"), (6, "ring")]
    {
        for len in [1, 5000] {
            let body = move |world: World| {
                let all = world.all()?;
                let mine: Vec<f64> = (0..len).map(|nth| of(all.rank(), nth)).collect();
                let mut sum = mine.clone();
                all.all_reduce(&mut sum, Sum)?;
                let mut everybodys = vec![0.0; len * all.size()];
                all.all_gather(&sum, &mut everybodys)?;
                assert!(everybodys.chunks(len).all(|theirs| theirs == sum), "{algorithm} of {size}");
                let mut ordered = mine;
                all.all_reduce(&mut ordered, op::in_order(Sum))?;
                let looped = |nth| (1..all.size()).fold(of(0, nth), |sum, member| sum + of(member, nth));
                assert!(ordered.iter().enumerate().all(|(nth, sum)| *sum == looped(nth)));
                world.finish()
            };
            ranks_believing(size, |_| forced(algorithm), |_| false, body);
        }
    }
}

/// The results differ in bits by the order of two operands: in the NaN, or in the sign of zero.
#[test]
fn all_members_get_the_same_bits() {
    type Reduce = fn(&Group, &mut [f64]) -> Result;
    let operators: [Reduce; 6] = [
        |all, data| all.all_reduce(data, Max),
        |all, data| all.all_reduce(data, Min),
        |all, data| all.all_reduce(data, Sum),
        |all, data| all.all_reduce(data, Product),
        |all, data| all.all_reduce(data, |a: f64, b: f64| a.max(b)),
        |all, data| all.all_reduce_nonblocking(data, Max)?.wait().map(drop),
    ];
    // Values by member and index: NaNs of different bits, numbers, both zeros.
    let of = |member: usize, nth: usize| match (member + nth / 5) % 5 {
        0 => f64::from_bits(0x7ff8_0000_0000_0001 + member as u64),
        1 => f64::from_bits(0xfff8_0000_0000_0100 + member as u64),
        2 => 1.0,
        3 => 0.0,
        _ => -0.0,
    };
    let ways =
        [(2, "direct"), (3, "direct"), (2, "doubling"), (5, "doubling"), (4, "rabenseifner"), (3, "ring")];
    for (size, algorithm) in ways {
        let body = move |world: World| {
            let all = world.all()?;
            for (nth, reduce) in operators.into_iter().enumerate() {
                for len in [1, 37, 1000, 40_000] {
                    let mut mine: Vec<f64> = (0..len).map(|place| of(all.rank(), place + nth)).collect();
                    reduce(all, &mut mine)?;
                    let bits: Vec<u64> = mine.iter().map(|x| x.to_bits()).collect();
                    let mut everybodys = vec![0; len * all.size()];
                    all.all_gather(&bits, &mut everybodys)?;
                    let same = everybodys.chunks(len).all(|theirs| theirs == bits);
                    assert!(same, "operator {nth}, {len} elements, {algorithm} of {size}");
                }
            }
            world.finish()
        };
        ranks_believing(size, |_| forced(algorithm), |_| false, body);
    }
}

/// Data that are sent ahead of a reduction wait for no memory: otherwise all members could wait for each other.
#[test]
fn long_data_are_combined_in_little_memory() {
    let settings = |_| {
        let mut config = forced("direct");
        config.arena = Some(512 << 10);
        config
    };
    let body = |world: World| {
        let all = world.all()?;
        // An arena has at least 2 MiB, of which a message takes at most a quarter.
        let _held = (0..5).map(|_| world.buf::<u8>(256 << 10)).collect::<Result<Vec<_>>>()?;
        let mut sum = vec![all.rank() as u64 + 1; (3 << 20) / 8];
        all.all_reduce(&mut sum, Sum)?;
        assert!(sum.iter().all(|sum| *sum == 3));
        world.finish()
    };
    ranks_believing(2, settings, |_| true, body);
}

/// Members do not wait for each other in a broadcast: one that is far ahead waits only now and then, and its messages are kept
/// for the others.
#[test]
fn a_root_runs_ahead() {
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        |world| {
            let all = world.all()?;
            for round in 0..2000_u32 {
                let mut value = [if all.rank() == 0 { round } else { 0 }];
                all.broadcast(0, &mut value)?;
                assert_eq!(value, [round]);
                if all.rank() == 2 && round % 500 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
            world.finish()
        },
    );
}

#[test]
fn groups_are_made_of_some_and_split() {
    ranks_believing(
        6,
        |_| config(),
        |_| true,
        |world| {
            let rank = world.rank();
            // The group has another order than the ranks, and the same name twice.
            for _ in 0..2 {
                if [5, 1, 3].contains(&rank) {
                    let odd = world.group("odd", &[5, 1, 3])?;
                    assert_eq!((odd.ranks(), odd.name(), odd.size()), (&[5, 1, 3][..], "odd", 3));
                    all_collectives(&odd, 9)?;
                } else {
                    all_collectives(&world.anonymous_group(&[0, 2, 4])?, 9)?;
                }
            }
            let part = world.all()?.split((rank != 4).then_some(rank % 2), -(rank as i64))?;
            assert_eq!(part.is_some(), rank != 4);
            if let Some(part) = part {
                let expected: &[usize] = if rank % 2 == 0 { &[2, 0] } else { &[5, 3, 1] };
                assert_eq!((part.ranks(), part.name()), (expected, ["all/0", "all/1"][rank % 2]));
                all_collectives(&part, 9)?;
                let alone = part.split(Some(part.rank()), 0)?.expect("a colour");
                all_collectives(&alone, 9)?;
            }
            world.all()?.within(LONG).barrier()?;
            world.finish()
        },
    );
}

/// Each part has its own name for errors, and no name is too long for the launcher.
#[test]
fn parts_are_parted_as_often_as_wanted() {
    ranks_believing(
        2,
        |_| config(),
        |_| false,
        |world| {
            let mut part = world.all()?.split(Some(0), 0)?.expect("a colour");
            for level in 1..150 {
                part = part.split(Some(level * 1_000_000_007), 0)?.expect("a colour");
            }
            assert!(part.name().starts_with("all/0/1000000007/2000000014/"), "{}", part.name());
            all_collectives(&part, 9)?;
            // The name is that in errors and traces.
            let error = part.broadcast(7, &mut [0]).unwrap_err().to_string();
            assert!(
                error.contains("of group \"all/0/1000000007/") && error.contains("149000001043\""),
                "{error}"
            );
            assert!(error.len() < 300, "{error}");
            world.finish()
        },
    );
}

#[test]
fn a_group_without_a_name_is_called_by_its_ranks() {
    ranks_believing(
        4,
        |_| config(),
        |_| true,
        |world| {
            if world.rank() == 0 {
                return world.finish();
            }
            let some = world.anonymous_group(&[3, 1, 2])?;
            assert_eq!(some.name(), "ranks 3, 1-2");
            let error = some.broadcast(9, &mut [0]).unwrap_err().to_string();
            assert!(error.starts_with("broadcast of group \"ranks 3, 1-2\": no member 9"), "{error}");
            world.finish()
        },
    );
}

/// No rank is lost, and the rank that has made too many groups gets an error with advice.
#[test]
fn more_groups_than_there_can_be_is_an_error_with_advice() {
    ranks_believing(
        1,
        |_| config(),
        |_| false,
        |world| {
            let mut groups = Vec::new();
            let error = loop {
                match world.anonymous_group(&[0]) {
                    Ok(group) => groups.push(group),
                    Err(error) => break error,
                }
                assert!(groups.len() < 5000, "there is no bound");
            };
            let text = error.to_string();
            assert!(
                text.contains("making group \"rank 0\"") && text.contains("drop groups that are not needed"),
                "{text}"
            );
            groups.truncate(groups.len() / 2);
            world.anonymous_group(&[0])?.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn the_choice_is_explained() {
    ranks_believing(
        4,
        |_| forced("bruck"),
        |_| false,
        |world| {
            let all = world.all()?;
            let choice = all.explain("all_gather", 1 << 20).expect("it has a choice");
            assert_eq!(
                (choice.algorithm, choice.to_string().as_str()),
                (Algorithm::Bruck, "bruck: DECK_GROUP says so")
            );
            let choice = all.explain("all_reduce", 8).expect("it has a choice");
            assert_eq!(choice.algorithm, Algorithm::Direct);
            assert!(all.explain("barrier", 8).is_none());
            world.finish()
        },
    );
}
