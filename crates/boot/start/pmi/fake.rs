//! A launcher's service that a test writes down: the requests that it expects, and its answers.

mod talk;

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
    time::Duration,
};

use proptest::prelude::*;
use udeck_sys::Deadline;

use super::{Channel, Service};
pub(crate) use talk::{Talk, use_it};

/// The exact request that is expected, and the answer.
pub(crate) type Step = (String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    AtOnce,
    ByteByByte,
    /// Closes the connection after its last answer.
    Dies,
}

/// The bytes that came after the last step, up to the end of the connection.
pub(crate) type Rest = JoinHandle<String>;

pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) fn at_once() -> Deadline {
    Deadline::after(Duration::from_millis(30))
}

pub(crate) fn steps(steps: &[(&str, &str)]) -> Vec<Step> {
    steps.iter().map(|(hears, says)| ((*hears).into(), (*says).into())).collect()
}

/// Makes a service, and plays `steps` at its other end.
pub(crate) fn service(title: &str, steps: Vec<Step>, manner: Manner) -> (Service, Rest) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Service::new(Channel::new(ours), title.into()), play(theirs, steps, manner))
}

pub(crate) fn play(mut stream: impl Read + Write + Send + 'static, steps: Vec<Step>, manner: Manner) -> Rest {
    thread::spawn(move || {
        for (hears, says) in steps {
            let mut heard = vec![0; hears.len()];
            if let Err(error) = stream.read_exact(&mut heard) {
                panic!("{hears:?} was to come: {error}");
            }
            assert_eq!(String::from_utf8(heard).unwrap(), hears);
            // A rank that was sent nonsense may have gone.
            let _ = match manner {
                Manner::ByteByByte => says.bytes().try_for_each(|byte| stream.write_all(&[byte])),
                _ => stream.write_all(says.as_bytes()),
            };
        }
        let mut rest = String::new();
        if manner != Manner::Dies {
            let _ = stream.read_to_string(&mut rest);
        }
        rest
    })
}

/// Generates hostile bytes: pieces of true answers, in any order, and any bytes.
pub(crate) fn hostile() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 24] = [
        "cmd=",
        "rc=0",
        "rc=-1",
        " ",
        ";",
        ";;",
        "=",
        "\n",
        "     9",
        "114   ",
        "999999",
        "maxes",
        "get_result",
        "value=",
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        "cmd=my_kvsname kvsname=k\n",
        "cmd=put_result rc=0\n",
        "cmd=barrier_out\n",
        "cmd=get_result rc=0 value=x\n",
        "    48cmd=fullinit-response;rank=1;size=4;rc=0;aaaa=bb;",
        "    26cmd=kvs-put-response;rc=0;",
        "    28cmd=kvs-fence-response;rc=0;",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (any::<u8>(), 0..20_000_usize).prop_map(|(byte, times)| vec![byte; times]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}
