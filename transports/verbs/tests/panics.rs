//! Panics of a helper.

use udeck_via::transport::Device;

use super::*;
use crate::device::VerbsDevice;
use udeck_via::{Error, Listener, NetAddress};

fn assert_told(error: Error) {
    assert!(error.to_string().contains("has panicked: no luck"), "{error}");
}

#[test]
fn a_helper_that_panics_is_an_error_of_all_that_its_nic_serves() {
    let _alone = alone();
    let device = VerbsDevice::open(options(Settings::default())).unwrap();
    device.listen(b"bomb", Box::new(|_| panic!("no luck"))).unwrap();
    let (failing, other) = (Nic::new(device), nic());
    let (mut left, mut right) = pair(&other, &failing);
    check(&mut left, &mut right);
    let listener = Listener::new(&failing, b"door").unwrap();
    let bomb = NetAddress { host: failing.attributes().address.clone(), discriminator: b"bomb".to_vec() };
    LentEnd::new(&other).connect(&bomb).unwrap_err();
    assert_told(right.end());
    left.end();
    assert_told(listener.wait(soon()).unwrap_err());
    assert_told(Listener::new(&failing, b"later").unwrap_err());
    let elsewhere = NetAddress { host: other.attributes().address.clone(), discriminator: b"door".to_vec() };
    assert_told(LentEnd::new(&failing).connect(&elsewhere).unwrap_err());
    assert_told(failing.check().unwrap_err());
    other.check().unwrap();
}
