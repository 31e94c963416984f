use std::{
    net::TcpListener,
    os::{fd::IntoRawFd, unix::net::UnixStream},
};

use proptest::prelude::*;

use super::*;
use crate::start::{
    pmi::fake::{Manner, Talk, at_once, hostile, play, service, soon, steps, use_it},
    pmi2::Pmi2,
};

const TITLE: &str = "PMI-1 (Hydra)";

const JOINED: [(&str, &str); 3] = [
    (
        "cmd=init pmi_version=1 pmi_subversion=1\n",
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    ),
    ("cmd=get_maxes\n", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
    ("cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=kvs_1_vm\n"),
];

const CALLS: [(&str, &str); 5] = [
    ("cmd=put kvsname=kvs_1_vm key=udeck-1-root value=10-20-x\n", "cmd=put_result rc=0 msg=success\n"),
    ("cmd=barrier_in\n", "cmd=barrier_out\n"),
    ("cmd=get kvsname=kvs_1_vm key=udeck-0-root\n", "cmd=get_result rc=0 msg=success value=A-7\n"),
    ("cmd=barrier_in\n", "cmd=barrier_out rc=0\n"),
    ("cmd=finalize\n", "cmd=finalize_ack\n"),
];

const INTRODUCED: [(&str, &str); 1] =
    [("cmd=initack pmiid=1\n", "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=1\ncmd=set debug=0\n")];

fn talk() -> Talk<Pmi1> {
    let join = |service, until| Pmi1::join(service, 1, 4, until);
    Talk { title: TITLE, joining: steps(&JOINED), calls: steps(&CALLS), join }
}

fn vars<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

fn open(pairs: &[(&str, &str)]) -> Result<Pmi1, StartError> {
    Pmi1::open_once(&vars(pairs), soon(), &AtomicBool::new(false))
}

#[test]
fn a_rank_joins_puts_meets_reads_and_leaves() {
    talk().goes_from_joining_to_leaving();
}

#[test]
fn over_tcp_it_is_told_who_it_is_and_joins_once() {
    for manner in [Manner::AtOnce, Manner::ByteByByte] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!("localhost:{}", listener.local_addr().unwrap().port());
        let pairs = [("PMI_PORT", port.as_str()), ("PMI_ID", "1"), ("HYDI_CONTROL_FD", "7")];
        let once = AtomicBool::new(false);
        let serving = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            play(stream, [steps(&INTRODUCED), talk().all()].concat(), manner).join().unwrap()
        });
        let mut pmi = Pmi1::open_once(&vars(&pairs), soon(), &once).unwrap();
        assert_eq!((pmi.title().as_str(), pmi.rank(), pmi.size()), (TITLE, 1, 4));
        let again = Pmi1::open_once(&vars(&pairs), soon(), &once).map(drop).unwrap_err();
        assert!(again.to_string().contains("has joined its job already"), "{again}");
        use_it(&mut pmi, soon()).unwrap();
        drop(pmi);
        assert_eq!(serving.join().unwrap(), "");
    }
}

/// The mark of a taken descriptor is the process's: all cases are one test.
#[test]
fn an_inherited_descriptor_is_taken_once_and_not_passed_on() {
    let of = |fd: &str| {
        let pairs = [("PMI_FD", fd), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        Pmi1::open(&vars(&pairs), soon())
    };
    let closed = of("987654").map(drop).unwrap_err();
    assert!(
        matches!(&closed, StartError::Unusable { why, .. } if why.contains("Bad file descriptor")),
        "{closed}"
    );
    let file = std::fs::File::open("/dev/zero").unwrap().into_raw_fd();
    let no_stream = of(&file.to_string()).map(drop).unwrap_err();
    assert!(
        no_stream.to_string().contains("the descriptor is not a stream socket or two-way pipe"),
        "{no_stream}"
    );

    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::empty()).unwrap();
    let rest = play(theirs, talk().all(), Manner::AtOnce);
    let number = ours.into_raw_fd().to_string();
    let mut pmi = of(&number).unwrap();
    assert_eq!(pmi.title(), "PMI-1");
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    assert_ne!(u32::from_str_radix(flags, 8).unwrap() & 0o2_000_000, 0, "close-on-exec: {flags}");

    let again = of(&number).map(drop).unwrap_err();
    assert!(
        matches!(&again, StartError::Unusable { why, .. } if why.contains("joined its job already")),
        "{again}"
    );
    let pairs = [("PMI_FD", number.as_str()), ("PMI_RANK", "1"), ("SLURM_JOB_ID", "9")];
    let again = Pmi2::open(&vars(&pairs), soon()).map(drop).unwrap_err();
    assert!(matches!(&again, StartError::Unusable { by, .. } if by == "Slurm"), "{again}");
    use_it(&mut pmi, soon()).unwrap();
    drop(pmi);
    assert_eq!(rest.join().unwrap(), "");
}

#[test]
fn variables_that_are_missing_or_wrong_are_named() {
    let cases: [(&[(&str, &str)], &str); 8] = [
        (&[], "neither PMI_FD nor PMI_PORT is set"),
        (&[("PMI_FD", "9"), ("PMI_SIZE", "4")], "PMI_RANK is not set"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "3")], "PMI_SIZE is not set"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "-3"), ("PMI_SIZE", "4")], "PMI_RANK is no such number"),
        (&[("PMI_FD", "9"), ("PMI_RANK", "4"), ("PMI_SIZE", "4")], "rank 4 of 4"),
        (&[("PMI_FD", "two"), ("PMI_RANK", "3"), ("PMI_SIZE", "4")], "not a descriptor number"),
        (&[("PMI_PORT", "host:1")], "PMI_ID is not set"),
        (&[("PMI_PORT", "host"), ("PMI_ID", "1")], "PMI_PORT is not `host:port`"),
    ];
    for (pairs, words) in cases {
        let error = open(pairs).map(drop).unwrap_err();
        assert!(matches!(&error, StartError::Unusable { why, .. } if why.contains(words)), "{error}");
        for (name, value) in pairs {
            assert!(error.to_string().contains(&format!("{name}={value}")), "{error}");
        }
    }
}

#[test]
fn a_service_may_speak_a_later_subversion_as_well() {
    let mut steps = steps(&JOINED);
    steps[0].1 = "cmd=response_to_init pmi_version=1 pmi_subversion=2 rc=0\n".into();
    let (joined, rest) = talk().join_in(steps, Manner::AtOnce);
    joined.map(drop).unwrap();
    rest.join().unwrap();
}

#[test]
fn a_wrong_answer_to_joining_is_an_error_with_words() {
    let long = format!("cmd=my_kvsname kvsname={}\n", "k".repeat(257));
    let cases = [
        (
            0,
            "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
            "speaks PMI 2.0, and 1.1 was asked for",
        ),
        (0, "cmd=response_to_init pmi_version=1 pmi_subversion=0 rc=-1\n", "speaks PMI 1.0"),
        (
            0,
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n",
            "refuses, with rc=`-1` and no reason",
        ),
        (0, "cmd=response_to_init rc=3 msg=too busy\n", "refuses, with rc=`3` and `too busy`"),
        (0, "cmd=response_to_init rc=0\n", "has no `pmi_version`"),
        (0, "cmd=maxes kvsname_max=256\n", "it answered `maxes` instead of `response_to_init`"),
        (0, "GET / HTTP/1.1\n", "does not begin with `cmd=`"),
        (1, "cmd=maxes kvsname_max=256 keylen_max=64\n", "has no `vallen_max`"),
        (1, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=-1\n", "no such number"),
        (1, "cmd=maxes rc=1 kvsname_max=256 keylen_max=64 vallen_max=64\n", "refuses"),
        (1, "cmd=maxes kvsname_max=1 keylen_max=64 vallen_max=9\ncmd=x\n", "has said more than it was asked"),
        (2, "cmd=my_kvsname rc=-1\n", "refuses"),
        (2, "cmd=my_kvsname kvsname=\n", "has 0 bytes"),
        (2, "cmd=my_kvsname kvsname=a b\n", "a blank"),
        (2, long.as_str(), "has 257 bytes"),
    ];
    talk().fails_to_join(cases);
}

#[test]
fn a_wrong_introduction_is_an_error_with_words() {
    let cases = [
        ("cmd=initack rc=-1\n", "introducing itself: it refuses"),
        ("cmd=initack\ncmd=set rank=1\n", "has no `size`"),
        ("cmd=initack\ncmd=set size=x\n", "no such number"),
        ("cmd=initack\ncmd=set size=4\ncmd=set rank=4\n", "rank 4 of 4"),
        ("cmd=initack\ncmd=set size=4\ncmd=set rank=1\ncmd=set x=1\n", "has no `debug`"),
    ];
    for (answer, words) in cases {
        let (mut service, rest) = service(TITLE, steps(&[(INTRODUCED[0].0, answer)]), Manner::AtOnce);
        let error = introduce(&mut service, 1, soon()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        drop(service);
        rest.join().unwrap();
    }
}

#[test]
fn a_wrong_answer_to_a_call_is_an_error_with_words_and_the_last() {
    let long = format!("cmd=get_result rc=0 value={}\n", "v".repeat(1024));
    let endless = "x".repeat(100_000);
    let cases = [
        (
            0,
            "cmd=put_result rc=-1 msg=duplicate_key\n",
            "putting `root`: it refuses, with rc=`-1` and `duplicate_key`",
        ),
        (0, "cmd=barrier_out\n", "it answered `barrier_out` instead of `put_result`"),
        (1, "cmd=barrier_out rc=1\n", "fence: it refuses"),
        (1, endless.as_str(), "more than 8192 bytes without an end of line"),
        (
            2,
            "cmd=get_result rc=-1 msg=key_x_not_found value=unknown\n",
            "reading `root` of rank 0: that rank has put",
        ),
        (2, "cmd=get_result rc=1\n", "reading `root` of rank 0: that rank has put nothing there"),
        (2, "cmd=get_result rc=0\n", "has no `value`"),
        (2, "cmd=get_result rc=0 value=\n", "has to consist of letters"),
        (2, "cmd=get_result rc=0 value=a b\n", "has to consist of letters"),
        (2, long.as_str(), "its value has 1024 bytes; at most"),
        (4, "cmd=finalize_ack rc=9\n", "saying goodbye: it refuses"),
    ];
    talk().fails_to_go_on(cases);
}

#[test]
fn what_does_not_fit_is_not_asked() {
    let room = talk().joined(&[]).0.longest_value();
    assert_eq!("cmd=put kvsname=kvs_1_vm key=udeck-4294967295-0123456789abcdef value=\n".len() + room, 1023);
    talk().does_not_put(&[
        ("root", &"v".repeat(room + 1), "at most"),
        ("root", "a b", "letters, digits"),
        ("root", "", "letters, digits"),
        ("a=b", "v", "letters, digits"),
        ("0123456789abcdefg", "v", "1 to 16"),
    ]);
    let mut narrow = steps(&JOINED);
    narrow[1].1 = "cmd=maxes kvsname_max=256 keylen_max=12 vallen_max=64\n".into();
    let mut narrow = talk().join_in(narrow, Manner::AtOnce).0.unwrap();
    assert_eq!(narrow.longest_value(), 63);
    let error = narrow.put("root", "x", soon()).unwrap_err();
    assert!(error.to_string().contains("`udeck-1-root` is too long; its keys have at most 11"), "{error}");
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
fn an_abort_is_said_and_not_waited_for() {
    let (mut pmi, rest) = talk().joined(&[]);
    pmi.abort(7, "no more", soon()).unwrap();
    assert!(pmi.fence(soon()).unwrap_err().to_string().contains("asked for the end of the job"));
    drop(pmi);
    assert_eq!(rest.join().unwrap(), "cmd=abort exitcode=7\n");

    let (mut pmi, rest) = talk().joined(&steps(&CALLS[..2]));
    pmi.put("root", "10-20-x", soon()).unwrap();
    pmi.fence(soon()).unwrap();
    pmi.fence(at_once()).unwrap_err();
    pmi.abort(255, "", soon()).expect("after an error, too");
    drop(pmi);
    assert_eq!(rest.join().unwrap(), "cmd=barrier_in\ncmd=abort exitcode=255\n");

    talk().has_said_goodbye();
}

proptest! {
    #[test]
    fn prop_whatever_the_service_says_every_call_returns(bytes in hostile(), spoilt in 0..4_usize) {
        talk().returns_after(spoilt, bytes);
    }
}
