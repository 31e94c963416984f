//! Families: mailboxes by name and rank.

use crate::common::{SHORT, alone, are_crowded, config, ranks, ranks_over};
use udeck::{Error, MailboxOptions, Packed, Postbox, ServiceLevel, WithTag};

#[test]
fn each_rank_has_a_mailbox_of_the_name_and_is_found_by_its_number() {
    for transport in ["shm", "tcp", "udp"] {
        ranks_over(
            transport,
            3,
            |_| config(),
            are_crowded,
            |world| {
                let (rank, size) = (world.rank(), world.size());
                let halo = world.mailboxes::<f64>("halo")?;
                assert_eq!(halo.name(), "halo");
                let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
                for neighbour in [left, right] {
                    let out = world.postbox_of("halo", neighbour)?;
                    assert_eq!(out.name(), "halo");
                    out.post(&[rank as f64, neighbour as f64])?;
                }
                for neighbour in [right, left] {
                    assert_eq!(*halo.retrieve_from(neighbour)?, [neighbour as f64, rank as f64]);
                }
                // Order holds within a postbox only: the messages of these come when the first ones were taken.
                world.barrier()?;
                let all: Vec<Postbox<f64>> = world.postboxes("halo")?;
                for (to, out) in all.iter().enumerate() {
                    out.post([to as f64].with_tag(7))?;
                }
                for from in 0..size {
                    let received = halo.retrieve_from(from)?;
                    assert_eq!((received.tag(), &*received), (7, &[rank as f64][..]));
                }
                world.barrier()?;
                world.finish()
            },
        );
    }
}

#[test]
fn a_member_has_options_of_its_own_and_its_postboxes_a_level_and_a_limit() {
    ranks(2, |world| {
        let rank = world.rank();
        let depth = rank as u32 + 1;
        let _halo = world.mailboxes_with::<u8>("halo", &MailboxOptions::new().depth(depth))?;
        let outs: Vec<Postbox<u8>> = world.postboxes_timeout("halo", config().setup)?;
        world.barrier()?;
        // One message of each postbox may wait for rank 0, and two for rank 1.
        for place in 0..2 {
            let posted = outs[1 - rank].try_post(&[place]);
            assert_eq!(posted.is_ok(), usize::from(place) < 2 - rank, "message {place} of rank {rank}");
        }
        let first = ServiceLevel::new(1).unwrap();
        assert_eq!(world.postbox_of_at::<u8>("halo", 1 - rank, first)?.route().level.level, first);
        let error = world.postboxes_timeout::<u8>("rows", SHORT).map(drop).unwrap_err();
        assert!(error.to_string().contains("named \"rows\" of rank 0"), "{error}");
        world.barrier()?;
        world.finish()
    });
}

#[test]
fn errors_name_the_family_and_the_rank() {
    ranks(2, |world| {
        let rank = world.rank();
        let mine = world.mailboxes::<u8>("halo")?;
        let Err(error) = world.mailboxes::<u8>("halo") else { panic!("it has one") };
        assert!(
            matches!(&error, Error::NameTaken { name, rank: r } if name == "halo" && *r == rank),
            "{error}"
        );
        let _plain = (rank == 0).then(|| world.mailbox::<u8>("sums")).transpose()?;
        world.barrier()?;

        let error = world.postbox_of_timeout::<u8>("rows", 1 - rank, SHORT).unwrap_err();
        let Error::NoSuchMailbox { name, rank: of, existing, .. } = &error else { panic!("{error}") };
        assert_eq!(
            (name.as_str(), *of, &existing[..]),
            ("rows", Some(1 - rank), &["halo of ranks 0-1".into(), "sums".into()][..])
        );
        assert!(error.to_string().contains(&format!("named \"rows\" of rank {}", 1 - rank)), "{error}");
        // A family and a single mailbox of the same name do not meet.
        let error = world.try_postbox::<u8>("halo").unwrap_err();
        assert!(error.to_string().contains("there are: halo of ranks 0-1, sums"), "{error}");
        assert!(world.postbox_of_timeout::<u8>("sums", 0, SHORT).is_err());
        let error = world.postbox_of::<u8>("halo", 2).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 2, size: 2 }), "{error}");
        let error = world.postbox_of::<Packed>("halo", 1 - rank).unwrap_err();
        assert!(error.to_string().starts_with("mailbox \"halo\" carries u8"), "{error}");

        let error = mine.retrieve_timeout(SHORT).unwrap_err();
        assert!(error.to_string().starts_with("retrieving from mailbox \"halo\""), "{error}");
        let out = world.postbox_of::<u8>("halo", 1 - rank)?;
        world.barrier()?;
        drop(mine);
        world.barrier()?;
        let error = out.post(&[1]).unwrap_err().error;
        assert!(
            matches!(&error, Error::MailboxGone { name, rank: r } if name == "halo" && *r == 1 - rank),
            "{error}"
        );
        world.finish()
    });
}

#[test]
fn a_member_that_is_gone_can_be_made_again_and_names_may_be_long() {
    let world = alone(4 << 20);
    let name = "n".repeat(200);
    for _ in 0..2 {
        let inbox = world.mailboxes::<u8>(&name).unwrap();
        world.postbox_of(&name, 0).unwrap().post(&[1_u8]).unwrap();
        assert_eq!(*inbox.retrieve().unwrap(), [1]);
    }
    for bad in ["", "a\nb", &"n".repeat(201)] {
        assert!(matches!(world.mailboxes::<u8>(bad), Err(Error::BadName { .. })), "{bad:?}");
        assert!(matches!(world.postbox_of::<u8>(bad, 0), Err(Error::BadName { .. })), "{bad:?}");
    }
}
