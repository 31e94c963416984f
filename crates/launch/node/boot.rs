//! A node's end of the connection between a rank and the name service, whose other end is at the root.

use std::{collections::VecDeque, net::IpAddr, os::unix::net::UnixStream};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use udeck_auth::HostKey;
use udeck_boot::{
    serve::{ACK_THRESHOLD, OUT_BOUND, WINDOW},
    wire::{Frames, FromServer, Reply, WireError, encode},
};

/// Parts of a rank's welcome that are not sent over the network.
#[derive(Clone, Copy)]
pub(super) struct Own {
    pub(super) secret: [u8; 32],
    pub(super) key: HostKey,
    pub(super) address: IpAddr,
}

/// This host's end of a rank's connection.
pub(super) struct Boot {
    pub(super) rank: u32,
    stream: Option<UnixStream>,
    /// Received bytes up to the welcome, which is completed here; `None` from then on.
    greeting: Option<Frames>,
    out: VecDeque<u8>,
    /// Bytes for the rank that were not yet reported to the root as taken.
    unreported: usize,
    /// Bytes from the rank that the root has not dealt with.
    unconsumed: usize,
}

pub(super) enum ReadOutcome {
    Bytes(usize),
    Nothing,
    /// The rank closed the connection.
    End,
}

impl Boot {
    pub(super) fn new(rank: u32, stream: UnixStream) -> Boot {
        let (greeting, out) = (Some(Frames::default()), VecDeque::new());
        Boot { rank, stream: Some(stream), greeting, out, unreported: 0, unconsumed: 0 }
    }

    /// Returns the socket to poll, unless it is closed.
    pub(super) fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
    }

    pub(super) fn has_more_to_say(&self) -> bool {
        !self.out.is_empty()
    }

    /// Tells whether the rank's socket may be read: the root takes more of its bytes.
    pub(super) fn may_receive(&self) -> bool {
        self.unconsumed < WINDOW
    }

    /// Notes that the root has dealt with `bytes` from the rank.
    pub(super) fn consumed(&mut self, bytes: usize) {
        self.unconsumed = self.unconsumed.saturating_sub(bytes);
    }

    /// Returns the number of bytes that the rank has taken and that the root does not know of, if it is large
    /// enough to be reported.
    pub(super) fn taken(&mut self) -> Option<usize> {
        // A welcome is longer here than it came.
        let taken = self.unreported.saturating_sub(self.out.len());
        (taken >= ACK_THRESHOLD).then(|| {
            self.unreported -= taken;
            taken
        })
    }

    /// Takes bytes from the root to the rank.
    pub(super) fn take(&mut self, bytes: &[u8], own: &Own) -> Result<(), WireError> {
        self.unreported += bytes.len();
        if self.stream.is_none() {
            return Ok(());
        }
        let Some(greeting) = &mut self.greeting else {
            self.out.extend(bytes);
            return Ok(());
        };
        greeting.push(bytes);
        while let Some(greeting) = &mut self.greeting {
            let Some(mut message) = greeting.decode::<FromServer>()? else { return Ok(()) };
            let welcome = match &mut message {
                FromServer::Reply { reply: Reply::Welcome(welcome), .. } => Some(welcome),
                // The reply may be a refusal: a welcome may follow.
                _ => None,
            };
            let is_welcome = welcome.is_some();
            if let Some(welcome) = welcome {
                welcome.secret = own.secret;
                welcome.key = own.key.rank(self.rank);
                welcome.address = Some(own.address);
            }
            let mut frame = Vec::new();
            encode(&message, &mut frame)?;
            self.out.extend(frame);
            if is_welcome {
                self.out.extend(self.greeting.take().map(Frames::into_rest).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Writes as much as the rank takes. Returns `false` if the rank takes too little: it is then cut off.
    pub(super) fn flush(&mut self) -> bool {
        while let (Some(stream), false) = (&self.stream, self.out.is_empty()) {
            match send(stream, self.out.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The end of the connection is also read.
                Err(_) => self.out.clear(),
            }
        }
        let is_behind = self.out.len() > OUT_BOUND;
        if is_behind {
            self.close();
        }
        !is_behind
    }

    /// Reads once, without waiting.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> ReadOutcome {
        let Some(stream) = &self.stream else { return ReadOutcome::Nothing };
        match recv(stream, scratch, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => ReadOutcome::Nothing,
            Ok((length @ 1.., _)) => {
                self.unconsumed += length;
                ReadOutcome::Bytes(length)
            }
            Ok((0, _)) | Err(_) => {
                self.close();
                ReadOutcome::End
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
        self.out.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use udeck_auth::RankKey;
    use udeck_boot::{Event, Host, Placement, Welcome, wire::RequestError};

    use super::*;

    fn own() -> Own {
        let address = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
        Own { secret: [5; 32], key: HostKey::from_bytes([6; 32]), address }
    }

    fn welcome(own: Option<Own>) -> FromServer {
        let hosts = vec![Host { name: "a".into(), ranks: 2 }];
        let blank = ([0; 32], RankKey::BLANK, None);
        let (secret, key, address) =
            own.map_or(blank, |own| (own.secret, own.key.rank(1), Some(own.address)));
        let welcome = Welcome {
            rank: 1,
            size: 2,
            secret,
            job: 9,
            placement: Placement::blocks(hosts),
            address,
            key,
            cpus: 0,
        };
        FromServer::Reply { id: 0, reply: Reply::Welcome(welcome) }
    }

    fn frames(messages: &[FromServer]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| encode(message, &mut bytes).unwrap());
        bytes
    }

    #[test]
    fn the_welcome_is_completed_and_the_rest_is_passed_on_however_it_is_cut() {
        let refused = FromServer::Reply { id: 0, reply: Reply::Failed(RequestError::NobodyLeft) };
        let event = FromServer::Event(Event::RankDone { rank: 0 });
        let sent = frames(&[refused.clone(), welcome(None), event.clone(), welcome(None)]);
        // Only the first one is treated as a welcome.
        let wanted = frames(&[refused, welcome(Some(own())), event, welcome(None)]);
        for piece in [1, 7, sent.len()] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut boot = Boot::new(1, ours);
            sent.chunks(piece).for_each(|bytes| boot.take(bytes, &own()).unwrap());
            assert!(boot.flush() && !boot.has_more_to_say());
            boot.close();
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).unwrap();
            assert_eq!(got, wanted, "pieces of {piece}");
        }
    }

    #[test]
    fn a_rank_that_does_not_read_is_cut_off() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut boot = Boot::new(1, ours);
        boot.take(&frames(&[welcome(None)]), &own()).unwrap();
        boot.take(&vec![0; OUT_BOUND / 2], &own()).unwrap();
        assert!(boot.flush());
        boot.take(&vec![0; OUT_BOUND], &own()).unwrap();
        assert!(!boot.flush() && boot.stream().is_none());
        drop(theirs);
    }
}
