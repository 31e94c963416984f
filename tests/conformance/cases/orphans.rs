//! Objects that outlive their parents: a NIC, a completion queue or a listener is dropped first, and the objects made
//! from it stay usable. Each object holds what it needs, so no order of dropping is wrong.

use udeck_via::transport::Body;
use udeck_via::{Cq, Descriptor, Listener, RemoteBuffer, Status};

use crate::kit::{Door, End, Pair, address, assert_bytes, contents, nics, pattern, regions, shortly, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "orphans";
pub const CASES: &[Case] = &[
    case!(a_vi_outlives_its_nic),
    case!(a_vi_outlives_its_completion_queue),
    case!(a_handle_outlives_its_completion_queue),
    case!(a_completion_queue_outlives_its_nic),
    case!(a_listener_outlives_its_nic),
    case!(a_request_outlives_its_listener),
    case!(a_completion_outlives_vi_queue_and_nic),
    case!(a_window_outlives_its_nic, RDMA_WRITE),
    case!(a_window_outlives_the_vi_it_was_written_over, RDMA_WRITE),
    case!(a_lent_message_outlives_vi_queue_and_nic, HAND_OFF),
];

fn a_vi_outlives_its_nic(fabric: &dyn Fabric) {
    let Pair { a, mut b } = Pair::posted(fabric);
    let region = a.region(&pattern(1, 1000));
    let End { nic, ptag, cq, mut vi } = a;
    drop(nic);
    b.post_receive(1000);
    vi.post_send(Descriptor::new([region])).unwrap();
    assert_bytes(&b.received(), &pattern(1, 1000));
    assert_eq!(vi.send_wait(soon()).unwrap().status, Status::Done);
    // The VI still refers to its NIC, and connects again.
    vi.disconnect();
    b.vi.disconnect();
    let nic = vi.nic().clone();
    let mut pair = Pair { a: End { nic, ptag, cq, vi }, b };
    pair.connect();
    pair.check();
}

fn a_vi_outlives_its_completion_queue(fabric: &dyn Fabric) {
    let Pair { a, mut b } = Pair::posted(fabric);
    let (to_send, to_receive) = (a.region(&pattern(2, 1000)), a.region(&[0; 1000]));
    let End { nic, cq, mut vi, .. } = a;
    drop(cq);
    vi.post_receive(Descriptor::new([to_receive])).unwrap();
    b.post_receive(1000);
    vi.post_send(Descriptor::new([to_send])).unwrap();
    assert_bytes(&b.received(), &pattern(2, 1000));
    // The peer announces its message on a queue that is no longer polled.
    b.post_send(&pattern(3, 1000));
    let received = vi.receive_wait(soon()).unwrap();
    assert_bytes(&contents(&received), &pattern(3, 1000));
    b.sent();
    // The news of the first queue are not given to its successor.
    let mut next = Cq::new(&nic).unwrap();
    vi.post_receive(received.descriptor.unwrap()).unwrap();
    b.post_send(&pattern(4, 1000));
    assert_bytes(&contents(&vi.receive_wait(soon()).unwrap()), &pattern(4, 1000));
    assert_eq!(next.poll(), None);
}

fn a_handle_outlives_its_completion_queue(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let (mut asker, mut answerer) = (End::new(&a, |_| {}), End::new(&b, |_| {}));
    let handle = asker.cq.handle();
    asker.cq = Cq::new(&a).unwrap();
    handle.wake();
    let door = Door::new(&b, b"handle");
    let (asked, answered) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| asker.vi.connect(&door.address, &handle, &handle, b"", soon()));
        let request = door.listener.wait(soon()).unwrap();
        let answered = answerer.accept(request, b"");
        (asking.join().expect("no panic"), answered)
    });
    asked.unwrap();
    answered.unwrap();
    handle.wake();
    Pair { a: asker, b: answerer }.check();
}

fn a_completion_queue_outlives_its_nic(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let mut cq = Cq::new(&nic).unwrap();
    drop(nic);
    let handle = cq.handle();
    assert_eq!(cq.poll(), None);
    handle.wake();
    assert_eq!(cq.wait(shortly(), || false), None);
}

fn a_listener_outlives_its_nic(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let mut asker = End::new(&a, |_| {});
    let address = address(&b, b"orphan");
    let listener = Listener::new(&b, b"orphan").unwrap();
    drop(b);
    let door = Door { listener, address };
    let (asked, ()) = door.connect(&mut asker, b"here?", |request| {
        assert_eq!(request.private_data(), b"here?");
        request.reject("still here");
    });
    assert!(asked.unwrap_err().to_string().contains("still here"));
}

fn a_request_outlives_its_listener(fabric: &dyn Fabric) {
    let mut pair = Pair::idle(fabric, &Options::default(), |_| {});
    let Door { listener, address } = Door::new(&pair.b.nic, b"short-lived");
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| pair.a.connect(&address, b""));
        let request = listener.wait(soon()).unwrap();
        drop(listener);
        pair.b.accept(request, b"").unwrap();
        asking.join().expect("no panic").unwrap();
    });
    pair.check();
}

fn a_completion_outlives_vi_queue_and_nic(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::posted(fabric);
    b.post_receive(1000);
    a.post_send(&pattern(4, 1000));
    let received = b.vi.receive_wait(soon()).unwrap();
    let End { nic, cq, vi, .. } = b;
    drop(nic);
    drop(cq);
    drop(vi);
    a.sent();
    drop(a);
    assert_bytes(&contents(&received), &pattern(4, 1000));
    let mut region = regions(received.descriptor.unwrap()).remove(0);
    region.fill(9);
    assert_eq!(region[999], 9);
}

fn write(from: &mut End, bytes: &[u8], to: RemoteBuffer) {
    let descriptor = Descriptor::rdma_write([from.region(bytes)], to);
    from.vi.post_send(descriptor).expect("the window stands");
    from.sent();
}

fn writable(fabric: &dyn Fabric) -> Pair {
    Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_write = true)
}

fn a_window_outlives_its_nic(fabric: &dyn Fabric) {
    let Pair { mut a, b } = writable(fabric);
    let window = b.nic.window(1000, b.ptag).unwrap();
    let End { nic, cq, vi, .. } = b;
    drop(nic);
    drop(cq);
    write(&mut a, &pattern(5, 1000), window.remote());
    drop(vi);
    assert_bytes(&window.revoke(soon()).unwrap(), &pattern(5, 1000));
}

fn a_window_outlives_the_vi_it_was_written_over(fabric: &dyn Fabric) {
    let Pair { mut a, b } = writable(fabric);
    let window = b.nic.window(1000, b.ptag).unwrap();
    write(&mut a, &pattern(6, 1000), window.remote());
    drop((b, a));
    let settled = window.revoke(soon()).unwrap();
    assert_bytes(&settled, &pattern(6, 1000));
}

fn a_lent_message_outlives_vi_queue_and_nic(fabric: &dyn Fabric) {
    let Pair { mut a, mut b } = Pair::lent(fabric);
    let block = a.block(&pattern(7, 5000));
    a.vi.hand_off(None, b"", block).expect("room");
    let Body::Lent(_, message) = b.arrival().body else { panic!("lent") };
    let End { nic, cq, vi, .. } = b;
    drop(nic);
    drop(cq);
    drop(vi);
    assert_bytes(message.as_slice().unwrap(), &pattern(7, 5000));
    drop(message);
}
