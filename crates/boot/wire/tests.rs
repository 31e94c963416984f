use proptest::{collection::vec, prelude::*};

use super::*;
use crate::Host;

mod hostile;

fn framed<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    bytes
}

fn call() -> impl Strategy<Value = Call> {
    let name = || ".{0,40}";
    let value = || vec(any::<u8>(), 0..200);
    let wait =
        || proptest::option::of((any::<u64>(), 0..1_000_000_000u32).prop_map(|(s, n)| Duration::new(s, n)));
    prop_oneof![
        any::<u16>().prop_map(|version| Call::Hello { version }),
        (name(), value()).prop_map(|(name, value)| Call::Register { name, value }),
        name().prop_map(|name| Call::Unregister { name }),
        (name(), wait(), maker()).prop_map(|(name, wait, maker)| Call::Lookup { name, wait, maker }),
        (name(), value()).prop_map(|(key, value)| Call::Put { key, value }),
        (name(), wait(), maker()).prop_map(|(key, wait, maker)| Call::Get { key, wait, maker }),
        any::<u64>().prop_map(|s| Call::Fence { wait: Duration::from_secs(s) }),
        Just(Call::Done),
        (any::<u8>(), ".{0,40}").prop_map(|(code, why)| Call::Abort { code, why }),
        (any::<u32>(), any::<u64>())
            .prop_map(|(rank, s)| Call::AwaitExit { rank, wait: Duration::from_secs(s) }),
        any::<u64>().prop_map(|id| Call::Cancel { id }),
        any::<(u64, bool, u64, u64)>().prop_map(|(round, groups, value, s)| {
            let question = if groups { Question::Survivors } else { Question::Agree };
            Call::Agree { round, vote: Vote { question, value }, wait: Duration::from_secs(s) }
        }),
    ]
}

fn maker() -> impl Strategy<Value = Maker> {
    prop_oneof![
        Just(Maker::Anyone),
        any::<u32>().prop_map(Maker::Rank),
        any::<u32>().prop_map(Maker::Collective)
    ]
}

fn from_server() -> impl Strategy<Value = FromServer> {
    let reply = prop_oneof![
        Just(Reply::Ok),
        (any::<(u32, u32, [u8; 32], u64, Option<IpAddr>)>(), vec((".{0,40}", 0..500u32), 0..8)).prop_map(
            |((rank, size, secret, job, address), hosts)| {
                let hosts = hosts.into_iter().map(|(name, ranks)| Host { name, ranks }).collect();
                let placement = Placement::blocks(hosts);
                Reply::Welcome(Welcome {
                    rank,
                    size,
                    secret,
                    job,
                    placement,
                    address,
                    key: RankKey::BLANK,
                    cpus: 0,
                })
            }
        ),
        (any::<u64>(), vec(any::<u32>(), 0..100), any::<u64>(), any::<u64>()).prop_map(
            |(round, ranks, all, first)| Reply::Agreed(Arc::new(Agreement { round, ranks, all, first }))
        ),
        (any::<u32>(), vec(any::<u8>(), 0..200))
            .prop_map(|(owner, value)| Reply::Record(Record { owner, value }.into())),
        (vec(".{0,40}", 0..=MAX_LISTED), any::<u64>())
            .prop_map(|(existing, total)| Reply::Failed(RequestError::NoSuch { existing, total })),
        (any::<u32>(), proptest::option::of(".{0,40}"))
            .prop_map(|(rank, how)| Reply::Failed(RequestError::MakerEnded { rank, how })),
        vec(any::<u32>(), 0..100).prop_map(|missing| Reply::Failed(RequestError::FenceLate { missing })),
        (".{0,40}", any::<u64>(), any::<u64>())
            .prop_map(|(what, limit, got)| Reply::Failed(RequestError::TooBig { what, limit, got })),
    ];
    prop_oneof![
        (any::<u64>(), reply).prop_map(|(id, reply)| FromServer::Reply { id, reply }),
        (any::<u32>(), ".{0,40}").prop_map(|(rank, how)| FromServer::Event(Event::RankLost { rank, how })),
        any::<u32>().prop_map(|rank| FromServer::Event(Event::RankDone { rank })),
        any::<u32>().prop_map(|callee| {
            let sealed = SealedTicket::new((callee, &RankKey::BLANK), (1, &RankKey::BLANK));
            FromServer::Ticket { callee, sealed }
        }),
    ]
}

proptest! {
    #[test]
    fn requests_come_back_however_the_stream_is_cut(
        sent in vec((any::<u64>(), call()).prop_map(|(id, call)| Request { id, call }), 0..8),
        piece in 1..64usize,
    ) {
        let stream: Vec<u8> = sent.iter().flat_map(framed).collect();
        let mut frames = Frames::default();
        let mut got = Vec::new();
        for read in stream.chunks(piece) {
            frames.push(read);
            while let Some(request) = frames.decode::<Request>().unwrap() {
                got.push(request);
            }
        }
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn answers_come_back(sent in from_server()) {
        let mut frames = Frames::default();
        frames.push(&framed(&sent));
        prop_assert_eq!(frames.decode::<FromServer>().unwrap(), Some(sent));
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_grow_the_buffer(stream in vec(any::<u8>(), 0..4096), piece in 1..512usize) {
        let mut frames = Frames::default();
        for read in stream.chunks(piece) {
            frames.push(read);
            prop_assert!(frames.bytes.len() <= HEADER + MAX_FRAME + piece);
            loop {
                match frames.decode::<FromServer>() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }

    /// Random bytes seldom get past the length: here the frame is valid and its payload is not.
    #[test]
    fn arbitrary_payloads_decode_to_something_bounded_or_fail(payload in vec(any::<u8>(), 0..4096)) {
        let mut stream = (payload.len() as u32).to_le_bytes().to_vec();
        stream.extend_from_slice(&payload);
        let mut frames = Frames::default();
        frames.push(&stream);
        if let Ok(Some(FromServer::Reply { reply: Reply::Failed(RequestError::NoSuch { existing, .. }), .. })) = frames.decode() {
            prop_assert!(existing.len() <= MAX_LISTED);
        }
        let mut frames = Frames::default();
        frames.push(&stream);
        if let Ok(Some(Request { call: Call::Put { key, value }, .. })) = frames.decode() {
            prop_assert!(key.len() + value.len() <= payload.len());
        }
    }
}

#[test]
fn an_announced_length_is_refused_before_its_bytes_come() {
    for length in [MAX_FRAME as u32 + 1, u32::MAX] {
        let mut frames = Frames::default();
        frames.push(&length.to_le_bytes());
        assert_eq!(frames.decode::<Request>(), Err(WireError::FrameTooLong { length: u64::from(length) }));
    }
}

#[test]
fn a_message_that_is_too_long_is_not_sent() {
    let mut out = vec![7];
    let call = Call::Put { key: "k".into(), value: vec![0; MAX_FRAME] };
    assert!(matches!(encode(&Request { id: 1, call }, &mut out), Err(WireError::FrameTooLong { .. })));
    assert_eq!(out, [7]);
}

#[test]
fn a_list_longer_than_its_bound_is_refused() {
    let listing = |n| {
        let existing = vec![String::new(); n];
        framed(&FromServer::Reply {
            id: 1,
            reply: Reply::Failed(RequestError::NoSuch { existing, total: 0 }),
        })
    };
    let decode = |bytes: &[u8]| {
        let mut frames = Frames::default();
        frames.push(bytes);
        frames.decode::<FromServer>()
    };
    assert!(decode(&listing(MAX_LISTED)).is_ok());
    assert!(matches!(decode(&listing(MAX_LISTED + 1)), Err(WireError::Undecodable { .. })));
}

#[test]
fn bytes_left_over_in_a_frame_are_refused() {
    let mut bytes = framed(&Request { id: 1, call: Call::Done });
    bytes[0] += 1;
    bytes.push(0);
    let mut frames = Frames::default();
    frames.push(&bytes);
    assert!(matches!(frames.decode::<Request>(), Err(WireError::Undecodable { .. })));
}

fn welcome(rank: u32, size: u32, on_hosts: &[u32]) -> Welcome {
    let hosts = on_hosts.iter().map(|&ranks| Host { name: "h".into(), ranks }).collect();
    let placement = Placement::blocks(hosts);
    Welcome { rank, size, secret: [0xAB; 32], job: 3, placement, address: None, key: RankKey::BLANK, cpus: 0 }
}

#[test]
fn the_secret_is_not_shown() {
    let shown = format!("{:?}", welcome(1, 2, &[2]));
    assert_eq!(shown, "Welcome { rank: 1, size: 2, job: 0x3, hosts: 1, address: None, secret: .., key: .. }");
}

#[test]
fn a_rank_knows_which_ranks_are_on_its_host() {
    let neighbours = |rank| welcome(rank, 5, &[2, 0, 3]).neighbours().collect::<Vec<_>>();
    assert_eq!(
        (0..5).map(neighbours).collect::<Vec<_>>(),
        [vec![0, 1], vec![0, 1], vec![2, 3, 4], vec![2, 3, 4], vec![2, 3, 4]]
    );
    let near: Vec<_> = (0..6).filter(|rank| welcome(3, 5, &[2, 0, 3]).is_neighbour(*rank)).collect();
    assert_eq!(near, [2, 3, 4]);
}

#[test]
fn a_welcome_whose_numbers_do_not_fit_is_none() {
    assert!(welcome(1, 2, &[1, 1]).is_consistent());
    for wrong in [welcome(2, 2, &[2]), welcome(0, 2, &[1]), welcome(0, 2, &[]), welcome(0, 1, &[1, 2])] {
        assert!(!wrong.is_consistent(), "{wrong:?}");
    }
}
