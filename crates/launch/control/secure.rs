//! The secured stream between a root and a node: a [`SecureStream`], which draws its layout.
//!
//! The node calls, with the index of its host. Both sides know the host's control key: the launcher has it, and
//! the node gets it by its agent's input. It cannot be derived from the job's secret, which all ranks know. The
//! root proves itself first: a stranger who listens at the root's old address learns nothing that a node would
//! do for it.

use std::{io, sync::Arc};

use udeck_auth::{ControlKey, Protocol, SecureStream, StreamError};
use udeck_boot::wire::MAX_FRAME;

use super::wire::VERSION;

const PROTOCOL: Protocol = Protocol { magic: *b"uDECKrun", version: VERSION, max_frame: MAX_FRAME };

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

impl From<StreamError> for AuthError {
    fn from(why: StreamError) -> AuthError {
        match why {
            StreamError::Stranger | StreamError::UnknownId(_) => AuthError::Stranger,
            StreamError::Version { theirs } => AuthError::Version { theirs },
            StreamError::Key | StreamError::TooLong { .. } | StreamError::Forged => AuthError::Key,
        }
    }
}

/// Makes the side of a node, which speaks first.
pub(crate) fn node(index: u32, key: ControlKey) -> io::Result<SecureStream> {
    SecureStream::call(PROTOCOL, index, *key.as_bytes())
}

/// Makes the root's side of one connection; `keys` are those of all hosts that have a node.
pub(crate) fn root(keys: &Arc<[ControlKey]>) -> io::Result<SecureStream> {
    let keys = Arc::clone(keys);
    SecureStream::answer(PROTOCOL, move |index| keys.get(index as usize).map(|key| *key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use udeck_auth::HostKey;
    use udeck_boot::{
        Host,
        server::{Action, Config, Server},
        wire::{Call, Maker, Request, VERSION as BOOT_VERSION, encode},
    };

    use super::*;

    /// Returns the control keys of four hosts.
    fn keys() -> [ControlKey; 4] {
        [7, 17, 27, 37].map(|of| HostKey::from_bytes([of; 32]).control_key())
    }

    /// Returns what the root with these keys thinks of a node, and what the node thinks of the root.
    fn meet(
        mut node: SecureStream,
        keys: &[ControlKey],
    ) -> (Result<Option<u32>, AuthError>, Result<(), AuthError>) {
        let mut root = root(&keys.into()).unwrap();
        let pass = |from: &mut SecureStream, to: &mut SecureStream| {
            let mut bytes = Vec::new();
            from.write_to(&mut bytes).unwrap();
            to.receive(&bytes).map_err(AuthError::from)
        };
        let greeted = pass(&mut node, &mut root);
        let answered = pass(&mut root, &mut node);
        let proved = greeted.and_then(|()| pass(&mut node, &mut root));
        (proved.map(|()| root.proven()), answered)
    }

    #[test]
    fn a_node_that_knows_its_key_meets_the_root_and_others_are_told_apart() {
        let [first, .., last] = keys();
        let met = |index, key| meet(node(index, key).unwrap(), &keys());
        assert_eq!(met(3, last), (Ok(Some(3)), Ok(())));
        assert_eq!(met(3, first), (Ok(None), Err(AuthError::Key)), "the node of another host");
        assert_eq!(met(4, last).0, Err(AuthError::Stranger));
        let newer = Protocol { version: 99, ..PROTOCOL };
        let newer = SecureStream::call(newer, 3, *last.as_bytes()).unwrap();
        let differ = (Err(AuthError::Version { theirs: 99 }), Err(AuthError::Version { theirs: VERSION }));
        assert_eq!(meet(newer, &keys()), differ);
        let stranger = root(&keys().into()).unwrap().receive(b"GET / HTTP/1.1");
        assert_eq!(stranger.map_err(AuthError::from), Err(AuthError::Stranger));
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
                if let Action::Send { to: 2, message } = action {
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
        assert_eq!(meet(node(0, right).unwrap(), &[right]), (Ok(Some(0)), Ok(())));
        for (at, bytes) in told.windows(32).enumerate() {
            // Each place is tried as the key itself, and as the host key from which it is made.
            let bytes: [u8; 32] = bytes.try_into().unwrap();
            for key in [ControlKey::from_bytes(bytes), HostKey::from_bytes(bytes).control_key()] {
                // The rank poses as the node, and then as the root.
                for (node_key, root_key) in [(key, right), (right, key)] {
                    let met = meet(node(0, node_key).unwrap(), &[root_key]);
                    assert_eq!(met, (Ok(None), Err(AuthError::Key)), "byte {at}");
                }
            }
        }
    }
}
