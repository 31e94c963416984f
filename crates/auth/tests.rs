use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

fn master() -> Master {
    Master([1; 32])
}

/// Makes the key of a rank. Ranks 0 to 3 are on one host, 4 and higher on another.
fn rank_key(rank: u32) -> RankKey {
    master().host(rank / 4 * 4).rank(rank)
}

/// The keys of a rank that has looked up names of the ranks `looked_up`.
fn keys(rank: u32, looked_up: &[u32]) -> Keys {
    let keys = Keys::of_rank([7; 32], rank, rank_key(rank));
    for callee in looked_up {
        keys.learn(*callee, &SealedTicket::new((rank, &rank_key(rank)), (*callee, &rank_key(*callee))));
    }
    keys
}

fn prove(pair: &Pair, role: &str) -> Proof {
    pair.prove(b"test 1", role.as_bytes(), &[&[b'c'; 32], &[b'a'; 32]])
}

/// Whether the caller with the keys `caller` and the callee with the keys `callee` arrive at the same proof.
fn meet(caller: &Keys, to: Option<u32>, callee: &Keys) -> bool {
    let asked = caller.call(to).unwrap();
    let Ok(answered) = callee.answer(asked.claim()) else { return false };
    prove(&asked, "caller") == prove(&answered, "caller")
}

/// Expected values come from an implementation in another language (Python's `hmac` and `hashlib`).
#[test]
fn the_schedule_is_as_it_is_written() {
    assert_eq!(master().host(4).0, hex("38102f02b9353523a338f7cac7c9fa7011ed8391e3192c331bc07b9a3aa44ead"));
    assert_eq!(
        master().host(4).control_key().0,
        hex("bcdac8df6a8f6d38702be30d9169fa4c43525c87fe3b5bc74fefe2eec02fab6e")
    );
    assert_eq!(rank_key(5).0, hex("e999e33a4c10fa1a1eb6f4f502dfb4e829dfcf297e5081ca7e4bad7983e8236d"));
    assert_eq!(rank_key(2).0, hex("a5de0dc55813c9a1f502753524e0514b89c12cfbbf419b7f2d3528c36420a265"));
    let ticket = rank_key(5).ticket_of(2);
    assert_eq!(ticket.0, hex("eb38730e5c2867b6a2cf45baf11abc8ce11eed3e13311141afd719b9e097c5a5"));
    let sealed = SealedTicket::new((2, &rank_key(2)), (5, &rank_key(5)));
    assert_eq!(sealed.0, hex("e93fa72f66486f1e13fadf45211b413a06b944f9c6099a2be9159e9f8ca5c18e"));
    assert_eq!(sealed.open(&rank_key(2), 5), ticket);
    let pair = keys(2, &[5]).call(Some(5)).unwrap();
    assert_eq!(
        prove(&pair, "caller"),
        hex("596d68870950d625d2192fce453a47bf75fd6ccf1b93188e240f5a026604e84c")
    );
    assert_eq!(
        keys(2, &[]).reset_key("10.0.0.7:4000"),
        hex("60cfb2a8a2198ef434edebaa266119ce9142fea6d62d2b9f6245937cef7836a4")
    );
    let anybody = Keys::from([7; 32]).call(None).unwrap();
    assert_eq!(
        prove(&anybody, "caller"),
        hex("54238a615f70723366a0fde30c93ad9ba6a95ed62737a14548afd25b7863df6a")
    );
}

#[test]
fn two_ranks_meet_and_each_knows_the_other() {
    let (two, five) = (keys(2, &[5]), keys(5, &[]));
    assert!(meet(&two, Some(5), &five));
    let answered = five.answer(two.call(Some(5)).unwrap().claim()).unwrap();
    assert_eq!((answered.caller(), answered.callee()), (Some(2), Some(5)));
    assert!(meet(&five, Some(5), &five), "itself, without having looked anything up");
    assert!(meet(&two, None, &five), "as somebody of the job");
    assert_eq!(five.answer(two.call(None).unwrap().claim()).unwrap().caller(), None);
}

#[test]
fn a_ticket_proves_one_caller_to_one_callee_in_one_direction() {
    let one = keys(1, &[0, 2, 3, 5]);
    // Rank 1 poses as rank 2, with all that it may know: its own key and all of its tickets.
    let posing = Keys::of_rank([7; 32], 2, rank_key(1));
    for callee in [0, 3, 5] {
        posing.learn(callee, &SealedTicket::new((1, &rank_key(1)), (callee, &rank_key(callee))));
        assert!(meet(&one, Some(callee), &keys(callee, &[])));
        assert!(!meet(&posing, Some(callee), &keys(callee, &[])), "as rank 2 to rank {callee}");
    }
    // Rank 1 is not taken for rank 2 when it is called, either: 3 and 2 share a key that 1 does not know.
    assert!(!meet(&keys(3, &[2]), Some(2), &posing));
    assert_eq!(one.answer(keys(3, &[2]).call(Some(2)).unwrap().claim()).unwrap_err(), NotMe);
    // A ticket of 1 for 3 is not valid for 3 calling 1.
    let there = keys(1, &[3]).call(Some(3)).unwrap();
    let back = keys(3, &[1]).call(Some(1)).unwrap();
    assert_ne!(prove(&there, "caller"), prove(&back, "caller"));
}

#[test]
fn a_sealed_ticket_is_of_use_to_its_rank_only() {
    let sealed = SealedTicket::new((2, &rank_key(2)), (5, &rank_key(5)));
    let thief = Keys::of_rank([7; 32], 2, rank_key(1));
    thief.learn(5, &sealed);
    assert!(!meet(&thief, Some(5), &keys(5, &[])));
}

#[test]
fn who_has_no_ticket_is_told_so() {
    assert_eq!(keys(2, &[]).call(Some(5)).unwrap_err(), NoTicket::NotLookedUp(5));
    assert_eq!(Keys::from([7; 32]).call(Some(5)).unwrap_err(), NoTicket::NoRank);
}

#[test]
fn other_secrets_hosts_and_masters_are_strangers() {
    let other = Keys::of_rank([8; 32], 2, rank_key(2));
    assert!(!meet(&other, None, &keys(5, &[])) && !other.is_same_job(&keys(2, &[])));
    // The node of the first host makes a key for a rank of the second.
    let forged = Keys::of_rank([7; 32], 5, master().host(0).rank(5));
    assert!(!meet(&keys(2, &[5]), Some(5), &forged));
    let elsewhere = Keys::of_rank([7; 32], 5, Master([2; 32]).host(4).rank(5));
    assert!(!meet(&keys(2, &[5]), Some(5), &elsewhere));
}

#[test]
fn a_proof_is_of_all_that_it_is_about() {
    let pair = keys(2, &[5]).call(Some(5)).unwrap();
    let proof = pair.prove(b"tcp 1", b"caller", &[b"ab", b"c"]);
    assert!(pair.check(&proof, b"tcp 1", b"caller", &[b"ab", b"c"]));
    assert!(!pair.check(&proof, b"udp 1", b"caller", &[b"ab", b"c"]));
    assert!(!pair.check(&proof, b"tcp 1", b"callee", &[b"ab", b"c"]), "reflected");
    assert!(!pair.check(&proof, b"tcp 1", b"caller", &[b"a", b"bc"]), "cut elsewhere");
    assert!(!pair.check(&proof, b"tcp 1", b"caller", &[b"ab"]));
    let other = keys(3, &[5]).call(Some(5)).unwrap();
    assert!(!other.check(&proof, b"tcp 1", b"caller", &[b"ab", b"c"]));
}

#[test]
fn nothing_that_is_printed_shows_a_key() {
    let keys = keys(2, &[5]);
    let pair = keys.call(Some(5)).unwrap();
    let shown = format!("{:?} {:?} {keys:?} {pair:?}", master(), rank_key(2));
    assert_eq!(shown, "Master(..) RankKey(..) Keys(of rank 2) Pair(Claim { caller: 2, callee: 5 })");
}

proptest! {
    #[test]
    fn prop_claims_round_trip(bytes: [u8; Claim::LEN]) {
        prop_assert_eq!(Claim::decode(bytes).encode(), bytes);
    }

    /// For any claim: the callee answers only a claim that names itself, and a caller with a rank, or one without both.
    #[test]
    fn prop_any_claim_is_answered_or_refused(bytes: [u8; Claim::LEN], callee in prop::option::of(0..4u32)) {
        let mut claim = Claim::decode(bytes);
        claim.callee = callee.unwrap_or(claim.callee);
        match keys(2, &[]).answer(claim) {
            Ok(pair) => prop_assert_eq!(pair.callee(), pair.caller().map(|_| 2)),
            Err(NotMe) => prop_assert!(claim.callee != 2 || claim.caller == u32::MAX),
        }
    }
}
