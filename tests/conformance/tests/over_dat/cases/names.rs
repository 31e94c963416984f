//! Addresses of service points.

use std::net::Ipv4Addr;

use udeck_conformance::kit::soon;
use udeck_conformance::{Case, Fabric};
use udeck_dat::{EpState, Error, Evd, Psp, ServiceAddress};

use crate::end::Pair;

const TOPIC: &str = "names";
pub const CASES: &[Case] = &[
    case!(free_qualifiers_are_found),
    case!(an_address_is_a_value),
    case!(an_adapter_without_a_directory_finds_no_host),
];

fn free_qualifiers_are_found(fabric: &dyn Fabric) {
    let Pair { b, .. } = Pair::idle(fabric);
    let points: Vec<Psp> = (0..20).map(|_| Psp::any(&Evd::new(&b.ia, 0)).unwrap()).collect();
    let mut qualifiers: Vec<u64> = points.iter().map(Psp::qualifier).collect();
    qualifiers.sort_unstable();
    qualifiers.dedup();
    assert_eq!(qualifiers.len(), points.len());
}

/// A copy of an address from the program suffices to connect, also to a service point that is made later at the
/// same place.
fn an_address_is_a_value(fabric: &dyn Fabric) {
    let Pair { a, b, door } = Pair::idle(fabric);
    let ServiceAddress::Nic { nic, qualifier } = door.address() else { panic!("made of a NIC") };
    assert_eq!((&nic, qualifier), (&b.ia.nic().attributes().address, 1));
    a.request_connection(&ServiceAddress::Nic { nic, qualifier }, b"");
    door.request().reject(b"").unwrap();
}

fn an_adapter_without_a_directory_finds_no_host(fabric: &dyn Fabric) {
    let Pair { a, .. } = Pair::idle(fabric);
    let nowhere = ServiceAddress::host(Ipv4Addr::LOCALHOST, 1);
    let error = a.ep.connect(&nowhere, soon().remaining(), b"").unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    assert_eq!(a.ep.state(), EpState::Unconnected);
}
