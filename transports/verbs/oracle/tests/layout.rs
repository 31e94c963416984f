//! Comparison of every structure and constant of ours with the header's.

use udeck_verbs_oracle::{Layout, ask, differences, ours, standins};

fn compare(layouts: Vec<Layout>, constants: Vec<(String, String)>) {
    let verdict = ask(&layouts, &constants);
    let mut problems = differences(&layouts, &verdict);
    let wrong = constants.iter().filter(|(name, _)| verdict.constants.get(name) != Some(&true));
    problems.extend(wrong.map(|(name, value)| format!("{name} is not {value}")));
    let fields: usize = layouts.iter().map(|layout| layout.fields.len()).sum();
    println!("compared {} structures, {fields} fields, {} constants", layouts.len(), constants.len());
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_transports_structures_are_the_compilers() {
    compare(ours::layouts(), ours::constants());
}

#[test]
fn the_stand_ins_structures_are_the_compilers() {
    compare(standins::layouts(), standins::constants());
}

/// Bindgen's structures are compared the same way, and each of our fields has to lie where theirs does.
#[cfg(feature = "bindgen")]
#[test]
fn the_structures_are_bindgens() {
    use udeck_verbs_oracle::{Verdict, bindgens};
    let mut verdict = Verdict::default();
    for layout in bindgens::layouts() {
        verdict.structures.insert(layout.name.into(), (layout.size, layout.align));
        for field in layout.fields {
            let place = (field.place.offset, field.place.size);
            verdict.fields.insert((layout.name.into(), field.name), place);
        }
    }
    println!("compared with {} structures of bindgen's", verdict.structures.len());
    for mut layouts in [ours::layouts(), standins::layouts()] {
        // `ibverbs-sys` knows nothing of librdmacm.
        layouts.retain(|layout| !layout.name.starts_with("rdma_"));
        let mut problems = differences(&layouts, &verdict);
        let private = |problem: &str| {
            let unknown = |field: &&str| problem.starts_with(&format!("ibv_wc.{field}: offset and size None"));
            bindgens::PRIVATE.iter().any(|field| unknown(&field))
        };
        problems.retain(|problem| !private(problem));
        assert!(problems.is_empty(), "{problems:#?}");
    }
    println!("not compared, because ibverbs-sys hides them: {:?} of ibv_wc", bindgens::PRIVATE);
}

mod trial {
    //! Tests of the oracle itself: it has to notice differences.

    use udeck_verbs_oracle::{ask, differences, layout};

    #[repr(C)]
    struct Shifted {
        addr: u64,
        lkey: u32,
        length: u32,
    }

    #[repr(C)]
    struct Short {
        addr: u64,
        length: u32,
    }

    #[test]
    fn swapped_fields_and_missing_ones_are_noticed() {
        let swapped = [layout!(whole Shifted as "ibv_sge" { addr, lkey, length })];
        let problems = differences(&swapped, &ask(&swapped, &[]));
        assert_eq!(problems.len(), 2, "{problems:?}");
        let short = [layout!(whole Short as "ibv_recv_wr" { addr = "wr_id", length = "num_sge" })];
        let problems = differences(&short, &ask(&short, &[]));
        assert!(problems.len() >= 2, "{problems:?}");
        let hole = [layout!(whole Shifted as "ibv_sge" { addr, length = "lkey" })];
        let problems = differences(&hole, &ask(&hole, &[]));
        assert!(problems.iter().any(|problem| problem.contains("lies before")), "{problems:?}");
    }

    #[test]
    fn a_wrong_constant_is_noticed() {
        let verdict =
            ask(&[], &[("IBV_WR_SEND".into(), "2".into()), ("IBV_WR_RDMA_READ".into(), "3".into())]);
        let answers: Vec<_> = verdict.constants.into_values().collect();
        assert_eq!(answers, [false, true], "in the order of their names");
    }
}
