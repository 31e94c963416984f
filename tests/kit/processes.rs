//! Search for processes by a variable in their environment, whatever group, session or parent they have.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    thread,
    time::{Duration, Instant},
};

/// Largest time for which one process may change its program over and over, and for which processes are listed while new
/// ones start.
const LIMIT: Duration = Duration::from_secs(10);

/// Living processes with this variable (`NAME=value`). A process is not missed if it starts another program, or forks and
/// ends, during this call.
///
/// # Panics
/// Panics if `/proc` is not mounted.
pub fn with_variable(variable: &str) -> Vec<i32> {
    let has_it = |pid: i32| read(pid, "environ").split(|&byte| byte == 0).any(|it| it == variable.as_bytes());
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + LIMIT;
    loop {
        // A listed process may have ended before it was read, and may have left a child that was not listed. If the next
        // list has nothing new, none has.
        let new: Vec<i32> = listed().into_iter().filter(|pid| seen.insert(*pid)).collect();
        let nothing_new = new.is_empty();
        let found: Vec<i32> = new.into_iter().filter(|&pid| has_it(pid)).collect();
        if !found.is_empty() || nothing_new || Instant::now() >= deadline {
            return found;
        }
    }
}

/// Command line of a process; empty if it has ended.
pub fn command(pid: i32) -> String {
    String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ").trim_end().to_owned()
}

fn listed() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Reads a file of a process in `/proc`: `environ` or `cmdline`. It is empty for a process that has ended (also a zombie)
/// and for another user's process, which cannot be read.
fn read(pid: i32, file: &str) -> Vec<u8> {
    let deadline = Instant::now() + LIMIT;
    // The buffer is larger than what the kernel allows a program at its start, because one call must read everything: after
    // an execve, a second call would find the end as if nothing more had been there.
    let mut bytes = vec![0; 8 << 20];
    loop {
        let length = File::open(format!("/proc/{pid}/{file}")).and_then(|mut file| file.read(&mut bytes));
        let Ok(length) = length else { return Vec::new() };
        if length > 0 || !may_be_read_again(pid) || Instant::now() >= deadline {
            bytes.truncate(length);
            return bytes;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Whether an empty `environ` or `cmdline` of a process means nothing. Both are empty during execve: from the time when the
/// process has the new program's memory until the kernel has written the words and variables there. The start of the code is
/// set later.
fn may_be_read_again(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name stands in parentheses and may itself contain blanks and parentheses. Field 3 of proc(5) follows.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |number: usize| -> u64 {
        after_name.split_whitespace().nth(number - 3).and_then(|it| it.parse().ok()).unwrap_or_default()
    };
    let (memory, code, variables, variables_end) = (field(23), field(26), field(50), field(51));
    // A process without memory has ended, or is a thread of the kernel. One with code may indeed have no
    // variables.
    memory > 0 && (code == 0 || variables != variables_end)
}
