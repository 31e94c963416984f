//! The name service: from a name to a connection, and from an address back to the name.

use udeck_via::names::{HostTable, MAX_ADDRESS, NameError, NameService};
use udeck_via::{Error, Nic};

use crate::kit::{Door, End, nics};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "names";
pub const CASES: &[Case] = &[
    case!(a_name_leads_to_a_connection),
    case!(an_index_tells_a_hosts_nics_apart),
    case!(an_address_leads_back_to_its_name),
    case!(unknown_names_indices_and_addresses_are_errors),
    case!(a_table_reads_as_it_was_written),
    case!(a_name_outlives_its_nic_and_leads_nowhere),
];

const DOOR: &[u8] = b"names";

fn add(table: &mut HostTable, name: &str, nic: &Nic) {
    table.add(name, &nic.attributes().address).expect("addresses fit a table");
}

/// Asserts that the service finds `nic`: a connect to its address reaches it.
fn assert_leads_to(names: &dyn NameService, name: &str, index: usize, nic: &Nic, from: &Nic) {
    let door = Door::new(nic, DOOR);
    let found = Door { address: names.net_address(name, index, DOOR).expect("a known name"), ..door };
    let (mut asker, mut answerer) = (End::new(from, |_| {}), End::new(nic, |_| {}));
    found.join(&mut asker, &mut answerer);
    answerer.post_receive(5);
    asker.post_send(b"hello");
    assert_eq!(answerer.received(), b"hello");
    asker.sent();
}

fn reason(error: Error) -> NameError {
    match error {
        Error::NameService(reason) => *reason,
        other => panic!("no error of the name service: {other}"),
    }
}

fn a_name_leads_to_a_connection(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let mut table = HostTable::new();
    add(&mut table, "a", &a);
    add(&mut table, "b", &b);
    assert_leads_to(&table, "b", 0, &b, &a);
    assert_leads_to(&table, "a", 0, &a, &b);
    assert_leads_to(&table, "a", 0, &a, &a);
}

fn an_index_tells_a_hosts_nics_apart(fabric: &dyn Fabric) {
    let from = fabric.open(&Options::default());
    let several: Vec<Nic> = (0..3).map(|_| fabric.open(&Options::default())).collect();
    let mut table = HostTable::new();
    several.iter().for_each(|nic| add(&mut table, "several", nic));
    for (index, nic) in several.iter().enumerate() {
        assert_leads_to(&table, "several", index, nic, &from);
    }
}

fn an_address_leads_back_to_its_name(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let second = fabric.open(&Options::default());
    let mut table = HostTable::new();
    for (name, nic) in [("a", &a), ("b", &b), ("a", &second)] {
        add(&mut table, name, nic);
    }
    for (name, nic) in [("a", &a), ("b", &b), ("a", &second)] {
        assert_eq!(table.host_by_address(&nic.attributes().address).unwrap(), name);
    }
    let taken = reason(table.add("b", &a.attributes().address).unwrap_err());
    assert!(matches!(&taken, NameError::AddressTaken { owner, .. } if owner == "a"), "{taken}");
}

fn unknown_names_indices_and_addresses_are_errors(fabric: &dyn Fabric) {
    let (known, unknown) = nics(fabric);
    let mut table = HostTable::new();
    add(&mut table, "known", &known);
    let error = reason(table.host_by_name("unknown", 0).unwrap_err());
    assert!(
        matches!(&error, NameError::UnknownHost { name, known, .. }
        if name == "unknown" && known.names == ["known"] && !known.more),
        "{error}"
    );
    let error = reason(table.host_by_name("known", 1).unwrap_err());
    assert!(matches!(error, NameError::NoSuchIndex { index: 1, count: 1, .. }), "{error}");
    let error = reason(table.host_by_address(&unknown.attributes().address).unwrap_err());
    assert!(
        matches!(&error, NameError::UnknownAddress { address, .. }
        if *address == unknown.attributes().address),
        "{error}"
    );
}

fn a_table_reads_as_it_was_written(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    assert!(a.attributes().address.len() <= MAX_ADDRESS);
    let mut table = HostTable::new();
    add(&mut table, "b", &b);
    table.add("b", b"an address with \x00 and \" in it").unwrap();
    add(&mut table, "a", &a);
    let text = table.to_string();
    let read: HostTable = text.parse().unwrap();
    assert_eq!(read.to_string(), text);
    assert_leads_to(&read, "b", 0, &b, &a);
    assert_leads_to(&read, "a", 0, &a, &b);
    assert_eq!(read.host_by_name("b", 1).unwrap(), b"an address with \x00 and \" in it");
}

fn a_name_outlives_its_nic_and_leads_nowhere(fabric: &dyn Fabric) {
    let (a, b) = nics(fabric);
    let mut table = HostTable::new();
    add(&mut table, "b", &b);
    drop(b);
    let to = table.net_address("b", 0, DOOR).unwrap();
    let mut asker = End::new(&a, |_| {});
    asker.connect(&to, b"").expect_err("nobody is there");
    // The VI is unchanged, and connects elsewhere.
    Door::new(&a, DOOR).join(&mut asker, &mut End::new(&a, |_| {}));
}
