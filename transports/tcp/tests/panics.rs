//! Panics of a helper, and of a listener's handler.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use udeck_via::{Error, Listener, NetAddress};

fn assert_told(error: Error) {
    assert!(error.to_string().contains("has panicked: no luck"), "{error}");
}

#[test]
fn a_helper_that_panics_is_an_error_of_all_that_its_nic_serves() {
    let device = crate::device::open(&options()).unwrap();
    device.network().listeners.listen(b"bomb", Box::new(|_| panic!("no luck"))).unwrap();
    let (failing, other) = (Nic::new(device), nic());
    let (mut left, mut right) = pair(&other, &failing);
    check(&mut left, &mut right);
    let (listener, at) = listen(&failing);
    let bomb = NetAddress { discriminator: b"bomb".to_vec(), ..at };
    LentEnd::new(&other).connect(&bomb).unwrap_err();
    assert_told(right.end());
    left.end();
    assert_told(listener.wait(soon()).unwrap_err());
    assert_told(Listener::new(&failing, b"later").unwrap_err());
    let (_living, elsewhere) = listen(&other);
    assert_told(LentEnd::new(&failing).connect(&elsewhere).unwrap_err());
    assert_told(failing.check().unwrap_err());
    other.check().unwrap();
}

#[test]
fn a_handler_that_panics_costs_its_request_only() {
    let (asked, other) = (nic(), nic());
    let (tell, requests) = mpsc::channel();
    let mut requests_so_far = 0;
    let _listener = Listener::with_handler(&asked, b"door", move |request| {
        requests_so_far += 1;
        assert!(requests_so_far > 1, "the first");
        tell.send(request).unwrap();
    })
    .unwrap();
    let at = NetAddress { host: asked.attributes().address.clone(), discriminator: b"door".to_vec() };
    let (mut left, mut right) = (LentEnd::new(&other), LentEnd::new(&asked));
    left.connect(&at).unwrap_err();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| left.connect(&at));
        let cq = right.cq.handle();
        let request = requests.recv_timeout(Duration::from_secs(60)).expect("a handler is called again");
        request.accept(&mut right.vi, &cq, &cq, b"").unwrap();
        asking.join().unwrap().unwrap();
    });
    check(&mut left, &mut right);
}
