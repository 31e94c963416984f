//! Calls for one value of each member give what the calls on slices give, and both can be mixed.

use udeck::op::{Max, Product, Sum};
use udeck::{Result, World};

use crate::common::{config, ranks_believing};
use crate::networks::late;

fn values(world: World) -> Result {
    let all = world.all()?;
    let (me, size) = (all.rank(), all.size());
    let root = size - 1;
    let values: Vec<u64> = (1..=size as u64).collect();
    let mine = values[me];

    assert_eq!(all.sum(mine)?, values.iter().sum());
    assert_eq!((all.min(mine)?, all.max(mine)?), (1, size as u64));
    let both = all.all_reduce_value([1, mine], |a: [u64; 2], b: [u64; 2]| [a[0] + b[0], a[1] + b[1]])?;
    assert_eq!(both, [size as u64, values.iter().sum()]);
    assert_eq!(all.all_reduce_value(mine, |a, b| a ^ b)?, values.iter().fold(0, |xor, value| xor ^ value));

    let product = all.reduce_value(root, mine, Product)?;
    assert_eq!(product, (me == root).then(|| values.iter().product()));
    assert_eq!(all.broadcast_value(root, (me == root).then_some(mine))?, values[root]);
    assert_eq!(all.gather_value(root, mine)?, if me == root { &values[..] } else { &[] });
    assert_eq!(all.all_gather_value(mine)?, values);
    assert_eq!(all.scan_value(mine, Sum)?, values[..=me].iter().sum());
    let before = all.exscan_value(mine, Sum)?;
    assert_eq!(before, (me > 0).then(|| values[..me].iter().sum()));

    // The forms are one call: some members may make it on a slice.
    let mut most = [mine];
    match me % 2 {
        0 => all.all_reduce(&mut most, Max)?,
        _ => most = [all.max(mine)?],
    }
    assert_eq!(most, [size as u64]);
    world.finish()
}

#[test]
fn values_give_what_slices_give() {
    for size in [1, 2, 3, 5, 17] {
        ranks_believing(size, |_| config(), |_| size > 2, values);
    }
    late::ranks(3, &late::fabric(), &config(), values);
}

#[test]
fn a_value_is_given_by_the_root_alone() {
    let body = |world: World| {
        let all = world.all()?;
        let given = if all.rank() == 0 { None } else { Some(1.5) };
        let words = ["the root has to give a value", "only the root gives a value"][all.rank()];
        let error = all.broadcast_value(0, given).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(all.broadcast_value(2, Some(1.5)).unwrap_err().to_string().contains("no member 2"));
        // Nothing was sent: the group goes on.
        assert_eq!(all.sum(1)?, 2);
        world.finish()
    };
    ranks_believing(2, |_| config(), |_| false, body);
}
