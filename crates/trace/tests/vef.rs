//! Messages of parts, merged into a file in the format VEF3.

use std::fs;
use std::path::{Path, PathBuf};

use udeck_trace::{Clock, ClockSample, Lane, is_merged, merge, part_path};

const JOB: u64 = 0xBEEF;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("trace-vef-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("job.vef")
    }

    /// Merges the parts of ranks on one host. A rank without a part is lost.
    fn merged(&self, parts: &[Option<String>]) -> String {
        self.merged_by(parts, &[])
    }

    /// Merges with the clock of the last rank's host off by `sample`.
    fn merged_by(&self, parts: &[Option<String>], sample: &[ClockSample]) -> String {
        let lanes: Vec<Lane> = (0..)
            .zip(parts)
            .map(|(rank, lines)| {
                let part = lines.as_ref().map(|lines| {
                    let path = part_path(&self.path(), JOB, rank);
                    fs::write(&path, format!("[\n{lines}")).unwrap();
                    path
                });
                let is_last = rank as usize + 1 == parts.len();
                let clock = Clock(if is_last { sample.to_vec() } else { Vec::new() });
                let is_complete = part.is_some();
                Lane { rank, host: "a".into(), part, clock, is_complete }
            })
            .collect();
        let merged = merge(&self.path(), &lanes, JOB, &|| true).unwrap();
        let text = fs::read_to_string(self.path()).unwrap();
        let (head, messages) = (text.lines().take(2).collect::<Vec<_>>(), text.lines().skip(2));
        assert_eq!(head[0], format!("VEF3 {} {} 1 0 0 0 1000", parts.len(), merged.events));
        let ranks: String = (0..parts.len()).map(|rank| format!(" {rank}")).collect();
        assert_eq!(head[1], format!("C0{ranks}"));
        messages.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn slice(name: &str, rank: u32, (start, end): (u64, u64), arguments: &str) -> String {
    let micros = |time: u64| format!("{}.{:03}", time / 1000, time % 1000);
    let (ts, dur) = (micros(start), micros(end - start));
    format!(
        "{{\"ph\":\"X\",\"pid\":{rank},\"tid\":7,\"ts\":{ts},\"dur\":{dur},\"name\":\"{name}\",\"cat\":\"udeck::message\",\"args\":{{\"mailbox\":\"\\\"to\\\":9\"{arguments}}}}},\n"
    )
}

fn arrow(letter: char, rank: u32, id: u32) -> String {
    format!(
        "{{\"ph\":\"{letter}\",\"pid\":{rank},\"tid\":7,\"ts\":0.000,\"id\":\"0x{id:x}\",\"name\":\"message\",\"cat\":\"udeck\"}},\n"
    )
}

fn post(rank: u32, to: u32, time: (u64, u64), id: u32) -> String {
    // The number of bytes tells the messages apart.
    let arguments = format!(",\"to\":{to},\"bytes\":{},\"tag\":0,\"protocol\":\"eager\"", 100 + id);
    slice("post", rank, time, &arguments) + &arrow('s', rank, id)
}

fn retrieve(rank: u32, time: (u64, u64), id: u32) -> String {
    slice("retrieve", rank, time, ",\"from\":9,\"bytes\":1") + &arrow('f', rank, id)
}

#[test]
fn a_message_goes_after_the_one_that_its_rank_waited_for_or_after_the_ranks_last() {
    let folder = Folder::new("chain");
    let first = post(0, 1, (50_000, 50_400), 1)
        + &slice("step", 0, (50_500, 50_600), ",\"step\":\"announced\"")
        + &post(0, 2, (53_000, 53_100), 2)
        + &slice("trace written", 0, (54_000, 154_000), "")
        + &post(0, 1, (155_100, 155_200), 3);
    // Waits for message 1, finds message 3.
    let second = retrieve(1, (10_000, 60_000), 1)
        + &post(1, 0, (60_700, 60_900), 4)
        + &retrieve(1, (160_000, 160_100), 3)
        + &post(1, 1, (161_000, 161_500), 5)
        + &retrieve(1, (161_600, 161_700), 5);
    // Messages 2 and 4 are never retrieved.
    let lines = folder.merged(&[Some(first), Some(second), Some(String::new())]);
    let expected = [
        "0 0 1 101 4 0 -1",
        "1 0 2 102 1 2600 0",
        "2 1 0 104 2 700 0",
        "3 0 1 103 5 2000 1", // not the 100 µs in which the trace was written
        "4 1 1 105 2 5800 3", // since the post of message 3 returned
    ];
    assert_eq!(lines, expected.join("\n"));
}

/// A message depends on the one that arrived last of those that its rank has retrieved, in whatever order and by
/// whatever thread they were retrieved.
#[test]
fn the_message_that_arrived_last_counts() {
    let folder = Folder::new("latest");
    let posts = |rank, at| Some(post(rank, 0, (at, at + 100), rank));
    let first = retrieve(0, (1_000, 9_000), 2)
        + &retrieve(0, (9_500, 9_600), 1)
        + &retrieve(0, (5_000, 10_500), 3) // ends after the post begins
        + &post(0, 1, (10_000, 10_100), 4)
        + &post(0, 1, (11_000, 11_100), 5);
    let lines = folder.merged(&[Some(first), posts(1, 2_000), posts(2, 8_500), posts(3, 10_200)]);
    let last: Vec<&str> = lines.lines().filter(|line| line.contains(" 0 1 ")).collect();
    assert_eq!(last, ["2 0 1 104 2 1000 1", "4 0 1 105 2 500 3"]);
}

/// Rank 0 finds a message that was there before its own last post began. The time since that arrival has a wait and a post in it,
/// so a replay that counted it would post the later message first.
#[test]
fn what_arrived_before_the_ranks_last_post_does_not_count() {
    let folder = Folder::new("before");
    let first = retrieve(0, (1_000, 10_000_000), 2) // waits
        + &post(0, 1, (10_001_000, 10_001_500), 3)
        + &retrieve(0, (10_001_600, 10_001_700), 1) // was there
        + &post(0, 1, (10_002_000, 10_002_100), 4);
    let second = post(1, 0, (500, 900), 1) + &post(1, 0, (9_990_000, 9_990_400), 2);
    let lines = folder.merged(&[Some(first), Some(second)]);
    let own: Vec<&str> = lines.lines().filter(|line| line.contains(" 0 1 ")).collect();
    assert_eq!(own, ["2 0 1 103 2 1000 1", "3 0 1 104 1 500 2"]);
}

/// The time of the rank's own last post is no part of the time since an arrival.
#[test]
fn what_arrived_during_the_ranks_last_post_counts_from_its_end() {
    let folder = Folder::new("during");
    let first =
        post(0, 1, (5_000, 9_000), 2) + &retrieve(0, (9_100, 9_200), 1) + &post(0, 1, (9_500, 9_600), 3);
    let lines = folder.merged(&[Some(first), Some(post(1, 0, (6_000, 6_100), 1))]);
    assert_eq!(lines.lines().last(), Some("2 0 1 103 2 500 1"));
}

/// The clock of rank 1's host is a millisecond slow, and the trace says so by less: its answer seems to come before the question.
#[test]
fn a_message_stands_behind_its_cause_whatever_the_clocks_say() {
    let folder = Folder::new("clocks");
    let first = post(0, 1, (2_000_000, 2_000_100), 1) + &retrieve(0, (2_001_000, 2_009_000), 2);
    let second = retrieve(1, (1_001_000, 1_005_000), 1) + &post(1, 0, (1_006_000, 1_006_100), 2);
    let sample = ClockSample { at: 0, offset: 900_000, error: 100_000 };
    let lines = folder.merged_by(&[Some(first), Some(second)], &[sample]);
    assert_eq!(lines, "0 0 1 101 4 94000 -1\n1 1 0 102 2 1000 0");
}

#[test]
fn what_is_not_known_of_messages_does_not_hinder_the_others() {
    let folder = Folder::new("gaps");
    // Rank 1 is lost, and with it the post of message 9. Rank 0's part was cut off in the arrow of its last post.
    let mut first =
        retrieve(0, (1_000, 4_000), 9) + &post(0, 2, (5_000, 5_100), 1) + &post(0, 2, (6_000, 6_100), 2);
    first.truncate(first.len() - 20);
    // A rank that does not exist.
    let third =
        retrieve(2, (5_500, 5_600), 1) + &post(2, 7, (8_000, 8_100), 4) + &post(2, 0, (9_000, 9_100), 3);
    let lines = folder.merged(&[Some(first), None, Some(third)]);
    assert_eq!(lines, "0 0 2 101 4 0 -1\n1 0 2 102 1 900 0\n2 2 0 103 2 3900 0");
    // Arrows of two messages are interchanged: each would wait for the other.
    let first = retrieve(0, (1_000, 4_000), 2) + &post(0, 1, (5_000, 5_100), 1);
    let second = retrieve(1, (1_000, 4_500), 1) + &post(1, 0, (7_000, 7_100), 2);
    let lines = folder.merged(&[Some(first), Some(second)]);
    assert_eq!(lines, "0 1 0 102 4 2000 -1\n1 0 1 101 6 1000 0");
    assert_eq!(folder.merged(&[Some(String::new())]), "");
}

/// The launcher must not replace the trace that rank 0 has written.
#[test]
fn a_file_that_is_older_than_the_parts_is_another_jobs() {
    let folder = Folder::new("merged");
    folder.merged(&[Some(post(0, 0, (1, 2), 1))]);
    let parts = [(0, part_path(&folder.path(), JOB, 0))];
    assert!(is_merged(&folder.path(), JOB, &parts));
    let touch = |path: &Path| {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9)).unwrap();
    };
    touch(&parts[0].1);
    assert!(!is_merged(&folder.path(), JOB, &parts));
    assert!(!is_merged(&folder.0.join("none.vef"), JOB, &parts));
}
