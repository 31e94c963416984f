//! Messages of jobs, recorded for the simulator of networks (`DECK_TRACE=job.vef`), and replayed by `deckfabric`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use udeck_jobs::trace_format::Trace;
use udeck_jobs::{Bin, Ended, Job};

/// A trace in the format VEF3, and a scenario that replays it, in a folder of their own.
struct Recording(PathBuf);

/// A message of the trace.
struct Message {
    from: u32,
    to: u32,
    bytes: u64,
    /// Message that it depends on, and whether the sender has to have received it.
    after: Option<(usize, bool)>,
}

impl Recording {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("jobs-recorded-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for a trace");
        Recording(folder)
    }

    /// Runs the job, and returns the messages of its trace. Nothing else is left.
    fn record(&self, job: Job) -> (Vec<Message>, Ended) {
        let ended = job.env("DECK_TRACE", self.trace()).run().ok();
        let names: Vec<_> = std::fs::read_dir(&self.0).expect("it was made").flatten().collect();
        assert_eq!(names.iter().map(|file| file.file_name()).collect::<Vec<_>>(), ["job.vef"], "{ended}");
        (self.read(), ended)
    }

    fn trace(&self) -> PathBuf {
        self.0.join("job.vef")
    }

    fn read(&self) -> Vec<Message> {
        let text = std::fs::read_to_string(self.trace()).expect("a trace");
        let message = |line: &str| {
            let numbers: Vec<i64> =
                line.split(' ').map(|word| word.parse().unwrap_or_else(|_| panic!("{line}"))).collect();
            let [_, from, to, bytes, dep, _, on] = numbers[..] else { panic!("{line}") };
            let after = usize::try_from(on).ok().map(|on| (on, dep & 3 == 2));
            Message { from: from as u32, to: to as u32, bytes: bytes as u64, after }
        };
        text.lines().skip(2).map(message).collect()
    }

    /// Replays the trace to its end. Returns the number of messages that have crossed the network, and of their flits.
    fn replay(&self) -> (u64, u64) {
        let scenario = "measured = 1000000000\n[topology]\nkind = \"tree\"\nk = 2\nn = 2\n[trace]\npath = \"job.vef\"\ncycle-ps = 5120\n";
        let path = self.0.join("scenario.toml");
        std::fs::write(&path, scenario).expect("a scenario");
        let job = Bin::deckfabric().alone().arg("run").arg(&path).args(["--format", "json"]);
        let ended = job.run().ok();
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
        let figure =
            |name: &str| report["runs"][0][name].as_u64().unwrap_or_else(|| panic!("{name}: {ended}"));
        (figure("messages"), figure("flits"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All of the trace's messages between ranks have crossed the network, with all of their bytes.
fn is_replayed(recording: &Recording, messages: &[Message]) {
    let between: Vec<u64> =
        messages.iter().filter(|message| message.from != message.to).map(|message| message.bytes).collect();
    let flits = between.iter().map(|bytes| bytes.div_ceil(64).max(1)).sum();
    assert_eq!(recording.replay(), (between.len() as u64, flits));
}

/// A trace of events of the same program has the same messages, those of collective calls included.
#[test]
fn the_trace_has_each_message_of_a_job_and_is_replayed_to_its_end() {
    for transport in ["shm", "tcp"] {
        let recording = Recording::new(transport);
        let program = Bin::at(env!("CARGO_BIN_EXE_trace-rank"));
        let job = program.ranks(4).arg("self").env("DECK_TRANSPORT", transport);
        let (messages, _) = recording.record(job);
        let mut counted: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for message in &messages {
            let (number, bytes) = counted.entry(message.from).or_default();
            (*number, *bytes) = (*number + 1, *bytes + message.bytes);
        }
        let path = recording.0.join("job.json");
        let job = program.ranks(4).arg("self").env("DECK_TRANSPORT", transport).env("DECK_TRACE", &path);
        let ended = job.run().ok();
        let mut posted: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for post in Trace::read(&path).named("post") {
            let number = |value: &serde_json::Value| value.as_u64().expect("a number");
            let (rank, bytes) = (number(&post["pid"]) as u32, number(&post["args"]["bytes"]));
            let sums = posted.entry(rank).or_default();
            *sums = (sums.0 + 1, sums.1 + bytes);
        }
        assert_eq!(counted, posted, "{ended}");
        assert!(messages.iter().any(|message| message.from == message.to), "a rank posts to itself");
        is_replayed(&recording, &messages);
    }
}

#[test]
fn nas_ft_is_replayed() {
    let recording = Recording::new("nas-ft");
    let (messages, _) = recording.record(Bin::nas_ft().ranks(4).args(["--class", "S"]));
    // Parts of 256 KiB, from all to all.
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(from, to)| from != to)
    {
        let is_part = |message: &&Message| (message.from, message.to, message.bytes) == (from, to, 256 << 10);
        assert!(messages.iter().filter(is_part).count() >= 6, "from {from} to {to}");
    }
    is_replayed(&recording, &messages);
}

/// deckrun merges what the ranks have written, and does not take the trace of the job before for this job's.
#[test]
fn of_a_job_that_ends_without_rank_0_the_messages_until_then_are_replayed() {
    let recording = Recording::new("first-killed");
    std::fs::write(recording.0.join("job.vef"), "VEF3 1 0 0 0 0 0 1000\n").expect("an older trace");
    let program = Bin::at(env!("CARGO_BIN_EXE_trace-rank"));
    let ended = program.ranks(3).arg("first-killed").env("DECK_TRACE", recording.trace()).run().fails();
    assert!(ended.stderr.contains("what 3 of 3 ranks had written"), "{ended}");
    assert!(ended.stderr.contains("may lack messages of rank 0 (incomplete), rank 1"), "{ended}");
    let messages = recording.read();
    // Each rank has posted one byte to the next one, and has retrieved one.
    let between: Vec<u32> =
        messages.iter().filter(|message| message.bytes == 1).map(|message| message.to).collect();
    assert!((0..3).all(|rank| between.contains(&rank)), "{between:?}");
    is_replayed(&recording, &messages);
}

/// A message goes around in a ring of ranks: each post depends on the post before it, which comes from the rank before.
#[test]
fn what_a_rank_posts_after_a_retrieve_depends_on_the_message() {
    const ROUNDS: usize = 5;
    for transport in ["shm", "tcp"] {
        let recording = Recording::new(&format!("token-{transport}"));
        let program = Bin::at(env!("CARGO_BIN_EXE_trace-rank"));
        let (messages, _) = recording.record(program.ranks(3).arg("token").env("DECK_TRANSPORT", transport));
        // Messages of other lengths are those of the start.
        let rounds: Vec<(usize, &Message)> =
            messages.iter().enumerate().filter(|(_, message)| message.bytes == 1234).collect();
        assert_eq!(rounds.len(), 3 * ROUNDS, "{transport}");
        for (nth, pair) in rounds.windows(2).enumerate() {
            let [(before, _), (_, message)] = pair else { continue };
            let (from, to) = ((nth + 1) as u32 % 3, (nth + 2) as u32 % 3);
            assert_eq!(
                (message.from, message.to, message.after),
                (from, to, Some((*before, true))),
                "{transport}: {nth}"
            );
        }
        is_replayed(&recording, &messages);
    }
}
