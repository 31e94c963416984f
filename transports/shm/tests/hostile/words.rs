//! Error texts about a peer, as a program's user reads them.

use std::time::Duration;

use udeck_via::{Cq, Deadline, Error, Listener, NetAddress};

use super::attacker::Attacker;
use super::victim::{Victim, nic, soon, vi};

#[test]
fn a_process_is_named_by_its_number_and_nothing_of_the_library_is() {
    let process = format!("process {}", std::process::id());
    let victim = Victim::new();
    let (from, address) = (nic(), victim.address().to_vec());
    let cq = Cq::new(&from).unwrap();
    let connect = |discriminator: &[u8], deadline| {
        let to = NetAddress { host: address.clone(), discriminator: discriminator.to_vec() };
        vi(&from).connect(&to, &cq.handle(), &cq.handle(), &[], deadline).unwrap_err()
    };
    // The two have met now, so the time of the next call goes to the request alone.
    assert!(matches!(connect(b"nobody", soon()), Error::NoMatch(_)));
    let name = b"\x01deck/barrier/0";
    let _answers_nobody = Listener::new(&victim.nic, name).unwrap();
    let error = connect(name, Deadline::after(Duration::from_millis(50)));
    let Error::Timeout { what, .. } = &error else { panic!("{error}") };
    assert_eq!(*what, format!("an answer from {process} to a connection request"));

    let mut attacker = Attacker::admitted(victim.address());
    let (_grip, mut vi) = attacker.connect(&victim);
    drop(attacker);
    let deadline = soon();
    let error = loop {
        match vi.arrival() {
            Ok(None) => assert!(!deadline.passed(), "nobody notices"),
            Ok(Some(arrival)) => panic!("{arrival:?}"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains(&format!("{process}: ")), "{error}");
}
