//! The secured stream between a rank and rank 0, which serves names, in a job that deckrun did not start.
//!
//! The stream is a [`SecureStream`], which draws its layout. The rank calls, with its number; both sides know the job's
//! secret. The frames' payloads are the bytes of the name service's stream, cut anywhere.

use std::io;

use udeck_auth::{Protocol, SecureStream, StreamError};

/// The protocol version of this build.
const VERSION: u32 = 2;
/// Maximum number of bytes in a frame.
pub(super) const MAX_FRAME: usize = 16 << 10;

const PROTOCOL: Protocol = Protocol { magic: *b"udeckstp", version: VERSION, max_frame: MAX_FRAME };

/// Reasons why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("it is no µDECK program")]
    Stranger,
    #[error(
        "its µDECK speaks version {theirs} of the start protocol and this one {VERSION}: use one release in a job"
    )]
    Version { theirs: u32 },
    #[error("it does not know the secret of this job")]
    Secret,
    #[error("it says that it is rank {0}, and there is no such rank")]
    NoSuchRank(u32),
}

impl From<StreamError> for Broken {
    fn from(why: StreamError) -> Broken {
        match why {
            StreamError::Stranger => Broken::Stranger,
            StreamError::Version { theirs } => Broken::Version { theirs },
            StreamError::UnknownId(rank) => Broken::NoSuchRank(rank),
            StreamError::Key | StreamError::TooLong { .. } | StreamError::Forged => Broken::Secret,
        }
    }
}

/// Makes the side of a rank, which speaks first.
pub(super) fn rank(rank: u32, secret: [u8; 32]) -> io::Result<SecureStream> {
    SecureStream::call(PROTOCOL, rank, secret)
}

/// Makes the side of rank 0 in a job of `ranks` ranks.
pub(super) fn root(ranks: u32, secret: [u8; 32]) -> io::Result<SecureStream> {
    SecureStream::answer(PROTOCOL, move |rank| (rank < ranks).then_some(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the root thinks of a rank, and what it thinks of the root.
    fn meet(mut rank: SecureStream) -> (Result<Option<u32>, Broken>, Result<(), Broken>) {
        let mut root = root(4, [7; 32]).unwrap();
        let pass = |from: &mut SecureStream, to: &mut SecureStream| {
            let mut bytes = Vec::new();
            from.write_to(&mut bytes).unwrap();
            to.receive(&bytes).map_err(Broken::from)
        };
        let greeted = pass(&mut rank, &mut root);
        let answered = pass(&mut root, &mut rank);
        let proved = greeted.and_then(|()| pass(&mut rank, &mut root));
        (proved.map(|()| root.proven()), answered)
    }

    #[test]
    fn ranks_that_know_the_secret_meet_the_root_and_others_are_named() {
        assert_eq!(meet(rank(3, [7; 32]).unwrap()), (Ok(Some(3)), Ok(())));
        assert_eq!(meet(rank(3, [8; 32]).unwrap()), (Ok(None), Err(Broken::Secret)));
        assert_eq!(meet(rank(4, [7; 32]).unwrap()).0, Err(Broken::NoSuchRank(4)));
        let newer = SecureStream::call(Protocol { version: 9, ..PROTOCOL }, 1, [7; 32]).unwrap();
        let differ = (Err(Broken::Version { theirs: 9 }), Err(Broken::Version { theirs: VERSION }));
        assert_eq!(meet(newer), differ);
        let stranger = root(4, [7; 32]).unwrap().receive(b"GET / HTTP/1.1");
        assert_eq!(stranger.map_err(Broken::from), Err(Broken::Stranger));
    }
}
