//! Qualities of service, and attributes that change.

use super::*;
use crate::core::service;

/// Opens a NIC with service levels: tcp has them where they have shares.
fn nic_with_levels() -> Nic {
    let mut options = NicOptions::new(Keys::from([3; 32]));
    options.levels = Some("8:30@2,2:20@4,1:30,0:15,4:5".parse().unwrap());
    udeck::open_nic("tcp0", &options).unwrap()
}

fn level_below(ep: &Ep) -> Option<u8> {
    ep.slot().lock().as_ref().and_then(|ep| ep.level_below()).map(|level| level.get())
}

/// Connects an end point that asks for a quality with one of another quality. Returns each end's quality and level.
fn qualities(nic: impl Fn() -> Nic, asked: Option<Qos>) -> [(Qos, Option<u8>); 2] {
    let (here, there) = (end(&nic()), end(&nic()));
    here.ep.modify(EpAttributes::default().qos(Qos::Premium)).unwrap();
    there.ep.modify(EpAttributes::default().qos(Qos::Economy)).unwrap();
    let psp = Psp::any(&there.connections).unwrap();
    match asked {
        None => here.ep.connect(&psp.address(), LIMIT, b"").unwrap(),
        asked => {
            let host = here.ep.ia().host_of(&psp.address());
            service::connect(here.ep.slot(), host, psp.qualifier(), LIMIT, asked, b"").unwrap();
        }
    }
    there.ep.accept(request(&there.connections), b"").map_err(|(error, _)| error).unwrap();
    there.established();
    here.established();
    there.ep.post_receive(there.lmr(&[0; 4]), 1).unwrap();
    here.ep.post_send(here.lmr(b"data"), 1).unwrap();
    assert_eq!(&there.completion().done().unwrap()[..], b"data");
    [&here, &there].map(|end| (end.ep.qos(), level_below(&end.ep)))
}

#[test]
fn a_quality_is_a_level_of_the_interface_below_where_it_has_levels() {
    let own = [(Qos::Premium, Some(8)), (Qos::Economy, Some(4))];
    assert_eq!(qualities(nic_with_levels, None), own);
    let asked = [(Qos::LowLatency, Some(2)), (Qos::Economy, Some(4))];
    assert_eq!(qualities(nic_with_levels, Some(Qos::LowLatency)), asked, "the call's own goes before");
    for transport in TRANSPORTS {
        let none = [(Qos::BestEffort, Some(0)); 2];
        assert_eq!(qualities(|| nic(transport), Some(Qos::HighThroughput)), none, "{transport}");
    }
}

#[test]
fn an_adapter_says_which_qualities_it_has() {
    let (with, without) = (Ia::on_nic(&nic_with_levels()).unwrap(), Ia::on_nic(&nic("udp")).unwrap());
    assert_eq!(Qos::ALL.map(|qos| with.quality(qos)), Qos::ALL);
    assert_eq!(Qos::ALL.map(|qos| without.quality(qos)), [Qos::BestEffort; 5]);
}

#[test]
fn attributes_change_while_there_is_no_connection() {
    let (here, there) = pair("shm");
    let small = EpAttributes::default().max_receives(2).max_requests(3);
    let refused = here.ep.modify(small);
    assert!(matches!(refused, Err(Error::InvalidState { call: "dat_ep_modify", .. })), "{refused:?}");
    assert!(here.ep.is_idle());
    there.ep.disconnect(true).unwrap();
    assert_eq!(told(&here.connections, &here.ep), Connection::Disconnected);
    here.ep.reset().unwrap();
    here.ep.modify(small).unwrap();
    assert_eq!(here.ep.attributes(), small);
    assert!(matches!(here.ep.modify(small.max_receives(0)), Err(Error::InvalidParameter { .. })));
    for nth in 0..2 {
        here.ep.post_receive(here.lmr(&[0; 1]), nth).unwrap();
    }
    assert_eq!(here.ep.receives_posted(), 2);
    assert!(here.ep.post_receive(here.lmr(&[0; 1]), 2).unwrap_err().0.is_full());
}
