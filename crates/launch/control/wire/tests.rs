use proptest::{collection::vec, prelude::*};
use udeck_boot::waits::{Call, MAX_AWAITED, Wait};
use udeck_boot::wire::{Frames, encode};

use super::*;

mod hostile;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..100)
}

fn sink() -> impl Strategy<Value = Sink> {
    prop_oneof![Just(Sink::Stdout), Just(Sink::Stderr)]
}

fn spec() -> impl Strategy<Value = JobSpec> {
    let bind = prop_oneof![Just(WireBind::Auto), Just(WireBind::Core), Just(WireBind::None)];
    let numbers = any::<(u32, u32, u32, bool, u32)>();
    (numbers, bytes(), vec(bytes(), 0..5), vec((bytes(), bytes()), 0..5), bytes(), bind).prop_map(
        |((first, count, size, tagged, detect_ms), program, args, env, directory, bind)| JobSpec {
            first,
            count,
            size,
            program,
            args,
            env,
            directory,
            bind,
            output: OutputForm { tagged, joined: tagged, watched: [!tagged, tagged] },
            detect_ms,
            key: HostKey::from_bytes([detect_ms as u8; 32]),
        },
    )
}

fn to_node() -> impl Strategy<Value = ToNode> {
    prop_oneof![
        Just(ToNode::Start),
        (any::<u32>(), bytes()).prop_map(|(rank, bytes)| ToNode::Boot { rank, bytes }),
        any::<u32>().prop_map(|rank| ToNode::BootEnd { rank }),
        any::<i32>().prop_map(|number| ToNode::Signal { number }),
        (sink(), any::<u32>()).prop_map(|(sink, bytes)| ToNode::Written { sink, bytes }),
        sink().prop_map(|sink| ToNode::Unread { sink }),
        bytes().prop_map(|bytes| ToNode::Input { bytes }),
        any::<(u32, u32)>().prop_map(|(rank, bytes)| ToNode::BootConsumed { rank, bytes }),
        any::<u32>().prop_map(|serial| ToNode::SampleRanks { serial }),
    ]
}

fn sample() -> impl Strategy<Value = RankSample> {
    let wait = (".{0,40}", vec(any::<u32>(), 0..=MAX_AWAITED), any::<bool>())
        .prop_map(|(name, ranks, open)| Wait { call: Call::Retrieve, name, ranks, open });
    let waits = vec((wait, any::<u64>()), 0..=MAX_WAITS);
    (any::<u32>(), any::<u64>(), waits).prop_map(|(rank, idle_ms, waits)| RankSample {
        rank,
        state: RankState::Sleeps,
        idle_ms,
        waits: waits.into_iter().map(|(wait, for_ms)| Published { wait, for_ms }).collect(),
    })
}

/// A hostile node's lists have bounds.
#[test]
fn more_looks_than_one_message_has_are_refused() {
    let sample = RankSample { rank: 1, state: RankState::Runs, idle_ms: 0, waits: Vec::new() };
    for (count, is_right) in [(MAX_SAMPLES, true), (MAX_SAMPLES + 1, false)] {
        let mut frame = Vec::new();
        encode(
            &ToRoot::RankStates { serial: 1, samples: vec![sample.clone(); count], last: true },
            &mut frame,
        )
        .unwrap();
        let mut frames = Frames::default();
        frames.push(&frame);
        assert_eq!(frames.decode::<ToRoot>().is_ok(), is_right, "{count}");
    }
}

fn to_root() -> impl Strategy<Value = ToRoot> {
    let refusal = prop_oneof![
        Just(NotStarted::NotFound),
        any::<(u32, i32)>().prop_map(|(rank, errno)| NotStarted::Spawn { rank, errno }),
        ".{0,40}".prop_map(|what| NotStarted::Other { what }),
    ];
    let how = prop_oneof![any::<i32>().prop_map(WireEnd::Exited), any::<i32>().prop_map(WireEnd::Killed)];
    prop_oneof![
        Just(ToRoot::Started),
        refusal.prop_map(ToRoot::NotStarted),
        (any::<u32>(), bytes()).prop_map(|(rank, bytes)| ToRoot::Boot { rank, bytes }),
        (any::<u32>(), proptest::option::of(".{0,40}")).prop_map(|(rank, why)| ToRoot::BootEnd { rank, why }),
        (sink(), bytes()).prop_map(|(sink, bytes)| ToRoot::Output { sink, bytes }),
        any::<u32>().prop_map(|bytes| ToRoot::Taken { bytes }),
        Just(ToRoot::InputEnd),
        (any::<u32>(), how).prop_map(|(rank, how)| ToRoot::Ended { rank, how }),
        Just(ToRoot::Bye),
        any::<(u32, u32)>().prop_map(|(rank, bytes)| ToRoot::BootTaken { rank, bytes }),
        (any::<u32>(), vec(sample(), 0..=MAX_SAMPLES), any::<bool>())
            .prop_map(|(serial, samples, last)| ToRoot::RankStates { serial, samples, last }),
    ]
}

/// Decodes until the stream has no more messages or is broken.
fn drain<T: serde::de::DeserializeOwned>(stream: &[u8], piece: usize) -> Vec<T> {
    let mut frames = Frames::default();
    let mut got = Vec::new();
    for read in stream.chunks(piece) {
        frames.push(read);
        loop {
            match frames.decode() {
                Ok(Some(message)) => got.push(message),
                Ok(None) => break,
                Err(_) => return got,
            }
        }
    }
    got
}

proptest! {
    #[test]
    fn proptest_what_the_root_says_comes_back(sent in vec(to_node(), 0..6), piece in 1..64usize) {
        let mut stream = Vec::new();
        sent.iter().for_each(|message| encode(message, &mut stream).unwrap());
        prop_assert_eq!(drain::<ToNode>(&stream, piece), sent);
    }

    #[test]
    fn proptest_a_task_comes_back(sent in spec(), piece in 1..64usize) {
        let mut stream = Vec::new();
        encode(&sent, &mut stream).unwrap();
        prop_assert_eq!(drain::<JobSpec>(&stream, piece), [sent]);
    }

    #[test]
    fn proptest_what_a_node_says_comes_back(sent in vec(to_root(), 0..6), piece in 1..64usize) {
        let mut stream = Vec::new();
        sent.iter().for_each(|message| encode(message, &mut stream).unwrap());
        prop_assert_eq!(drain::<ToRoot>(&stream, piece), sent);
    }

    /// A valid stream with some bytes changed gets deeper into the decoder than random bytes do.
    #[test]
    fn proptest_changed_bytes_do_no_harm(
        sent in vec(to_root(), 1..6),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        piece in 1..64usize,
    ) {
        let mut stream = Vec::new();
        sent.iter().for_each(|message| encode(message, &mut stream).unwrap());
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let _ = drain::<ToRoot>(&stream, piece);
        let _ = drain::<ToNode>(&stream, piece);
    }

    #[test]
    fn proptest_arbitrary_payloads_decode_to_something_bounded_or_fail(payload in vec(any::<u8>(), 0..4096)) {
        let mut stream = (payload.len() as u32).to_le_bytes().to_vec();
        stream.extend_from_slice(&payload);
        for spec in drain::<JobSpec>(&stream, usize::MAX) {
            prop_assert!(spec.args.len() <= MAX_WORDS && spec.env.len() <= MAX_WORDS);
        }
        let _ = drain::<ToNode>(&stream, usize::MAX);
        let _ = drain::<ToRoot>(&stream, usize::MAX);
    }
}

#[test]
fn a_list_of_too_many_words_is_refused_before_it_is_made() {
    // Behind three numbers and an empty program comes the number of arguments, each of no bytes.
    let stream = |words: usize| {
        let spec = JobSpec {
            first: 0,
            count: 0,
            size: 0,
            program: Vec::new(),
            args: vec![Vec::new(); words],
            env: Vec::new(),
            directory: Vec::new(),
            bind: WireBind::None,
            output: OutputForm::default(),
            detect_ms: 0,
            key: HostKey::from_bytes([0; 32]),
        };
        let mut stream = Vec::new();
        encode(&spec, &mut stream).unwrap();
        stream
    };
    assert_eq!(drain::<JobSpec>(&stream(MAX_WORDS), usize::MAX).len(), 1);
    assert_eq!(drain::<JobSpec>(&stream(MAX_WORDS + 1), usize::MAX).len(), 0);
}
