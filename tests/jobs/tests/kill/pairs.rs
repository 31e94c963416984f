//! The table of `udeck_jobs::pairs`: one end of a connection dies at a chosen moment, and the other is
//! examined.
//!
//! A surviving receiver continues to use its mailbox, a surviving sender its memory: after each row messages go round through
//! a third rank, and the survivor's holdings are those from before it met the dead rank.

use super::{SIGKILL, job::InProcessJob, job::Rank};
use std::os::unix::process::ExitStatusExt;
use udeck::Protocol;
use udeck_jobs::pairs::{self, Death, Row, Side};

const PAIR: &str = env!("CARGO_BIN_EXE_kill-pair");

fn outlives_all(dies: Side, protocol: Protocol) {
    let rows: Vec<(usize, &Row)> = pairs::of(protocol, dies).collect();
    assert!(rows.len() > 2, "{protocol} has rows");
    let mut job = InProcessJob::new(2 + rows.len());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let side = if dies == Side::Sender { "sender" } else { "receiver" };
    let by = protocol.to_string();
    let mut survivor = job.start(PAIR, &words(&["survivor", side, &by]), None);
    let mut friend = job.start(PAIR, &words(&["friend", &by]), None);
    survivor.says("ready").expect("the survivor starts");
    for (rank, (number, row)) in (2..).zip(rows) {
        let args = words(&["victim", &number.to_string()]);
        live_through(&mut job, &survivor, rank, &args, row)
            .unwrap_or_else(|why| panic!("rank {rank}: {protocol}, the {side} dies {}: {why}", row.when));
    }
    for (name, rank) in [("survivor", &mut survivor), ("friend", &mut friend)] {
        let status = rank.wait().expect("it ends");
        assert!(status.success(), "the {name}: {status}");
    }
}

fn live_through(
    job: &mut InProcessJob,
    survivor: &Rank,
    rank: usize,
    args: &[String],
    row: &Row,
) -> Result<(), String> {
    let fault = match row.at {
        Death::At(point, passage) => Some(format!("{point}:{passage}")),
        Death::Idle | Death::Posted | Death::Over => None,
    };
    let mut victim = job.start(PAIR, args, fault);
    let status = victim.wait()?;
    if status.signal() != Some(SIGKILL) {
        return Err(format!("was not killed there: {status}"));
    }
    // Every other time the connection itself must report the loss, before the launcher does.
    let told_at_once = rank.is_multiple_of(2);
    if told_at_once {
        job.report(rank);
    }
    survivor.says(&format!("lost {rank}"))?;
    if !told_at_once {
        job.report(rank);
    }
    survivor.says(&format!("clean {rank}"))
}

mod the_sender_dies {
    use super::*;

    #[test]
    fn eager() {
        outlives_all(Side::Sender, Protocol::Eager);
    }

    #[test]
    fn hand_off() {
        outlives_all(Side::Sender, Protocol::HandOff);
    }

    #[test]
    fn rdma_write() {
        outlives_all(Side::Sender, Protocol::RdmaWrite);
    }

    #[test]
    fn rdma_read() {
        outlives_all(Side::Sender, Protocol::RdmaRead);
    }

    #[test]
    fn copy() {
        outlives_all(Side::Sender, Protocol::Copy);
    }

    #[test]
    fn handshake() {
        outlives_all(Side::Sender, Protocol::Handshake);
    }
}

mod the_receiver_dies {
    use super::*;

    #[test]
    fn eager() {
        outlives_all(Side::Receiver, Protocol::Eager);
    }

    #[test]
    fn hand_off() {
        outlives_all(Side::Receiver, Protocol::HandOff);
    }

    #[test]
    fn rdma_write() {
        outlives_all(Side::Receiver, Protocol::RdmaWrite);
    }

    #[test]
    fn rdma_read() {
        outlives_all(Side::Receiver, Protocol::RdmaRead);
    }

    #[test]
    fn copy() {
        outlives_all(Side::Receiver, Protocol::Copy);
    }

    #[test]
    fn handshake() {
        outlives_all(Side::Receiver, Protocol::Handshake);
    }
}
