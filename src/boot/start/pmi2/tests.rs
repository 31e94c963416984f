use proptest::prelude::*;

use super::*;
use crate::start::pmi::{
    Channel,
    fake::{Manner, Rest, Step, at_once, hostile, service, soon, steps},
};

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

fn all() -> Vec<Step> {
    [steps(&JOINED), steps(&CALLS)].concat()
}

/// Rank 1 of 4.
fn join(steps: Vec<Step>, manner: Manner) -> (Result<Pmi2, StartError>, Rest) {
    let (service, rest) = service(TITLE, steps, manner);
    (Pmi2::join(service, 1, "1.0".into(), soon()), rest)
}

fn joined(then: &[Step]) -> (Pmi2, Rest) {
    let (joined, rest) = join([steps(&JOINED), then.to_vec()].concat(), Manner::AtOnce);
    (joined.unwrap(), rest)
}

fn use_it(pmi: &mut Pmi2, until: Deadline) -> Result<(), StartError> {
    pmi.put("root", "10-20-x", until)?;
    pmi.fence(until)?;
    assert_eq!(pmi.get(0, "root", until)?, "A-7");
    pmi.fence(until)?;
    pmi.finalize(until)
}

/// With its length.
fn framed(body: &str) -> String {
    format!("{:<6}{body}", body.len())
}

#[test]
fn a_rank_joins_puts_meets_reads_and_leaves() {
    for manner in [Manner::AtOnce, Manner::ByteByByte] {
        let (joined, rest) = join(all(), manner);
        let mut pmi = joined.unwrap();
        assert_eq!((pmi.title().as_str(), pmi.rank(), pmi.size()), (TITLE, 1, 4));
        use_it(&mut pmi, soon()).unwrap();
        drop(pmi);
        assert_eq!(rest.join().unwrap(), "", "nothing is said after the goodbye");
    }
}

#[test]
fn variables_that_are_missing_or_wrong_are_named() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("PMI_RANK", "1")], "PMI_FD is not set"),
        (&[("PMI_FD", "9")], "PMI_RANK is not set"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "one")], "PMI_RANK is no such number"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "1"), ("PMI_JOBID", "a;b")], "PMI_JOBID is not the name of a job"),
        (&[("PMI_FD", "0"), ("PMI_RANK", "1")], "no descriptor's number"),
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
        (1, framed("cmd=kvs-put-response;rc=0;"), "it answers `kvs-put-response`"),
        (1, framed("cmd=fullinit-response;rc=0"), "has a field without an end"),
        (1, framed("rc=0;"), "does not begin with `cmd=`"),
    ];
    for (at, answer, words) in cases {
        let mut steps = steps(&JOINED[..=at]);
        steps[at].1 = answer;
        let (joined, rest) = join(steps, Manner::AtOnce);
        let error = joined.map(drop).unwrap_err();
        assert!(matches!(&error, StartError::Server { environment, .. } if environment == TITLE), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        rest.join().unwrap();
    }
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
    for (at, answer, words) in cases {
        let mut calls = steps(&CALLS[..=at]);
        calls[at].1 = answer;
        let (mut pmi, rest) = joined(&calls);
        let error = use_it(&mut pmi, soon()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        let after = pmi.fence(soon()).unwrap_err();
        assert!(matches!(after, StartError::Server { .. }), "{after}");
        drop(pmi);
        assert_eq!(rest.join().unwrap(), "");
    }
}

#[test]
fn what_does_not_fit_is_not_asked() {
    let (mut pmi, rest) = joined(&[]);
    let whole = put(u32::MAX, "0123456789abcdef", &"v".repeat(pmi.longest_value()));
    assert!(whole.bytes.len() <= 1024, "{}", whole.bytes.len());
    let answer = format!("cmd=kvs-get-response;rc=0;found=TRUE;value={};", "v".repeat(pmi.longest_value()));
    assert!(framed(&answer).len() <= 1024);
    let cases = [
        ("root", "v".repeat(pmi.longest_value() + 1), "at most 896"),
        ("root", "a;b".into(), "letters, digits"),
        ("", "v".into(), "1 to 16"),
    ];
    for (key, value, words) in cases {
        let error = pmi.put(key, &value, soon()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    drop(pmi);
    assert_eq!(rest.join().unwrap(), "");
}

#[test]
fn a_service_that_dies_says_so_wherever() {
    for alive in 0..all().len() {
        let (joined, rest) = join(all()[..alive].to_vec(), Manner::Dies);
        let error = joined.and_then(|mut pmi| use_it(&mut pmi, soon())).unwrap_err();
        assert!(error.to_string().contains("the launcher's service has closed the connection"), "{error}");
        rest.join().unwrap();
    }
}

#[test]
fn a_service_that_does_not_answer_is_late_wherever() {
    for silent in 0..all().len() {
        let mut steps = all()[..=silent].to_vec();
        steps[silent].1.pop();
        let (service, rest) = service(TITLE, steps, Manner::AtOnce);
        let mut until = if silent < JOINED.len() { at_once() } else { soon() };
        let error = Pmi2::join(service, 1, "1.0".into(), until).and_then(|mut pmi| {
            until = at_once();
            use_it(&mut pmi, until)
        });
        let error = error.unwrap_err();
        assert!(matches!(&error, StartError::Late { environment, .. } if environment == TITLE), "{error}");
        assert!(until.passed());
        // On a busy machine an earlier answer is late, and the service misses the rest of its part.
        let _ = rest.join();
    }
}

#[test]
fn an_abort_says_why_in_harmless_letters_and_is_not_waited_for() {
    let (mut pmi, rest) = joined(&[]);
    pmi.abort(7, "rank 1: a=b; c\nµ", soon()).unwrap();
    assert!(pmi.fence(soon()).unwrap_err().to_string().contains("asked for the end of the job"));
    drop(pmi);
    let said = rest.join().unwrap();
    assert_eq!(said, "    57cmd=abort;isworld=TRUE;msg=exit code 7: rank 1: a.b. c..;");

    let (mut pmi, rest) = joined(&[]);
    pmi.abort(7, &"x".repeat(5000), soon()).unwrap();
    drop(pmi);
    assert!(rest.join().unwrap().len() < 300);

    let (mut pmi, rest) = joined(&steps(&CALLS[4..]));
    pmi.finalize(soon()).unwrap();
    assert!(pmi.abort(1, "", soon()).unwrap_err().to_string().contains("has said goodbye"));
    drop(pmi);
    assert_eq!(rest.join().unwrap(), "");
}

proptest! {
    #[test]
    fn prop_whatever_the_service_says_every_call_returns(bytes in hostile(), spoilt in 0..3_usize) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let said: Vec<u8> = JOINED[..spoilt].iter().flat_map(|(_, says)| says.bytes()).chain(bytes).collect();
        let serving = std::thread::spawn(move || {
            let _ = std::io::Write::write_all(&mut &theirs, &said);
        });
        let service = Service::new(Channel::new(ours), TITLE.into());
        if let Ok(mut pmi) = Pmi2::join(service, 1, "1.0".into(), soon()) {
            let _ = pmi.put("root", "x", soon());
            let _ = pmi.fence(soon());
            let _ = pmi.get(0, "root", soon());
            let _ = pmi.finalize(soon());
        }
        serving.join().unwrap();
    }
}
