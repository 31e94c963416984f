//! A process that was let into the job as one rank and says that it is another: no mailbox believes it, over any transport.

use std::os::unix::net::UnixStream;

use crate::common::{LONG, assert_pattern, config, over_verbs_apart, patterned};
use udeck::via::auth::{Keys, RankKey, SealedTicket};
use udeck::via::{Cq, Deadline, NetAddress, Nic, Receive, Reliability, Vi, ViAttributes};
use udeck::{Mailbox, NicOptions, Postbox, Protocol, World};
use udeck_boot::{Client, local::Job};

/// What postboxes say, as `crates/deck/wire.rs` has it.
const EAGER: u8 = 1;
/// Who is posed as, and the number of that rank's only postbox.
const HONEST: u32 = 2;
const POSTBOX: u32 = 0;

/// Rank 0 with its mailbox, rank 1 as a bare NIC, rank 2 with its postbox.
struct Scene {
    inbox: Mailbox<u8>,
    out: Postbox<u8>,
    owner: World,
    honest: World,
    /// Rank 1's connection to the launcher, and the ticket for rank 0 that it has by that.
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

    /// Rank 2 posts, and rank 0 gets that and nothing else: from rank 2.
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

    /// Connects to the mailbox by these keys, with this to say for itself, and posts if that is let in.
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
        // In what it says of itself, as versions before had it: rank, postbox, pair.
        assert!(!self.intrude(own(), Some(0), &[HONEST, POSTBOX, 0], control));
        self.honest_posts(1);
        // As nobody in particular, with the job's secret alone.
        let anybody = Keys::from(self.rogue.welcome().secret);
        assert!(!self.intrude(own(), None, &[POSTBOX, 0], control));
        assert!(!self.intrude(anybody, None, &[POSTBOX, 0], control));
        self.honest_posts(2);
        // In the hand-shake, with all that it knows. Who is called proves itself first, and this library believes it as little; one
        // that looks away is met in the transports' own tests of their hand-shakes.
        let key = self.rogue.welcome().key;
        let posing = Keys::of_rank(self.rogue.welcome().secret, HONEST, key);
        // A ticket of its own making, or it would get no further than its own library.
        posing.learn(0, &SealedTicket::new((HONEST, &key), (0, &key)));
        posing.learn(0, &self.ticket);
        assert!(!self.intrude(posing.clone(), None, &[POSTBOX, 0], control));
        assert!(!self.intrude(posing, Some(0), &[POSTBOX, 0], control));
        self.honest_posts(3);
        // The data VI of rank 2's postbox is rank 2's to make.
        assert!(!self.intrude(own(), Some(0), &[POSTBOX, 1], Reliability::Reception));
        assert!(!self.intrude(own(), Some(0), &[HONEST, POSTBOX, 1], Reliability::Reception));
        self.honest_posts(4);
        // As itself it is welcome.
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
    if over_verbs_apart("posing::nobody_poses_as_another_rank_over_verbs") {
        Scene::over("verbs").play();
    }
}

/// A world whose NIC proves to be somebody else would be heard by nobody: that is said at once.
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
