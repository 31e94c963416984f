//! Record of a mailbox in the name service. The reader checks it: any rank can register anything.
//!
//! ```text
//! byte 0         1          5            6          7           15          19                       24
//!      | version | u32 size | u8 encrypt | u8 level | u64 queue | u32 depth | u8 incast, u32 window | host: u8 length, bytes | u8 count of endpoints | endpoints | kind: text |
//!       level: 0 to 15    queue: bytes; all ones: not said    depth: messages; 0: not said    incast: 0 off, 1 srp, 2 smsrp, 3 srp where too much at once is lost    endpoint: u8 length, transport (a-z, 0-9); u8 length, address
//! ```

use udeck_via::ServiceLevel;

use crate::incast::Rules;
use crate::wire::Malformed;

/// Version of this build's records.
const VERSION: u8 = 7;
/// Maximum number of NICs of a mailbox. (Public documentation names it: [`crate::World::new`].)
pub(crate) const MAX_ENDPOINTS: usize = 8;
/// Maximum length of a transport's name, in bytes.
const MAX_TRANSPORT: usize = 16;
/// Maximum length of a NIC's address, and of a host's identifier, in bytes.
pub(crate) const MAX_ADDRESS: usize = u8::MAX as usize;

/// Wire value of a missing bound of queues.
const NO_BOUND: u64 = u64::MAX;

/// Record of a mailbox in the name service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advert {
    /// Whether the owner refuses unencrypted connections from other hosts.
    pub encrypt: bool,
    /// Service level of messages to the mailbox.
    pub level: ServiceLevel,
    /// Bound of each postbox's queue, in bytes; `None`: what the postbox's rank allows.
    pub queue: Option<u64>,
    /// Maximum number of messages of each postbox that wait for the receiver, at least 1; `None`: as many as the
    /// connection and the queue hold.
    pub depth: Option<u32>,
    /// Incast rules of the mailbox.
    pub incast: Rules,
    /// Identifier of the owner's host; empty if the owner does not know it.
    pub host: Vec<u8>,
    /// The NICs at which the mailbox listens, the owner's preferred one first.
    pub endpoints: Vec<Endpoint>,
    /// Type that the mailbox carries.
    pub kind: String,
    /// Bytes of an element.
    pub size: u32,
}

/// One of a mailbox's NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub transport: String,
    pub address: Vec<u8>,
}

impl Advert {
    /// Encodes the record. The library makes no fields that are too long for it: see the bounds in
    /// [`Advert::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.size.to_le_bytes());
        out.push(self.encrypt.into());
        out.push(self.level.get());
        out.extend(self.queue.map_or(NO_BOUND, |queue| queue.min(NO_BOUND - 1)).to_le_bytes());
        out.extend(self.depth.unwrap_or(0).to_le_bytes());
        out.extend(self.incast.encode());
        put(&mut out, &self.host);
        out.push(self.endpoints.len() as u8);
        for endpoint in &self.endpoints {
            put(&mut out, endpoint.transport.as_bytes());
            put(&mut out, &endpoint.address);
        }
        out.extend(self.kind.as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&[VERSION, size @ ..], mut rest) = bytes.split_first_chunk::<5>().ok_or(Malformed)? else {
            return Err(Malformed);
        };
        let (&[encrypt @ (0 | 1), level], behind) = rest.split_first_chunk().ok_or(Malformed)? else {
            return Err(Malformed);
        };
        let level = ServiceLevel::new(level).ok_or(Malformed)?;
        let (queue, behind) = behind.split_first_chunk::<8>().ok_or(Malformed)?;
        let queue = Some(u64::from_le_bytes(*queue)).filter(|queue| *queue != NO_BOUND);
        let (depth, behind) = behind.split_first_chunk::<4>().ok_or(Malformed)?;
        let depth = Some(u32::from_le_bytes(*depth)).filter(|depth| *depth > 0);
        let (incast, behind) = behind.split_first_chunk::<5>().ok_or(Malformed)?;
        let incast = Rules::decode(*incast)?;
        rest = behind;
        let host = take(&mut rest)?.to_vec();
        let (&count, mut rest) = rest.split_first().ok_or(Malformed)?;
        if usize::from(count) > MAX_ENDPOINTS {
            return Err(Malformed);
        }
        let endpoints = (0..count).map(|_| Endpoint::take(&mut rest)).collect::<Result<_, _>>()?;
        let kind = std::str::from_utf8(rest).map_err(|_| Malformed)?.to_owned();
        Ok(Advert {
            encrypt: encrypt == 1,
            level,
            queue,
            depth,
            incast,
            host,
            endpoints,
            kind,
            size: u32::from_le_bytes(size),
        })
    }
}

impl Endpoint {
    fn take(rest: &mut &[u8]) -> Result<Self, Malformed> {
        let transport = std::str::from_utf8(take(rest)?).map_err(|_| Malformed)?;
        if !is_transport(transport) {
            return Err(Malformed);
        }
        Ok(Endpoint { transport: transport.to_owned(), address: take(rest)?.to_vec() })
    }
}

/// Whether a transport's name is valid: it appears in texts for users.
pub(crate) fn is_transport(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=MAX_TRANSPORT).contains(&name.len()) && name.bytes().all(letter)
}

/// Appends at most [`MAX_ADDRESS`] bytes, preceded by their number.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(bytes.len() as u8);
    out.extend(bytes);
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (&len, behind) = rest.split_first().ok_or(Malformed)?;
    let (taken, behind) = behind.split_at_checked(len.into()).ok_or(Malformed)?;
    *rest = behind;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..=MAX_ADDRESS)
    }

    fn endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
        let endpoint =
            ("[a-z0-9]{1,16}", bytes()).prop_map(|(transport, address)| Endpoint { transport, address });
        prop::collection::vec(endpoint, 0..=MAX_ENDPOINTS)
    }

    proptest! {
        #[test]
        fn prop_adverts_round_trip(
            encrypt: bool,
            level in 0..=ServiceLevel::MAX,
            queue in prop::option::of(0..NO_BOUND),
            depth in prop::option::of(1..=u32::MAX),
            incast in prop_oneof![
                Just(Rules::Off),
                Just(Rules::SrpWhereLost),
                Just(Rules::Srp),
                (1..=u32::MAX).prop_map(|window| Rules::Smsrp { window }),
            ],
            host in bytes(),
            endpoints in endpoints(),
            kind in ".{0,50}",
            size: u32,
        ) {
            let level = ServiceLevel::new(level).unwrap();
            let advert = Advert { encrypt, level, queue, depth, incast, host, endpoints, kind, size };
            prop_assert_eq!(Advert::decode(&advert.encode()), Ok(advert));
        }

        #[test]
        fn prop_any_advert_decodes_or_fails(mut bytes in prop::collection::vec(any::<u8>(), 1..100), right: bool) {
            if right {
                bytes[0] = VERSION;
            }
            if let Ok(advert) = Advert::decode(&bytes) {
                prop_assert_eq!(advert.encode(), bytes);
            }
        }

        #[test]
        fn prop_a_spoilt_advert_decodes_or_fails(endpoints in endpoints(), at: prop::sample::Index, to: u8) {
            let kind = "u8".into();
            let (level, queue, host) = (ServiceLevel::default(), Some(7), vec![7; 24]);
            let (depth, incast) = (Some(3), Rules::Smsrp { window: 77 });
            let mut bytes =
                Advert { encrypt: true, level, queue, depth, incast, host, endpoints, kind, size: 1 }.encode();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(advert) = Advert::decode(&bytes) {
                prop_assert_eq!(advert.encode(), bytes);
            }
        }
    }

    #[test]
    fn bounds() {
        let endpoint = |transport: &str| Endpoint { transport: transport.into(), address: vec![1] };
        let advert = |endpoints| {
            let level = ServiceLevel::default();
            let (kind, incast) = ("u8".into(), Rules::Off);
            let (queue, depth, host) = (None, None, vec![]);
            Advert { encrypt: false, level, queue, depth, incast, host, endpoints, kind, size: 1 }.encode()
        };
        assert!(Advert::decode(&advert(vec![endpoint("near"); MAX_ENDPOINTS])).is_ok());
        assert_eq!(Advert::decode(&advert(vec![endpoint("near"); MAX_ENDPOINTS + 1])), Err(Malformed));
        for name in ["", "Near", "ne ar", "s\n", "\u{1b}[31m", "abcdefghijklmnopq"] {
            assert_eq!(Advert::decode(&advert(vec![endpoint(name)])), Err(Malformed), "{name:?}");
        }
        let mut other_version = advert(vec![endpoint("near")]);
        other_version[0] += 1;
        assert_eq!(Advert::decode(&other_version), Err(Malformed));
        let mut neither = advert(vec![endpoint("near")]);
        neither[5] = 2;
        assert_eq!(Advert::decode(&neither), Err(Malformed), "encrypted or not");
        let mut too_high = advert(vec![endpoint("near")]);
        too_high[6] = ServiceLevel::MAX + 1;
        assert_eq!(Advert::decode(&too_high), Err(Malformed), "a level");
        for len in 0..advert(vec![]).len() - 2 {
            assert_eq!(Advert::decode(&advert(vec![])[..len]), Err(Malformed), "{len} bytes");
        }
    }
}
