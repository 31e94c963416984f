//! Attributes that a NIC reports.

use udeck_via::transport::Body;
use udeck_via::{
    Caps, Descriptor, Error, MemHandle, Ptag, Receive, Reliability, RemoteBuffer, State, Vi, ViAttributes,
};

use crate::kit::{End, Pair, nics, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "attributes";
pub const CASES: &[Case] = &[
    case!(limits_allow_a_program_to_run),
    case!(every_nic_has_an_address_of_its_own),
    case!(attributes_do_not_change),
    case!(ptags_are_unique),
    case!(a_vi_keeps_its_settings),
    case!(an_idle_vi_changes_its_settings),
    case!(settings_change_while_idle_and_empty_only),
    case!(what_is_unreported_keeps_the_settings),
    case!(reliability_levels_are_there_or_unsupported),
    case!(rdma_write_is_there_or_unsupported),
    case!(queue_lengths_count_what_is_posted_and_not_reported),
];

fn limits_allow_a_program_to_run(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let limits = nic.attributes();
    assert!(!limits.name.is_empty());
    assert!(!limits.address.is_empty());
    assert!(limits.max_discriminator >= 16, "VIA's least is smaller, but names must fit");
    assert!(limits.max_private_data > 0);
    assert!(limits.max_descriptors_per_queue >= 2);
    assert!(limits.max_segments >= 1);
    assert!(limits.max_transfer >= 32 << 10, "VIA asks for 32 KiB");
    assert!(limits.max_inline <= limits.max_transfer);
    assert!(limits.max_queues_per_cq >= 2);
    assert!(limits.max_windows > 0 || !limits.caps.has(Caps::RDMA_WRITE));
    assert!(limits.max_connections >= 8192, "many programs of many threads");
    let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
    assert!(levels.iter().any(|level| limits.caps.has(level.cap())), "some reliability level");
}

fn every_nic_has_an_address_of_its_own(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    assert_ne!(a.attributes().address, b.attributes().address);
    assert_eq!(a.clone().attributes().address, a.attributes().address, "a clone is the same NIC");
}

fn attributes_do_not_change(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let before = format!("{:?}", pair.a.nic.attributes());
    pair.check();
    assert_eq!(format!("{:?}", pair.a.nic.attributes()), before);
}

fn ptags_are_unique(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let clone = nic.clone();
    let mut tags: Vec<Ptag> = (0..100).flat_map(|_| [nic.ptag(), clone.ptag()]).collect();
    tags.sort_unstable_by_key(|tag| tag.0);
    tags.dedup();
    assert_eq!(tags.len(), 200);
}

fn a_vi_keeps_its_settings(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut attributes = ViAttributes::new(nic.ptag());
    attributes.context = 0xdead_beef_0123;
    let vi = Vi::new(&nic, attributes).unwrap();
    assert_eq!(vi.attributes().context, attributes.context);
    assert_eq!(vi.attributes().ptag, attributes.ptag);
    assert_eq!(vi.nic().attributes().address, nic.attributes().address);
}

fn an_idle_vi_changes_its_settings(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let settings =
        |end: &End| ViAttributes { receive: Receive::Lent, context: 7, ..ViAttributes::new(end.ptag) };
    pair.a.vi.disconnect();
    pair.b.vi.disconnect();
    let (a, b) = (settings(&pair.a), settings(&pair.b));
    pair.a.vi.set_attributes(a).unwrap();
    pair.b.vi.set_attributes(b).unwrap();
    assert_eq!(pair.a.vi.attributes().receive, Receive::Lent);
    pair.connect();
    pair.a.vi.send_inline(None, b"", b"lent now").unwrap();
    let entry = pair.b.cq.wait(soon(), || false).expect("news");
    assert_eq!(entry.context, 7);
    let Body::Inline(bytes) = pair.b.arrival().body else { panic!("inline") };
    assert_eq!(bytes.bytes(), b"lent now");
}

fn settings_change_while_idle_and_empty_only(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let other = ViAttributes { context: 7, ..ViAttributes::new(pair.b.nic.ptag()) };
    let error = pair.b.vi.set_attributes(other).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Connected, .. }), "{error}");
    pair.check();
    pair.a.vi.disconnect();
    pair.b.vi.disconnect();
    pair.b.post_receive(1000);
    let error = pair.b.vi.set_attributes(other).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "a receive of the old tag is posted: {error}");
    pair.connect();
    pair.a.post_send(&[3; 1000]);
    assert_eq!(pair.b.received(), [3; 1000]);
    let lacking = [Reliability::Unreliable, Reliability::Reception]
        .into_iter()
        .find(|level| !pair.b.nic.caps().has(level.cap()));
    pair.b.vi.disconnect();
    if let Some(reliability) = lacking {
        let error = pair.b.vi.set_attributes(ViAttributes { reliability, ..other }).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    assert_ne!(pair.b.vi.attributes().context, 7);
    pair.b.vi.set_attributes(other).unwrap();
    assert_eq!(pair.b.vi.attributes().context, 7);
}

/// A send and a flushed receive are unreported together, and then each alone.
fn what_is_unreported_keeps_the_settings(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for send_first in [false, true] {
        pair.b.post_receive(8);
        pair.b.post_send(b"done");
        pair.b.vi.disconnect();
        let other = ViAttributes { context: 7, ..ViAttributes::new(pair.b.ptag) };
        let refused = |vi: &mut Vi| {
            let error = vi.set_attributes(other).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
        };
        let vi = &mut pair.b.vi;
        refused(vi);
        let first = if send_first { vi.send_done() } else { vi.receive_done() };
        assert!(first.is_some());
        refused(vi);
        let second = if send_first { vi.receive_done() } else { vi.send_done() };
        assert!(second.is_some());
        vi.set_attributes(other).expect("everything is reported");
        pair.a.vi.disconnect();
        pair.connect();
    }
}

fn reliability_levels_are_there_or_unsupported(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let caps = nic.caps();
    for reliability in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
        let made = Vi::new(&nic, ViAttributes { reliability, ..ViAttributes::new(nic.ptag()) });
        match made {
            Ok(_) => assert!(caps.has(reliability.cap())),
            Err(Error::Unsupported { needed, have, .. }) => {
                assert_eq!((needed, have), (reliability.cap(), caps));
                assert!(!caps.has(needed));
            }
            Err(other) => panic!("{reliability:?}: {other}"),
        }
    }
}

fn rdma_write_is_there_or_unsupported(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let nic = &pair.a.nic;
    let has = nic.caps().has(Caps::RDMA_WRITE);
    let enabled = ViAttributes { enable_rdma_write: true, ..ViAttributes::new(nic.ptag()) };
    let answers = [Vi::new(nic, enabled).map(drop), nic.window(64, nic.ptag()).map(drop)];
    let to = RemoteBuffer { handle: MemHandle(1), offset: 0, len: 10 };
    if has {
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        pair.forbidden_write(&[1; 10], to); // there is no such window
    } else {
        let write = Descriptor::rdma_write([pair.a.region(&[1; 10])], to);
        let (error, _) = pair.a.vi.post_send(write).expect_err("it cannot write");
        let unsupported =
            |error: &Error| matches!(error, Error::Unsupported { needed: Caps::RDMA_WRITE, .. });
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(unsupported)), "{answers:?}");
        assert!(unsupported(&error), "{error}");
    }
    pair.check();
}

fn queue_lengths_count_what_is_posted_and_not_reported(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let lengths = |end: &End| (end.vi.send_queue_len(), end.vi.receive_queue_len());
    assert_eq!((lengths(&pair.a), lengths(&pair.b)), ((0, 0), (0, 0)));
    (0..3).for_each(|_| pair.b.post_receive(100));
    pair.a.post_send(b"one");
    pair.a.post_send(b"two");
    assert_eq!((lengths(&pair.a), lengths(&pair.b)), ((2, 0), (0, 3)));
    pair.b.received();
    assert_eq!(lengths(&pair.b), (0, 2));
    pair.a.sent();
    assert_eq!(lengths(&pair.a), (1, 0));
    pair.a.sent();
    pair.b.received();
    pair.b.vi.disconnect();
    assert_eq!(lengths(&pair.b), (0, 1), "flushed, and not reported");
    pair.b.vi.receive_done().expect("the flushed receive");
    assert_eq!((lengths(&pair.a), lengths(&pair.b)), ((0, 0), (0, 0)));
}
