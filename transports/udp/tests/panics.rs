//! Panics of a helper.

use udeck_via::{Error, Listener, NetAddress, Nic, Reliability};

use crate::fixture::{End, connect, soon};
use crate::{Options, Source, device};

fn assert_told(error: Error) {
    assert!(error.to_string().contains("has panicked: no luck"), "{error}");
}

/// Returns the error by which its connection ends.
fn end_of(end: &mut End) -> Error {
    let deadline = soon();
    loop {
        match end.vi.arrival() {
            Err(lost) => return lost,
            Ok(_) => assert!(!deadline.passed(), "nothing is told"),
        }
    }
}

#[test]
fn a_helper_that_panics_is_an_error_of_all_that_its_nic_serves() {
    let options = Options { memory: Source::Fresh(8 << 20), ..Options::new([3; 32]) };
    let device = device::open(&options).unwrap();
    device.network().listeners.listen(b"bomb", Box::new(|_| panic!("no luck"))).unwrap();
    let (failing, other) = (Nic::new(device), crate::open(&options).unwrap());
    let [mut left, mut right] = [&other, &failing].map(|nic| End::new(nic, Reliability::Delivery));
    connect(&mut left, &mut right);
    let listener = Listener::new(&failing, b"door").unwrap();
    let bomb = NetAddress { host: failing.attributes().address.clone(), discriminator: b"bomb".to_vec() };
    let asking = |nic: &Nic, to: &NetAddress| {
        let mut end = End::new(nic, Reliability::Delivery);
        let cq = end.cq.handle();
        end.vi.connect(to, &cq, &cq, b"", soon()).unwrap_err()
    };
    asking(&other, &bomb);
    assert_told(end_of(&mut right));
    end_of(&mut left);
    assert_told(listener.wait(soon()).unwrap_err());
    assert_told(Listener::new(&failing, b"later").unwrap_err());
    let elsewhere = NetAddress { host: other.attributes().address.clone(), ..bomb };
    assert_told(asking(&failing, &elsewhere));
    assert_told(failing.check().unwrap_err());
    other.check().unwrap();
}
