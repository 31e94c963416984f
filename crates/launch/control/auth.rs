//! Authentication of a root and a node: each proves that it knows the host's control key, before anything else
//! is sent. The launcher has the key, and the node gets it by its agent's input. It cannot be derived from the
//! job's secret, which all ranks know.
//!
//! Sans-I/O: each side is fed records and returns what to send. The root proves itself first: a stranger who
//! listens at the root's old address learns nothing that a node would do for it. The proofs differ in their
//! role and cover both nonces; none can be used twice, on another connection, or by the other side. The
//! connection's [`Keys`] are made from the same values.

use udeck_auth::{ControlKey, Nonce, Proof, is_same, mac};

use super::seal::{Direction, Keys};
use super::wire::{CHALLENGE_LEN, Challenge, HELLO_LEN, Hello, PROOF_LEN, VERSION};

/// Reasons to reject the other side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("it does not speak deckrun's protocol")]
    Stranger,
    #[error(
        "it speaks version {theirs} of deckrun's protocol and this is version {VERSION}: use one release on all hosts"
    )]
    Version { theirs: u32 },
    #[error("it does not know the key that this job's deckruns share")]
    Key,
    #[error("it did not prove itself in time while other connections waited")]
    Slow,
}

/// The reason, and the record to send nevertheless.
pub(crate) type Rejected = (AuthError, Option<[u8; CHALLENGE_LEN]>);

/// The node's side.
pub(crate) struct NodeAuth {
    key: ControlKey,
    index: u32,
    nonce: [u8; 32],
}

impl NodeAuth {
    /// Makes the node's side, and its first record.
    pub(crate) fn new(key: ControlKey, index: u32, nonce: [u8; 32]) -> (NodeAuth, [u8; HELLO_LEN]) {
        let hello = Hello { version: VERSION, index, nonce };
        (NodeAuth { key, index, nonce }, hello.encode())
    }

    /// Checks the root's proof, and returns the node's proof to send and the keys for later frames.
    pub(crate) fn prove(
        &self,
        challenge: &[u8; CHALLENGE_LEN],
    ) -> Result<([u8; PROOF_LEN], Keys), AuthError> {
        let Challenge { version, nonce, mac } = Challenge::decode(challenge).ok_or(AuthError::Stranger)?;
        if version != VERSION {
            return Err(AuthError::Version { theirs: version });
        }
        let meeting = Meeting { key: self.key, index: self.index, node: self.nonce, root: nonce };
        meeting.check(ROOT, &mac)?;
        let proof = meeting.proof(NODE);
        let key = |role| Direction::new(meeting.proof(role));
        Ok((proof, Keys { outgoing: key(NODE_FRAMES), incoming: key(ROOT_FRAMES) }))
    }
}

/// The root's side, for one connection.
pub(crate) struct RootAuth(Meeting);

impl RootAuth {
    /// Answers a node's first record; `keys` are those of all hosts that have a node. With an error, the answer
    /// tells a node of another version which version this is.
    pub(crate) fn answer(
        keys: &[ControlKey],
        nonce: [u8; 32],
        hello: &[u8; HELLO_LEN],
    ) -> Result<(RootAuth, [u8; CHALLENGE_LEN]), Rejected> {
        let Some(Hello { version, index, nonce: node_nonce }) = Hello::decode(hello) else {
            return Err((AuthError::Stranger, None));
        };
        if version != VERSION {
            let ours = Challenge { version: VERSION, nonce: [0; 32], mac: [0; 32] };
            return Err((AuthError::Version { theirs: version }, Some(ours.encode())));
        }
        let Some(&key) = keys.get(index as usize) else { return Err((AuthError::Stranger, None)) };
        let meeting = Meeting { key, index, node: node_nonce, root: nonce };
        let challenge = Challenge { version: VERSION, nonce, mac: meeting.proof(ROOT) };
        Ok((RootAuth(meeting), challenge.encode()))
    }

    /// Checks the node's proof, and returns the host's index and the keys for later frames.
    pub(crate) fn check(&self, proof: &[u8; PROOF_LEN]) -> Result<(u32, Keys), AuthError> {
        let RootAuth(meeting) = self;
        meeting.check(NODE, proof)?;
        let key = |role| Direction::new(meeting.proof(role));
        Ok((meeting.index, Keys { outgoing: key(ROOT_FRAMES), incoming: key(NODE_FRAMES) }))
    }
}

const ROOT: &str = "deckrun root";
const NODE: &str = "deckrun node";
const ROOT_FRAMES: &str = "deckrun root's frames";
const NODE_FRAMES: &str = "deckrun node's frames";

/// Values that both sides know of one connection after their first records.
struct Meeting {
    key: ControlKey,
    index: u32,
    node: Nonce,
    root: Nonce,
}

impl Meeting {
    /// Returns the proof that `role` knows the key, for this connection only; or the key of the frames that it
    /// sends.
    fn proof(&self, role: &str) -> Proof {
        let (version, index) = (VERSION.to_le_bytes(), self.index.to_le_bytes());
        mac(self.key.as_bytes(), role, &[&version, &index, &self.node, &self.root])
    }

    fn check(&self, role: &str, proof: &Proof) -> Result<(), AuthError> {
        if is_same(&self.proof(role), proof) { Ok(()) } else { Err(AuthError::Key) }
    }
}

#[cfg(test)]
mod tests {
    use udeck_auth::HostKey;
    use udeck_boot::{
        Host,
        server::{Config, Server},
        wire::{Call, Maker, Request, VERSION as BOOT_VERSION, encode},
    };

    use super::*;

    fn key(of: u8) -> ControlKey {
        HostKey::from_bytes([of; 32]).control_key()
    }

    /// Returns the control keys of four hosts.
    fn keys() -> [ControlKey; 4] {
        [7, 17, 27, 37].map(key)
    }

    impl std::fmt::Debug for Keys {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Keys")
        }
    }

    /// Returns the root's result for a node of host 3 that has `key`; `alter` changes the records that the node
    /// sends.
    fn meet(key: ControlKey, alter: impl Fn(&mut [u8])) -> Result<u32, AuthError> {
        let (node, mut hello) = NodeAuth::new(key, 3, [1; 32]);
        alter(&mut hello);
        let (root, challenge) = RootAuth::answer(&keys(), [2; 32], &hello).map_err(|(why, _)| why)?;
        let (mut proof, _) = node.prove(&challenge)?;
        alter(&mut proof);
        root.check(&proof).map(|(index, _)| index)
    }

    #[test]
    fn those_who_know_the_key_meet() {
        assert_eq!(meet(key(37), |_| {}), Ok(3));
    }

    #[test]
    fn both_sides_have_the_same_keys_for_this_connection_and_no_other() {
        let meet = |nonce| {
            let (node, hello) = NodeAuth::new(key(37), 3, [1; 32]);
            let Ok((root, challenge)) = RootAuth::answer(&keys(), nonce, &hello) else { panic!() };
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
        assert_eq!(meet(key(8), |_| {}), Err(AuthError::Key));
        assert_eq!(meet(key(7), |_| {}), Err(AuthError::Key), "the node of another host");
        let (_, beyond) = NodeAuth::new(key(7), 4, [1; 32]);
        assert!(matches!(RootAuth::answer(&keys(), [2; 32], &beyond), Err((AuthError::Stranger, None))));
        let (_, hello) = NodeAuth::new(key(8), 0, [1; 32]);
        let Ok((root, _)) = RootAuth::answer(&keys(), [2; 32], &hello) else { panic!() };
        assert_eq!(root.check(&[0; 32]).unwrap_err(), AuthError::Key);
        assert!(matches!(RootAuth::answer(&keys(), [2; 32], &[0; 48]), Err((AuthError::Stranger, None))));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        for at in 0..HELLO_LEN {
            let changed = meet(key(37), |record| {
                // The proof is changed, too, if it has a byte at this place.
                if let Some(byte) = record.get_mut(at) {
                    *byte ^= 1;
                }
            });
            assert!(changed.is_err(), "byte {at}: {changed:?}");
        }
    }

    #[test]
    fn a_proof_is_no_good_a_second_time() {
        let (node, hello) = NodeAuth::new(key(7), 0, [1; 32]);
        let Ok((root, challenge)) = RootAuth::answer(&keys(), [2; 32], &hello) else { panic!() };
        let (proof, _) = node.prove(&challenge).unwrap();
        assert_eq!(root.check(&proof).unwrap().0, 0);
        let Ok((again, _)) = RootAuth::answer(&keys(), [3; 32], &hello) else { panic!() };
        assert_eq!(again.check(&proof).unwrap_err(), AuthError::Key);
        // The root's own proof, sent back, is rejected, too.
        let mac = challenge[48..].try_into().unwrap();
        assert_eq!(root.check(mac).unwrap_err(), AuthError::Key);
    }

    #[test]
    fn versions_that_differ_are_said_on_both_sides() {
        let (node, mut hello) = NodeAuth::new(key(7), 0, [1; 32]);
        hello[8] = 99;
        let Err((why, Some(answer))) = RootAuth::answer(&keys(), [2; 32], &hello) else { panic!() };
        assert_eq!(why, AuthError::Version { theirs: 99 });
        let mut answer = answer;
        answer[8] = 98;
        assert_eq!(node.prove(&answer).unwrap_err(), AuthError::Version { theirs: 98 });
    }

    /// Returns the bytes that the launcher sends to a rank of the second host, which asks for all that it may,
    /// and that host's key.
    fn told_to_a_rank() -> (Vec<u8>, ControlKey) {
        let hosts = ["a", "b"].map(|name| Host { name: name.into(), ranks: 2 });
        let config = Config::new(4).unwrap().on(hosts.into(), None);
        let now = std::time::Instant::now();
        let key = crate::remote::control_keys(&config, [2]).remove(0);
        let mut server = Server::new(config);
        let hello = || Call::Hello { version: BOOT_VERSION };
        let mut told = Vec::new();
        let lookup = Call::Lookup { name: "box".into(), wait: None, maker: Maker::Anyone };
        let register = Call::Register { name: "box".into(), value: vec![1] };
        for (rank, call) in [(0, hello()), (2, hello()), (0, register), (2, lookup)] {
            server.handle(now, rank, Request { id: 1, call }).iter().for_each(|action| {
                if let udeck_boot::server::Action::Send { to: 2, message } = action {
                    encode(message, &mut told).unwrap();
                }
            });
        }
        (told, key)
    }

    #[test]
    fn nothing_that_a_rank_is_told_opens_the_connection_between_deckruns() {
        let (told, right) = told_to_a_rank();
        // The bytes have a welcome (with the secret and a rank key), a ticket, and a record.
        assert!(told.len() > 3 * 32, "{}", told.len());
        let (_, hello) = NodeAuth::new(right, 0, [1; 32]);
        let Ok((root, challenge)) = RootAuth::answer(&[right], [2; 32], &hello) else { panic!() };
        for (at, bytes) in told.windows(32).enumerate() {
            // Each place is tried as the key itself, and as the host key from which it is made.
            let bytes: [u8; 32] = bytes.try_into().unwrap();
            for key in [ControlKey::from_bytes(bytes), HostKey::from_bytes(bytes).control_key()] {
                let posing = NodeAuth { key, index: 0, nonce: [1; 32] };
                assert_eq!(posing.prove(&challenge).err(), Some(AuthError::Key), "byte {at}");
                let proof = Meeting { key, index: 0, node: [1; 32], root: [2; 32] }.proof(NODE);
                assert_eq!(root.check(&proof).err(), Some(AuthError::Key), "byte {at}");
            }
        }
    }
}
