use proptest::prelude::*;

use super::*;
use crate::start::pmi::fake::{Talk, hostile, soon, steps};

const TITLE: &str = "PMI-2 (Slurm)";

const JOINED: [(&str, &str); 2] = [
    (
        "cmd=init pmi_version=2 pmi_subversion=0\n",
        "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n",
    ),
    (
        "    51cmd=fullinit;pmijobid=1.0;pmirank=1;threaded=FALSE;",
        "114   cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=4;appnum=-1;debugged=FALSE;\
         pmiverbose=FALSE;",
    ),
];

const CALLS: [(&str, &str); 5] = [
    ("    43cmd=kvs-put;key=udeck-1-root;value=10-20-x;", "26    cmd=kvs-put-response;rc=0;"),
    ("    14cmd=kvs-fence;", "28    cmd=kvs-fence-response;rc=0;"),
    (
        "    47cmd=kvs-get;jobid=1.0;srcid=0;key=udeck-0-root;",
        "    47cmd=kvs-get-response;found=TRUE;value=A-7;rc=0;",
    ),
    ("    14cmd=kvs-fence;", "    28cmd=kvs-fence-response;rc=0;"),
    ("    13cmd=finalize;", "27    cmd=finalize-response;rc=0;"),
];

fn talk() -> Talk<Pmi2> {
    let join = |service, until| Pmi2::join(service, 1, "1.0".into(), until);
    Talk { title: TITLE, joining: steps(&JOINED), calls: steps(&CALLS), join }
}

/// Puts the length before a command.
fn framed(body: &str) -> String {
    format!("{:<6}{body}", body.len())
}

#[test]
fn a_rank_joins_puts_meets_reads_and_leaves() {
    talk().goes_from_joining_to_leaving();
}

#[test]
fn variables_that_are_missing_or_wrong_are_named() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("PMI_RANK", "1")], "PMI_FD is not set"),
        (&[("PMI_FD", "9")], "PMI_RANK is not set"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "one")], "PMI_RANK is no such number"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "1"), ("PMI_JOBID", "a;b")], "PMI_JOBID is not the name of a job"),
        (&[("PMI_FD", "0"), ("PMI_RANK", "1")], "not a descriptor number"),
    ];
    for (pairs, words) in cases {
        let vars =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let error = Pmi2::open(&vars, soon()).map(drop).unwrap_err();
        assert!(matches!(&error, StartError::Unusable { why, .. } if why.contains(words)), "{error}");
    }
}

#[test]
fn a_wrong_answer_to_joining_is_an_error_with_words() {
    let of = |fields: &str| framed(&format!("cmd=fullinit-response;{fields}"));
    let cases = [
        (
            0,
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n".into(),
            "speaks PMI 1.1, and 2.0 was asked",
        ),
        (0, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n".into(), "refuses"),
        (0, "cmd=response_to_init pmi_version=2 rc=0\n".into(), "has no `pmi_subversion`"),
        (1, of("rc=14;errmsg=no such rank;"), "refuses, with rc=`14` and `no such rank`"),
        (1, of("rc=0;rank=1;"), "has no `size`"),
        (1, of("rc=0;rank=1;size=many;"), "no such number"),
        (1, of("rc=0;rank=4;size=4;"), "rank 4 of 4"),
        (1, of("rc=0;rank=2;size=4;"), "this is rank 2, and PMI_RANK says 1"),
        (1, "999999cmd=fullinit-response;".into(), "announces an answer of 999999 bytes"),
        (1, "cmd=fullinit-response rc=0\n".into(), "where the length of an answer belongs"),
        (1, framed("cmd=kvs-put-response;rc=0;"), "it answered `kvs-put-response`"),
        (1, framed("cmd=fullinit-response;rc=0"), "has a field without an end"),
        (1, framed("rc=0;"), "does not begin with `cmd=`"),
    ];
    talk().fails_to_join(cases);
}

#[test]
fn a_wrong_answer_to_a_call_is_an_error_with_words_and_the_last() {
    let value = |value: &str| framed(&format!("cmd=kvs-get-response;rc=0;found=TRUE;value={value};"));
    let cases = [
        (0, framed("cmd=kvs-put-response;rc=1;"), "putting `root`: it refuses, with rc=`1`"),
        (0, [framed("cmd=kvs-put-response;rc=0;"), "x".into()].concat(), "has said more than it was asked"),
        (
            1,
            framed("cmd=kvs-fence-response;rc=-1;errmsg=a rank is gone;"),
            "fence: it refuses, with rc=`-1` and `a rank",
        ),
        (
            2,
            framed("cmd=kvs-get-response;rc=0;found=FALSE;"),
            "reading `root` of rank 0: that rank has put nothing",
        ),
        (2, framed("cmd=kvs-get-response;rc=0;"), "has no `found`"),
        (2, framed("cmd=kvs-get-response;rc=0;found=TRUE;"), "has no `value`"),
        (2, value("a;;b"), "has to consist of letters"),
        (2, value(&"v".repeat(LONGEST_VALUE + 1)), "its value has 897 bytes; at most 896"),
        (4, framed("cmd=finalize-response;rc=5;"), "saying goodbye: it refuses"),
    ];
    talk().fails_to_go_on(cases);
}

#[test]
fn what_does_not_fit_is_not_asked() {
    let longest = "v".repeat(talk().joined(&[]).0.longest_value());
    let whole = put(u32::MAX, "0123456789abcdef", &longest);
    assert!(whole.bytes.len() <= 1024, "{}", whole.bytes.len());
    let answer = format!("cmd=kvs-get-response;rc=0;found=TRUE;value={longest};");
    assert!(framed(&answer).len() <= 1024);
    talk().does_not_put(&[
        ("root", &(longest + "v"), "at most 896"),
        ("root", "a;b", "letters, digits"),
        ("", "v", "1 to 16"),
    ]);
}

#[test]
fn a_service_that_dies_says_so_wherever() {
    talk().notices_that_the_service_dies();
}

#[test]
fn a_service_that_does_not_answer_is_late_wherever() {
    talk().notices_that_the_service_is_late();
}

#[test]
fn an_abort_says_why_in_harmless_letters_and_is_not_waited_for() {
    let (mut pmi, rest) = talk().joined(&[]);
    pmi.abort(7, "rank 1: a=b; c\nµ", soon()).unwrap();
    assert!(pmi.fence(soon()).unwrap_err().to_string().contains("asked for the end of the job"));
    drop(pmi);
    let said = rest.join().unwrap();
    assert_eq!(said, "    57cmd=abort;isworld=TRUE;msg=exit code 7: rank 1: a.b. c..;");

    let (mut pmi, rest) = talk().joined(&[]);
    pmi.abort(7, &"x".repeat(5000), soon()).unwrap();
    drop(pmi);
    assert!(rest.join().unwrap().len() < 300);

    talk().has_said_goodbye();
}

proptest! {
    #[test]
    fn prop_whatever_the_service_says_every_call_returns(bytes in hostile(), spoilt in 0..3_usize) {
        talk().returns_after(spoilt, bytes);
    }
}
