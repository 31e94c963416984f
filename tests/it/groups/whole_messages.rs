//! Collective calls on whole messages, which are given away, and read in place.

use udeck::{Packed, Received, World};

use crate::common::{assert_pattern, config, patterned, ranks_believing, ranks_over};

const LEN: usize = 100_000;

fn whole(world: World) -> udeck::Result {
    let (all, size) = (world.all()?, world.size());
    let root = size - 1;
    let me = all.rank();

    let message = (me == root).then(|| patterned::<u16>(&world, 5, LEN)).transpose()?;
    let received = all.broadcast_buf::<u16>(root, message)?;
    assert_eq!((received.source(), received.tag()), (root, 0));
    assert_pattern(&received, 5, LEN);

    // The messages have different lengths, some of them short.
    let len = |from: usize, to: usize| if (from + to).is_multiple_of(2) { LEN } else { from + to };
    let check = |all: &[Received<u16>], to: usize| {
        assert_eq!(all.len(), size);
        all.iter().enumerate().for_each(|(from, message)| {
            assert_eq!(message.source(), from);
            assert_pattern(message, from, len(from, to));
        });
    };
    let gathered = all.gather_buf::<u16>(root, patterned(&world, me, len(me, 1))?)?;
    if me == root {
        check(&gathered, 1)
    } else {
        assert!(gathered.is_empty())
    }
    drop(gathered);
    check(&all.all_gather_buf::<u16>(patterned(&world, me, len(me, 1))?)?, 1);

    let to_each =
        || (0..size).map(|to| patterned(&world, me, len(me, to))).collect::<udeck::Result<Vec<_>>>();
    check(&all.all_to_all_buf::<u16>(to_each()?)?, me);
    let messages = if me == root { Some(to_each()?) } else { None };
    let mine = all.scatter_buf::<u16>(root, messages)?;
    assert_pattern(&mine, root, len(root, me));
    assert_eq!(mine.source(), root);

    let mut message = world.message(200)?;
    message.pack_str(&format!("of {me}"))?.pack(&[me as f64; 3])?;
    for (of, received) in all.all_gather_buf::<Packed>(message)?.into_iter().enumerate() {
        assert_eq!(received.unpack_str()?, format!("of {of}"));
        assert_eq!(received.unpack::<f64>()?, [of as f64; 3]);
    }
    all.barrier()?;
    world.finish()
}

#[test]
fn whole_messages_travel() {
    for size in [1, 2, 3, 6] {
        ranks_believing(size, |_| config(), |_| size > 2, whole);
    }
    ranks_over("tcp", 3, |_| config(), |_| 3 > 2, whole);
}

/// On one host nothing is copied, and the last reader gives the memory back.
#[test]
fn whole_messages_are_not_copied() {
    ranks_believing(
        3,
        |_| config(),
        |_| true,
        |world| {
            let all = world.all()?;
            all.barrier()?;
            let copied = world.stats().bytes_copied;
            let received =
                all.broadcast_buf::<u8>(0, (all.rank() == 0).then(|| world.buf(LEN)).transpose()?)?;
            let mine = (0..3).map(|_| world.buf::<u8>(LEN)).collect::<udeck::Result<Vec<_>>>()?;
            let parts = all.all_to_all_buf::<u8>(mine)?;
            assert_eq!(world.stats().bytes_copied, copied);
            assert_eq!((received.len(), parts.len()), (LEN, 3));
            all.barrier()?;
            world.finish()
        },
    );
}

/// Elements are moved if the place of a short message is not aligned for them.
#[test]
fn short_messages_are_aligned() {
    ranks_believing(
        2,
        |_| config(),
        |_| false,
        |world| {
            let all = world.all()?;
            let mut mine = world.buf::<u128>(2)?;
            mine.fill(all.rank() as u128 + 7);
            for (of, received) in all.all_gather_buf::<u128>(mine)?.into_iter().enumerate() {
                assert_eq!(received[..], [of as u128 + 7; 2]);
                assert!(received.as_ptr().is_aligned());
            }
            let mut sum = [all.rank() as u128; 2];
            all.all_reduce(&mut sum, udeck::op::Sum)?;
            assert_eq!(sum, [1; 2]);
            all.barrier()?;
            world.finish()
        },
    );
}
