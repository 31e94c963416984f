//! Posing: a process that was admitted to the job as one rank claims to be another. No mailbox believes it, over any
//! transport.

use std::os::unix::net::UnixStream;

use crate::common::{LONG, assert_pattern, config, over_verbs_apart, patterned};
use udeck::via::auth::{Keys, RankKey, SealedTicket};
use udeck::via::{Cq, Deadline, NetAddress, Nic, Receive, Reliability, Vi, ViAttributes};
use udeck::{Mailbox, NicOptions, Postbox, Protocol, World};
use udeck_boot::{Client, local::Job};

/// Message kind of a postbox, from `crates/deck/wire.rs`.
const EAGER: u8 = 1;
/// The rank that the intruder poses as, and the number of that rank's only postbox.
const HONEST: u32 = 2;
const POSTBOX: u32 = 0;

/// Rank 0 with its mailbox, rank 1 as a bare NIC, rank 2 with its postbox.
struct Scene {
    inbox: Mailbox<u8>,
    out: Postbox<u8>,
    owner: World,
    honest: World,
    /// Rank 1's connection to the launcher, and its ticket for rank 0, which it got there.
    rogue: Client,
    ticket: SealedTicket,
    transport: &'static str,
    _job: Job,
}

impl Scene {
    fn over(transport: &'static str) -> Scene {
        let (job, streams) = Job::new(3).expect("a name service");
        let [owner, rogue, honest] = <[UnixStream; 3]>::try_from(streams).expect("three ranks");
        let world = |stream| -> (World, RankKey) {
            let client = Client::new(stream).expect("a rank");
            let (key, nic) = (client.welcome().key, nic(transport, client.keys()));
            (World::new(client, vec![nic], config(), true).expect("its own NIC"), key)
        };
        let ((owner, its_key), (honest, _)) = (world(owner), world(honest));
        let inbox = owner.mailbox::<u8>("in").expect("the name is free");
        let out = honest.postbox::<u8>("in").expect("rank 2 is let in");
        let rogue = Client::new(rogue).expect("a rank");
        rogue.lookup("in", false, Deadline::after(LONG).instant()).expect("it is there");
        let ticket = SealedTicket::new((1, &rogue.welcome().key), (0, &its_key));
        Scene { inbox, out, owner, honest, rogue, ticket, transport, _job: job }
    }

    fn address(&self) -> NetAddress {
        NetAddress { host: self.owner.nic().attributes().address.clone(), discriminator: b"in".to_vec() }
    }

    /// Rank 2 posts, and rank 0 gets this message and no other one, from rank 2.
    fn honest_posts(&self, seed: usize) {
        let protocols = [Protocol::Auto, Protocol::Copy];
        for (at, protocol) in protocols.into_iter().enumerate() {
            let seed = 2 * seed + at;
            self.out.post_with(protocol, patterned(&self.honest, seed, 3000).unwrap()).unwrap();
            let received = self.inbox.retrieve().unwrap();
            assert_pattern(&received, seed, 3000);
            assert_eq!(received.source(), HONEST as usize);
        }
    }

    /// Connects to the mailbox with these keys and this introduction, and posts if it is admitted.
    fn intrude(&self, keys: Keys, peer: Option<u32>, introduction: &[u32], reliability: Reliability) -> bool {
        let nic = nic(self.transport, keys);
        let mut attributes = ViAttributes::new(nic.ptag());
        (attributes.reliability, attributes.peer) = (reliability, peer);
        attributes.receive = Receive::Lent;
        let (cq, mut vi) = (Cq::new(&nic).unwrap(), Vi::new(&nic, attributes).unwrap());
        let words: Vec<u8> = introduction.iter().flat_map(|word| word.to_le_bytes()).collect();
        let handle = cq.handle();
        let asked = vi.connect(&self.address(), &handle, &handle, &words, Deadline::after(LONG));
        if asked.is_ok() && reliability == Reliability::Delivery {
            vi.send_inline(Some(0), &[EAGER, 0, 0, 0, 0, 0, 0, 0], b"forged").unwrap();
            let received = self.inbox.retrieve().unwrap();
            assert_eq!((&received[..], received.source()), (&b"forged"[..], 1), "over {}", self.transport);
        }
        asked.is_ok()
    }

    fn play(&self) {
        self.honest_posts(0);
        let own = || self.rogue.keys();
        let control = Reliability::Delivery;
        // The first claim is in the introduction, as in earlier versions: rank, postbox, pair.
        assert!(!self.intrude(own(), Some(0), &[HONEST, POSTBOX, 0], control));
        self.honest_posts(1);
        // The next claim names no rank, and proves only the job's secret.
        let anybody = Keys::from(self.rogue.welcome().secret);
        assert!(!self.intrude(own(), None, &[POSTBOX, 0], control));
        assert!(!self.intrude(anybody, None, &[POSTBOX, 0], control));
        self.honest_posts(2);
        // The next claim is in the handshake, with all that rank 1 knows. The called side proves itself first, and this library
        // does not believe it; the transports' own tests of their handshakes have a library that does not check.
        let key = self.rogue.welcome().key;
        let posing = Keys::of_rank(self.rogue.welcome().secret, HONEST, key);
        // The intruder makes a ticket of its own, otherwise its own library would refuse.
        posing.learn(0, &SealedTicket::new((HONEST, &key), (0, &key)));
        posing.learn(0, &self.ticket);
        assert!(!self.intrude(posing.clone(), None, &[POSTBOX, 0], control));
        assert!(!self.intrude(posing, Some(0), &[POSTBOX, 0], control));
        self.honest_posts(3);
        // Only rank 2 may make the data VI of its postbox.
        assert!(!self.intrude(own(), Some(0), &[POSTBOX, 1], Reliability::Reception));
        assert!(!self.intrude(own(), Some(0), &[HONEST, POSTBOX, 1], Reliability::Reception));
        self.honest_posts(4);
        // The intruder is admitted under its own rank.
        assert!(self.intrude(own(), Some(0), &[POSTBOX, 0], control));
    }
}

fn nic(transport: &str, keys: Keys) -> Nic {
    let mut options = NicOptions::new(keys);
    options.arena = Some(16 << 20);
    udeck::open_nic(&format!("{transport}0"), &options).expect("a NIC")
}

#[test]
fn nobody_poses_as_another_rank_over_shm() {
    Scene::over("shm").play();
}

#[test]
fn nobody_poses_as_another_rank_over_tcp() {
    Scene::over("tcp").play();
}

#[test]
fn nobody_poses_as_another_rank_over_udp() {
    Scene::over("udp").play();
}

#[test]
fn nobody_poses_as_another_rank_over_verbs() {
    if over_verbs_apart("hostile::posing::nobody_poses_as_another_rank_over_verbs") {
        Scene::over("verbs").play();
    }
}

/// A world whose NIC proves another rank could not communicate with anybody: the error comes at once.
#[test]
fn a_world_has_nics_of_its_own_rank() {
    let (_job, streams) = Job::new(2).expect("a name service");
    let clients: Vec<_> = streams.into_iter().map(|stream| Client::new(stream).expect("a rank")).collect();
    let others = nic("shm", clients[1].keys());
    let nobodys = nic("shm", Keys::from(clients[0].welcome().secret));
    let mut clients = clients.into_iter();
    let error = World::new(clients.next().unwrap(), vec![others], config(), true).unwrap_err();
    assert!(error.to_string().contains("keys of rank 0"), "{error}");
    let error = World::new(clients.next().unwrap(), vec![nobodys], config(), true).unwrap_err();
    assert!(error.to_string().contains("keys of rank 1"), "{error}");
}
