//! A root and a node convince each other that they know the job's secret, before anything else is said.
//!
//! Sans-I/O: each side is fed records and says what to send. The root proves itself first, so that a stranger who listens
//! at the root's old address learns nothing that a node would do for it; the proofs differ in their role and cover both
//! nonces, so that none can be used twice, elsewhere, or by the other side. From the same the connection's [`Keys`] are made.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::seal::{Direction, Keys};
use super::wire::{CHALLENGE_LEN, Challenge, HELLO_LEN, Hello, PROOF_LEN, VERSION};

/// Why the other side is not who it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not speak deckrun's protocol")]
    Stranger,
    #[error(
        "it speaks version {theirs} of deckrun's protocol and this is version {VERSION}: use one release on all hosts"
    )]
    Version { theirs: u32 },
    #[error("it does not know this job's secret")]
    Secret,
    #[error("it took its time to prove itself while others waited")]
    Slow,
}

/// Why, and what to answer nevertheless.
pub(crate) type Refused = (Refusal, Option<[u8; CHALLENGE_LEN]>);

/// The node's side.
pub(crate) struct Node {
    secret: [u8; 32],
    index: u32,
    nonce: [u8; 32],
}

impl Node {
    /// And its first record.
    pub(crate) fn new(secret: [u8; 32], index: u32, nonce: [u8; 32]) -> (Node, [u8; HELLO_LEN]) {
        let hello = Hello { version: VERSION, index, nonce };
        (Node { secret, index, nonce }, hello.encode())
    }

    /// The root has proved itself: the proof to send, and the keys for what follows it.
    pub(crate) fn prove(&self, challenge: &[u8; CHALLENGE_LEN]) -> Result<([u8; PROOF_LEN], Keys), Refusal> {
        let Challenge { version, nonce, mac } = Challenge::decode(challenge).ok_or(Refusal::Stranger)?;
        if version != VERSION {
            return Err(Refusal::Version { theirs: version });
        }
        check(&self.secret, ROOT, self.index, &self.nonce, &nonce, &mac)?;
        let proof = digest(&self.secret, NODE, self.index, &self.nonce, &nonce);
        let key = |role| Direction::new(digest(&self.secret, role, self.index, &self.nonce, &nonce));
        Ok((proof, Keys { outgoing: key(NODE_FRAMES), incoming: key(ROOT_FRAMES) }))
    }
}

/// The root's side, for one connection.
pub(crate) struct Root {
    secret: [u8; 32],
    index: u32,
    node_nonce: [u8; 32],
    nonce: [u8; 32],
}

impl Root {
    /// Answers a node's first record. With an error the answer tells a node of another version which one this is.
    pub(crate) fn answer(
        secret: [u8; 32],
        nonce: [u8; 32],
        hello: &[u8; HELLO_LEN],
    ) -> Result<(Root, [u8; CHALLENGE_LEN]), Refused> {
        let Some(Hello { version, index, nonce: node_nonce }) = Hello::decode(hello) else {
            return Err((Refusal::Stranger, None));
        };
        if version != VERSION {
            let ours = Challenge { version: VERSION, nonce: [0; 32], mac: [0; 32] };
            return Err((Refusal::Version { theirs: version }, Some(ours.encode())));
        }
        let mac = digest(&secret, ROOT, index, &node_nonce, &nonce);
        let challenge = Challenge { version: VERSION, nonce, mac };
        Ok((Root { secret, index, node_nonce, nonce }, challenge.encode()))
    }

    /// Which host the node is, once it has proved itself, and the keys for what follows.
    pub(crate) fn check(&self, proof: &[u8; PROOF_LEN]) -> Result<(u32, Keys), Refusal> {
        check(&self.secret, NODE, self.index, &self.node_nonce, &self.nonce, proof)?;
        let key =
            |role| Direction::new(digest(&self.secret, role, self.index, &self.node_nonce, &self.nonce));
        Ok((self.index, Keys { outgoing: key(ROOT_FRAMES), incoming: key(NODE_FRAMES) }))
    }
}

const ROOT: &[u8] = b"deckrun root";
const NODE: &[u8] = b"deckrun node";
const ROOT_FRAMES: &[u8] = b"deckrun root's frames";
const NODE_FRAMES: &[u8] = b"deckrun node's frames";

fn check(
    secret: &[u8; 32],
    role: &[u8],
    index: u32,
    node: &[u8; 32],
    root: &[u8; 32],
    mac: &[u8; 32],
) -> Result<(), Refusal> {
    // Takes as long whichever bytes differ.
    code(secret, role, index, node, root).verify_slice(mac).map_err(|_| Refusal::Secret)
}

fn digest(secret: &[u8; 32], role: &[u8], index: u32, node: &[u8; 32], root: &[u8; 32]) -> [u8; 32] {
    code(secret, role, index, node, root).finalize().into_bytes().into()
}

fn code(secret: &[u8; 32], role: &[u8], index: u32, node: &[u8; 32], root: &[u8; 32]) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    hmac.update(role);
    hmac.update(&VERSION.to_le_bytes());
    hmac.update(&index.to_le_bytes());
    hmac.update(node);
    hmac.update(root);
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    impl std::fmt::Debug for Keys {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Keys")
        }
    }

    /// What the root makes of a node that has `secret`; `alter` changes what the node sends.
    fn meet(secret: [u8; 32], alter: impl Fn(&mut [u8])) -> Result<u32, Refusal> {
        let (node, mut hello) = Node::new(secret, 3, [1; 32]);
        alter(&mut hello);
        let (root, challenge) = Root::answer(SECRET, [2; 32], &hello).map_err(|(why, _)| why)?;
        let (mut proof, _) = node.prove(&challenge)?;
        alter(&mut proof);
        root.check(&proof).map(|(index, _)| index)
    }

    #[test]
    fn those_who_know_the_secret_meet() {
        assert_eq!(meet(SECRET, |_| {}), Ok(3));
    }

    #[test]
    fn both_sides_have_the_same_keys_for_this_connection_and_no_other() {
        let meet = |nonce| {
            let (node, hello) = Node::new(SECRET, 3, [1; 32]);
            let Ok((root, challenge)) = Root::answer(SECRET, nonce, &hello) else { panic!() };
            let (proof, at_node) = node.prove(&challenge).unwrap();
            (root.check(&proof).unwrap().1, at_node)
        };
        let seal = |mut direction: Direction| direction.seal(&1).unwrap();
        let codes = |(root, node): (Keys, Keys)| {
            [root.outgoing, node.incoming, node.outgoing, root.incoming].map(seal)
        };
        let ([down, down_there, up, up_here], [down_again, _, up_again, _]) =
            (codes(meet([2; 32])), codes(meet([3; 32])));
        assert_eq!((&down, &up), (&down_there, &up_here));
        assert!(down != up && down != down_again && up != up_again && down_again != up_again);
    }

    #[test]
    fn each_side_notices_a_stranger() {
        assert_eq!(meet([8; 32], |_| {}), Err(Refusal::Secret));
        let (_, hello) = Node::new([8; 32], 0, [1; 32]);
        let Ok((root, _)) = Root::answer(SECRET, [2; 32], &hello) else { panic!() };
        assert_eq!(root.check(&[0; 32]).unwrap_err(), Refusal::Secret);
        assert!(matches!(Root::answer(SECRET, [2; 32], &[0; 48]), Err((Refusal::Stranger, None))));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        for at in 0..HELLO_LEN {
            let changed = meet(SECRET, |record| {
                // Of the proof, too, as far as it reaches.
                if let Some(byte) = record.get_mut(at) {
                    *byte ^= 1;
                }
            });
            assert!(changed.is_err(), "byte {at}: {changed:?}");
        }
    }

    #[test]
    fn a_proof_is_no_good_a_second_time() {
        let (node, hello) = Node::new(SECRET, 0, [1; 32]);
        let Ok((root, challenge)) = Root::answer(SECRET, [2; 32], &hello) else { panic!() };
        let (proof, _) = node.prove(&challenge).unwrap();
        assert_eq!(root.check(&proof).unwrap().0, 0);
        let Ok((again, _)) = Root::answer(SECRET, [3; 32], &hello) else { panic!() };
        assert_eq!(again.check(&proof).unwrap_err(), Refusal::Secret);
        // Nor is the root's own, sent back.
        let mac = challenge[48..].try_into().unwrap();
        assert_eq!(root.check(mac).unwrap_err(), Refusal::Secret);
    }

    #[test]
    fn versions_that_differ_are_said_on_both_sides() {
        let (node, mut hello) = Node::new(SECRET, 0, [1; 32]);
        hello[8] = 99;
        let Err((why, Some(answer))) = Root::answer(SECRET, [2; 32], &hello) else { panic!() };
        assert_eq!(why, Refusal::Version { theirs: 99 });
        let mut answer = answer;
        answer[8] = 98;
        assert_eq!(node.prove(&answer).unwrap_err(), Refusal::Version { theirs: 98 });
    }
}
