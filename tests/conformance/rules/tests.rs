use std::collections::BTreeSet;
use std::path::Path;

use super::*;

const VIPL_CALLS: [&str; 41] = [
    "VipOpenNic",
    "VipCloseNic",
    "VipQueryNic",
    "VipCreateVi",
    "VipDestroyVi",
    "VipSetViAttributes",
    "VipQueryVi",
    "VipConnectWait",
    "VipConnectAccept",
    "VipConnectReject",
    "VipDisconnect",
    "VipConnectRequest",
    "VipConnectPeerRequest",
    "VipConnectPeerDone",
    "VipConnectPeerWait",
    "VipCreatePtag",
    "VipDestroyPtag",
    "VipRegisterMem",
    "VipDeregisterMem",
    "VipSetMemAttributes",
    "VipQueryMem",
    "VipPostSend",
    "VipPostRecv",
    "VipSendDone",
    "VipRecvDone",
    "VipSendWait",
    "VipRecvWait",
    "VipSendNotify",
    "VipRecvNotify",
    "VipCreateCQ",
    "VipDestroyCQ",
    "VipResizeCQ",
    "VipCQDone",
    "VipCQWait",
    "VipCQNotify",
    "VipQuerySystemManagementInfo",
    "VipErrorCallback",
    "VipNSInit",
    "VipNSGetHostByName",
    "VipNSGetHostByAddr",
    "VipNSShutdown",
];

const RETURN_CODES: [&str; 15] = [
    "SUCCESS",
    "NOT_DONE",
    "INVALID_PARAMETER",
    "ERROR_RESOURCE",
    "TIMEOUT",
    "REJECT",
    "INVALID_RELIABILITY_LEVEL",
    "INVALID_MTU",
    "INVALID_QOS",
    "INVALID_PTAG",
    "INVALID_RDMAREAD",
    "DESCRIPTOR_ERROR",
    "INVALID_STATE",
    "ERROR_NAMESERVICE",
    "NO_MATCH",
];

const STATUS_BITS: [&str; 9] = [
    "VIP_STATUS_DONE",
    "VIP_STATUS_FORMAT_ERROR",
    "VIP_STATUS_PROTECTION_ERROR",
    "VIP_STATUS_LENGTH_ERROR",
    "VIP_STATUS_PARTIAL_ERROR",
    "VIP_STATUS_DESC_FLUSHED_ERROR",
    "VIP_STATUS_TRANSPORT_ERROR",
    "VIP_STATUS_RDMA_PROT_ERROR",
    "VIP_STATUS_REMOTE_DESC_ERROR",
];

fn all() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().flat_map(|(_, rules)| *rules)
}

#[test]
fn every_rule_is_held_by_cases_that_exist() {
    let known: BTreeSet<String> =
        crate::cases::all().map(|case| format!("{}::{}", case.topic, case.name)).collect();
    for Rule { rule, cases, tests, note } in all() {
        assert!(
            !cases.is_empty() || !tests.is_empty() || !note.is_empty(),
            "nothing holds transports to, nor says why not: {rule}"
        );
        for case in *cases {
            assert!(known.contains(*case), "no case is named {case}, which holds transports to: {rule}");
        }
    }
}

#[test]
fn every_test_of_another_package_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (rule, test) in all().flat_map(|rule| rule.tests.iter().map(move |test| (rule.rule, test))) {
        let (file, name) = test.split_once("::").expect("file::function");
        let source = std::fs::read_to_string(root.join(file));
        let source =
            source.unwrap_or_else(|error| panic!("{file}, which holds transports to {rule}: {error}"));
        assert!(source.contains(&format!("#[test]\nfn {name}()")), "{file} has no test {name}");
    }
}

/// Checks that the table names every topic.
#[test]
fn every_topic_is_in_the_table() {
    let named: BTreeSet<&str> =
        all().flat_map(|rule| rule.cases).filter_map(|case| case.split("::").next()).collect();
    let missing: BTreeSet<&str> =
        crate::cases::all().map(|case| case.topic).filter(|topic| !named.contains(topic)).collect();
    assert!(missing.is_empty(), "topics without a rule in the table: {missing:?}");
}

/// Asserts that the table has exactly these names, each once.
#[track_caller]
fn assert_complete(table: &[Rule], names: &[&str]) {
    let mut found: Vec<&str> = table.iter().flat_map(|rule| rule.rule.split(", ")).collect();
    let mut expected = names.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn every_call_is_in_the_table() {
    assert_complete(CALLS, &VIPL_CALLS);
}

#[test]
fn every_return_code_is_in_the_table() {
    assert_complete(CODES, &RETURN_CODES);
}

#[test]
fn every_status_bit_is_in_the_table() {
    assert_complete(BITS, &STATUS_BITS);
}

#[test]
fn what_is_absent_is_printed_with_its_reason() {
    let text = text();
    assert!(text.contains("* INVALID_QOS: not applicable: a VI has no quality"), "{text}");
    assert!(text.contains("* VipResizeCQ\n    queues::resize_makes_room_and_never_drops\n"), "{text}");
}
