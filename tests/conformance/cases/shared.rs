//! Shared receive queues: many VIs, one queue of descriptors.

use udeck_via::{Descriptor, Error, Receive, SharedReceives, Status, Vi, ViAttributes};

use crate::kit::{Door, End, Pair, assert_bytes, contents, nics, pattern, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "shared";

pub const CASES: &[Case] = &[
    case!(vis_take_from_one_queue_in_order_of_posting),
    case!(a_message_that_finds_the_shared_queue_empty_breaks_its_connection_only),
    case!(a_broken_vi_takes_nothing_from_the_shared_queue),
    case!(the_end_of_a_vi_flushes_nothing_of_the_shared_queue),
    case!(a_shared_queue_is_bounded_and_checks_what_is_posted),
    case!(sharing_is_for_idle_vis_of_the_same_nic_and_tag),
];

/// Two connections into one NIC, whose VIs share a queue: the requesting ends, the answering ends, the queue.
struct Sharing {
    askers: [End; 2],
    answerers: [End; 2],
    shared: SharedReceives,
}

impl Sharing {
    fn new(fabric: &dyn Fabric, bound: usize) -> Self {
        let (there, here) = nics(fabric);
        let ptag = here.ptag();
        let shared = SharedReceives::new(&here, ptag, bound);
        let door = Door::new(&here, b"shared");
        let mut askers = [End::new(&there, |_| {}), End::new(&there, |_| {})];
        let mut answerers =
            [(); 2].map(|()| End { ptag, ..End::new(&here, |attributes| attributes.ptag = ptag) });
        for (asker, answerer) in askers.iter_mut().zip(&mut answerers) {
            answerer.vi.share_receives(&shared).expect("idle, same NIC, same tag");
            door.join(asker, answerer);
        }
        Sharing { askers, answerers, shared }
    }

    fn post(&self, len: usize) {
        let region = self.answerers[0].nic.region(len, self.answerers[0].ptag).expect("a region");
        self.shared.post(Descriptor::new([region])).expect("there is room");
    }

    /// Sends over connection `at` and receives there: the descriptor's length, and its contents.
    fn exchange(&mut self, at: usize, bytes: &[u8]) -> (usize, Vec<u8>) {
        self.askers[at].post_send(bytes);
        let completion = self.answerers[at].vi.receive_wait(soon()).expect("a message");
        assert_eq!(completion.status, Status::Done);
        self.askers[at].sent();
        (completion.descriptor.as_ref().expect("posted so").len(), contents(&completion))
    }
}

fn vis_take_from_one_queue_in_order_of_posting(fabric: &dyn Fabric) {
    let mut sharing = Sharing::new(fabric, 8);
    (0..4).for_each(|number| sharing.post(5000 + number));
    for (number, at) in [1, 0, 0, 1].into_iter().enumerate() {
        let bytes = pattern(number, if number == 0 { 8 } else { 4000 + number });
        let (posted, received) = sharing.exchange(at, &bytes);
        assert_eq!(posted, 5000 + number, "the oldest descriptor");
        assert_bytes(&received, &bytes);
    }
    assert!(sharing.shared.is_empty());
}

fn a_message_that_finds_the_shared_queue_empty_breaks_its_connection_only(fabric: &dyn Fabric) {
    let mut sharing = Sharing::new(fabric, 8);
    sharing.askers[0].post_send(b"nobody is there");
    until("the end", || {
        assert!(sharing.answerers[0].vi.receive_done().is_none(), "there was no descriptor");
        (sharing.answerers[0].vi.state() == udeck_via::State::Error).then_some(())
    });
    sharing.post(100);
    assert_eq!(sharing.exchange(1, b"the other").1, b"the other");
}

/// Messages behind the one that broke the connection return to their sender.
fn a_broken_vi_takes_nothing_from_the_shared_queue(fabric: &dyn Fabric) {
    let mut sharing = Sharing::new(fabric, 8);
    (0..2).for_each(|number| sharing.askers[0].post_send(&pattern(number, 5000)));
    [10, 5000].into_iter().for_each(|len| sharing.post(len));
    let completion = sharing.answerers[0].vi.receive_wait(soon()).expect("the first");
    assert_eq!(completion.status, Status::LengthError);
    assert_eq!(sharing.answerers[0].vi.state(), udeck_via::State::Error);
    assert!(sharing.answerers[0].vi.receive_done().is_none());
    assert_eq!(sharing.shared.len(), 1);
}

fn the_end_of_a_vi_flushes_nothing_of_the_shared_queue(fabric: &dyn Fabric) {
    let mut sharing = Sharing::new(fabric, 8);
    sharing.post(100);
    sharing.post(200);
    sharing.answerers[0].vi.disconnect();
    assert!(sharing.answerers[0].vi.receive_done().is_none(), "nothing was posted on the VI itself");
    assert_eq!(sharing.shared.len(), 2);
    assert_eq!(sharing.exchange(1, b"first").0, 100);
    assert_eq!(sharing.shared.take_back().expect("one is left").len(), 200);
    assert!(sharing.shared.take_back().is_none());
}

fn a_shared_queue_is_bounded_and_checks_what_is_posted(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let (ptag, other) = (nic.ptag(), nic.ptag());
    let shared = SharedReceives::new(&nic, ptag, 2);
    let descriptor = |ptag, segments: usize| {
        Descriptor::new((0..segments).map(|_| nic.region(8, ptag).expect("a region")).collect::<Vec<_>>())
    };
    let (error, back) = shared.post(descriptor(other, 1)).expect_err("a foreign tag");
    assert!(matches!(error, Error::InvalidPtag) && back.segments().len() == 1);
    let too_many = nic.attributes().max_segments + 1;
    let (error, back) = shared.post(descriptor(ptag, too_many)).expect_err("too many segments");
    assert!(matches!(error, Error::InvalidParameter(_)) && back.segments().len() == too_many);
    (0..2).for_each(|_| shared.post(descriptor(ptag, 1)).expect("there is room"));
    let (error, _) = shared.post(descriptor(ptag, 1)).expect_err("no room");
    assert!(matches!(&error, Error::Full { bound, .. } if bound.contains('2')), "{error}");
    assert!(!shared.is_empty() && shared.len() == 2);
    shared.take_back().expect("two are there");
    shared.post(descriptor(ptag, too_many - 1)).expect("there is room again, and for the most segments");
}

fn sharing_is_for_idle_vis_of_the_same_nic_and_tag(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let (nic, ptag) = (pair.a.nic.clone(), pair.a.ptag);
    let shared = SharedReceives::new(&nic, ptag, 4);
    let refused = |vi: &mut Vi, shared: &SharedReceives| vi.share_receives(shared).expect_err("refused");
    assert!(matches!(refused(&mut pair.a.vi, &shared), Error::InvalidState { .. }));
    pair.a.vi.disconnect();
    let foreign = SharedReceives::new(&pair.b.nic, ptag, 4);
    assert!(matches!(refused(&mut pair.a.vi, &foreign), Error::InvalidParameter(_)));
    let other_tag = SharedReceives::new(&nic, nic.ptag(), 4);
    assert!(matches!(refused(&mut pair.a.vi, &other_tag), Error::InvalidPtag));
    pair.a.post_receive(8);
    assert!(matches!(refused(&mut pair.a.vi, &shared), Error::InvalidParameter(_)));
    let lent = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(ptag) };
    let mut lent = Vi::new(&nic, lent).expect("a VI");
    assert!(matches!(refused(&mut lent, &shared), Error::InvalidParameter(_)));

    let mut vi = Vi::new(&nic, ViAttributes::new(ptag)).expect("a VI");
    vi.share_receives(&shared).expect("idle");
    let region = nic.region(8, ptag).expect("a region");
    let (error, _) = vi.post_receive(Descriptor::new([region])).expect_err("it shares");
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let lent = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(ptag) };
    assert!(matches!(vi.set_attributes(lent), Err(Error::InvalidParameter(_))));
}
