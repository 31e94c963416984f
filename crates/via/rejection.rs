//! Refusals of connection requests: why, and data for the requester.

use std::fmt;

/// Refusal of a connection request.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Why the request was refused.
    pub kind: RejectKind,
    /// Data for the requester; [`RejectKind`] says what they are.
    pub data: Vec<u8>,
}

/// Why a connection request was refused. The numbers are those that transports send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectKind {
    /// No listener has the discriminator. No data.
    NoListener = 2,
    /// The listener refused. Data: its words.
    Refused = 3,
    /// The two VIs have different reliability levels. No data.
    Reliability = 4,
    /// The program refused. Data: its private data.
    Program = 5,
    /// There is no place for the connection now: a later request may succeed. Data: the bound that was reached, in words.
    NoPlace = 6,
    /// The request was dropped unanswered. No data.
    Unanswered = 7,
    /// The connection could not be made there. Data: the error, in words.
    Failed = 8,
    /// A side has not proved to be the rank that it should be, or of the job at all. Data: words.
    Identity = 9,
    /// The two sides are of different versions, or of different transports. Data: words.
    Version = 10,
}

impl RejectKind {
    /// All kinds.
    pub(crate) const ALL: [RejectKind; 9] = [
        RejectKind::NoListener,
        RejectKind::Refused,
        RejectKind::Reliability,
        RejectKind::Program,
        RejectKind::NoPlace,
        RejectKind::Unanswered,
        RejectKind::Failed,
        RejectKind::Identity,
        RejectKind::Version,
    ];

    /// Decodes the number that a transport received. Returns `None` for an unknown one: transports compare versions before
    /// they connect, so no process of this version sends it, and the peer broke the protocol.
    pub fn decode(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Upper bound of the data in bytes.
    pub fn max_data(self) -> usize {
        match self {
            RejectKind::NoListener | RejectKind::Reliability | RejectKind::Unanswered => 0,
            _ => Rejection::MAX_DATA,
        }
    }
}

impl Rejection {
    /// Upper bound of the data that travel, in bytes.
    pub const MAX_DATA: usize = 512;

    /// Refuses in words.
    pub fn new(kind: RejectKind, words: impl Into<String>) -> Self {
        Rejection { kind, data: words.into().into_bytes() }
    }

    /// Refuses with private data, which travel if they are no more than [`Rejection::MAX_DATA`] bytes.
    pub fn with_data(private_data: impl Into<Vec<u8>>) -> Self {
        Rejection { kind: RejectKind::Program, data: private_data.into() }
    }

    /// The data that a transport sends: words are cut to [`Rejection::MAX_DATA`].
    pub fn sent_data(&self) -> &[u8] {
        let most = self.kind.max_data().min(self.data.len());
        if self.kind == RejectKind::Program {
            return &self.data[..most];
        }
        let words = std::str::from_utf8(&self.data).unwrap_or_default();
        let end = (0..=most).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        &words.as_bytes()[..end]
    }

    /// Decodes what a transport received. Returns `None` if no process of this version sends that.
    pub fn decode(kind: u8, data: &[u8]) -> Option<Self> {
        let kind = RejectKind::decode(kind)?;
        let is_valid = data.len() <= kind.max_data()
            && (kind == RejectKind::Program || std::str::from_utf8(data).is_ok());
        is_valid.then(|| Rejection { kind, data: data.to_vec() })
    }
}

impl From<RejectKind> for Rejection {
    fn from(kind: RejectKind) -> Self {
        Rejection { kind, data: Vec::new() }
    }
}

/// Words for the user.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = String::from_utf8_lossy(&self.data);
        match self.kind {
            RejectKind::NoListener => f.write_str("nobody listens there"),
            RejectKind::Reliability => f.write_str("the peer's VI has another reliability level"),
            RejectKind::Unanswered => f.write_str("the request was dropped unanswered"),
            RejectKind::NoPlace => write!(f, "no place for it now: {words}"),
            RejectKind::Program if self.data.is_empty() => f.write_str("the program there said no"),
            RejectKind::Program => write!(f, "the program there said no: {}", self.data.escape_ascii()),
            RejectKind::Refused | RejectKind::Failed | RejectKind::Identity | RejectKind::Version => {
                f.write_str(&words)
            }
        }
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejection({:?}, \"{}\")", self.kind, self.data.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_words_follow_from_the_kind() {
        let said = |kind, words: &str| Rejection::new(kind, words).to_string();
        assert_eq!(said(RejectKind::Refused, "not today"), "not today");
        assert_eq!(said(RejectKind::NoPlace, "all are taken"), "no place for it now: all are taken");
        assert_eq!(said(RejectKind::Unanswered, ""), "the request was dropped unanswered");
        let private = Rejection::with_data(b"\x00no");
        assert_eq!(private.to_string(), "the program there said no: \\x00no");
    }

    #[test]
    fn more_data_than_a_kind_has_are_refused() {
        for number in 0..=u8::MAX {
            let most = RejectKind::decode(number).map(RejectKind::max_data);
            for len in 0..=Rejection::MAX_DATA + 1 {
                let decoded = Rejection::decode(number, &[b'x'; Rejection::MAX_DATA + 1][..len]);
                assert_eq!(
                    decoded.is_some(),
                    most.is_some_and(|most| len <= most),
                    "kind {number}, {len} bytes"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn prop_words_arrive_up_to_their_bound(words: String, kind in prop::sample::select(&RejectKind::ALL[..])) {
            let sent = Rejection::new(kind, words.repeat(40));
            let came = Rejection::decode(kind as u8, sent.sent_data()).unwrap();
            prop_assert!(sent.data.starts_with(&came.data));
            prop_assert!(came.data.len() + 3 >= kind.max_data().min(sent.data.len()));
        }

        #[test]
        fn prop_any_bytes_decode_or_fail(number: u8, data in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Some(rejection) = Rejection::decode(number, &data) {
                prop_assert_eq!((rejection.kind as u8, rejection.sent_data()), (number, &data[..]));
            }
        }
    }
}
