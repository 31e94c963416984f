//! Merge of all parts into one file.
//!
//! The merge reads the parts twice: first it finds when the trace begins, and which arrows have both ends; then
//! it writes. An arrow whose other end is lost, with a rank that died or with events that were dropped, is left
//! out. Slices come in the order of their beginnings, the longer first, as the format demands for nested ones.
//! Only one part is in memory at a time, and the ids of all arrows.
//!
//! The file appears under its name when it is complete, and so it is valid whenever it exists.
//!
//! A name that ends in `.vef` has the messages written for simulators ([`vef`]); any other the events.

mod vef;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead as _, BufReader, BufWriter, Error, ErrorKind, Read as _, Write as _};
use std::mem::take;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use udeck_sys::say;

use crate::file::{NewFile, create_shared, follow_own_links, open_own, open_regular};
use crate::json;
use crate::part::PartError;

/// Difference of a host's clock to the trace's clock at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The moment, by the host's clock, in nanoseconds.
    pub at: u64,
    /// Nanoseconds to be added to the host's clock.
    pub offset: i64,
    /// Upper bound of the error in nanoseconds: half of the shortest round trip.
    pub error: u64,
}

/// A host's clock, by samples in the order of their times. Without samples it is the trace's own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(pub Vec<ClockSample>);

impl Clock {
    /// Converts a time of this clock to the trace's: between two samples the offset changes linearly.
    fn convert(&self, time: u64) -> i64 {
        let time = time as i64;
        let offset = match &self.0[..] {
            [] => 0,
            [only] => only.offset,
            [first, .., last] => {
                let (from, to) = (first.at as i64, last.at as i64);
                let drift = i128::from(last.offset - first.offset) * i128::from(time - from);
                first.offset + (drift / i128::from((to - from).max(1))) as i64
            }
        };
        time + offset
    }

    /// Returns the largest error of the samples, in nanoseconds.
    pub fn error(&self) -> u64 {
        self.0.iter().map(|sample| sample.error).max().unwrap_or(0)
    }
}

/// A rank's part, and the facts that are known about it.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The rank's part, if it has come; several ranks of one process have the same.
    pub part: Option<PathBuf>,
    /// The clock of its host.
    pub clock: Clock,
    /// Whether the rank has written all of its events.
    pub is_complete: bool,
}

impl Lane {
    /// Tells in a word how many of the rank's events the trace has.
    fn state(&self) -> &'static str {
        match (&self.part, self.is_complete) {
            (None, _) => "lost",
            (_, false) => "incomplete",
            (_, true) => "complete",
        }
    }
}

/// Result of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Number of events that were written; in the format VEF3, of messages.
    pub events: u64,
    /// Number of arrows with both ends: messages that were retrieved.
    pub arrows: u64,
    /// Number of events that ranks have dropped.
    pub dropped: u64,
    /// Parts that could not be read, and are kept.
    pub left_out: Vec<PathBuf>,
}

/// Returns parts of this job that lie beside the file at `path`, by rank: those of ranks that could not hand
/// theirs over.
pub fn parts_beside(path: &Path, job: u64) -> Vec<(u32, PathBuf)> {
    let example = crate::part::part_path(path, job, 0);
    let (Some(folder), Some(name)) = (example.parent(), path.file_name()) else { return Vec::new() };
    let prefix = format!("{}.{job:x}.rank-", name.to_string_lossy());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name();
        let rank = name.to_str()?.strip_prefix(&prefix)?.strip_suffix(".part")?.parse().ok()?;
        Some((rank, entry.path()))
    });
    let mut found: Vec<(u32, PathBuf)> = named.collect();
    found.sort();
    found
}

/// Whether the file is to have the messages for a simulator. Its name decides.
fn is_vef(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "vef")
}

/// Tells whether a trace at `path` names its job. The format VEF3 has no place for it.
pub fn names_its_job(path: &Path) -> bool {
    !is_vef(path)
}

/// Tells whether the file at `path` is the trace of this job, whose remaining parts are `parts`. A file in the
/// format VEF3 does not name its job: it is this job's if it is no older than the parts.
pub fn is_merged(path: &Path, job: u64, parts: &[(u32, PathBuf)]) -> bool {
    if is_vef(path) {
        let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        let is_later = |merged| parts.iter().all(|(_, part)| changed(part).is_none_or(|part| part <= merged));
        return changed(path).is_some_and(is_later);
    }
    let mut start = Vec::new();
    let read = open_regular(path, OFlags::empty()).and_then(|file| file.take(4096).read_to_end(&mut start));
    let start = String::from_utf8_lossy(&start);
    read.is_ok() && start.starts_with(BEGINNING) && start.contains(&format!(",\"job\":\"{job:x}\""))
}

/// Checks that a trace can have this place. Also called before there is anything to write.
///
/// # Errors
/// The folder does not exist; or the place is no file: the trace would replace a device; or a link of another
/// user leads elsewhere.
pub fn check_place(path: &Path) -> Result<(), PartError> {
    place_of(path).map(drop)
}

/// Returns the place where the trace is written: the file that a link leads to is replaced, and not the link.
fn place_of(path: &Path) -> Result<PathBuf, PartError> {
    let failed = |source| PartError { path: path.to_owned(), source };
    let kind = |what: &'static str| Err(failed(Error::new(ErrorKind::InvalidInput, what)));
    let place = follow_own_links(path).map_err(failed)?;
    match fs::symlink_metadata(&place) {
        Ok(there) if there.is_dir() => return kind("is a directory; name a file in it"),
        Ok(there) if !there.is_file() => return kind("is no regular file"),
        Ok(_) => {}
        Err(_) => {
            if let Some(folder) = place.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                fs::metadata(folder).map_err(failed)?;
            }
        }
    }
    Ok(place)
}

/// Writes the file at `path` from all parts.
///
/// # Errors
/// The file cannot be written, or `may_go_on`, which is called now and then, returned false. A part that cannot
/// be read is reported, and its rank is `lost`.
pub fn merge(
    path: &Path,
    lanes: &[Lane],
    job: u64,
    may_go_on: &dyn Fn() -> bool,
) -> Result<Merged, PartError> {
    let (is_vef, path) = (is_vef(path), &place_of(path)?);
    let watch = Watch { may_go_on, lines: Cell::new(0) };
    let mut survey = Survey::default();
    let mut lanes = lanes.to_vec();
    let mut parts: Vec<(PathBuf, Clock)> = Vec::new();
    let mut unreadable = Vec::new();
    for lane in &mut lanes {
        let Some(part) = &lane.part else { continue };
        if unreadable.contains(part) {
            lane.part = None;
        } else if parts.iter().all(|(known, _)| known != part) {
            match survey.read(part, &lane.clock, &watch) {
                Ok(()) => parts.push((part.clone(), lane.clock.clone())),
                Err(source) if source.kind() == ErrorKind::TimedOut => {
                    return Err(PartError { path: path.to_owned(), source });
                }
                Err(error) => {
                    say!("rank {} is not in the trace: reading {}: {error}", lane.rank, part.display());
                    unreadable.extend(lane.part.take());
                }
            }
        }
    }
    survey.arrows.pair();
    let partial = path.with_file_name(format!(
        "{}.{}.{:x}.partial",
        path.file_name().unwrap_or_default().to_string_lossy(),
        std::process::id(),
        crate::now()
    ));
    let failed = |source| PartError { path: path.to_owned(), source };
    let file = create_shared(&partial).map_err(failed)?;
    let known = (&survey, &watch);
    let written = match is_vef {
        true => vef::write(file, &lanes, &parts, known),
        false => write(file, &lanes, &parts, known, job),
    };
    let written = written
        .and_then(|merged| fs::rename(&partial, path).map(|()| Merged { left_out: unreadable, ..merged }));
    written.map_err(|source| {
        let _ = fs::remove_file(&partial);
        failed(source)
    })
}

/// Facts that must be known before the first event is written.
#[derive(Default)]
struct Survey {
    /// Time of the first event.
    begin: Option<i64>,
    arrows: Arrows,
    dropped: HashMap<PathBuf, u64>,
}

/// Ids of all arrows: 16 bytes for each that has both ends, of all ranks, and after pairing 8.
#[derive(Default)]
struct Arrows {
    begun: Vec<u64>,
    ended: Vec<u64>,
    /// Arrows that begin and end exactly once, sorted.
    whole: Vec<u64>,
}

impl Arrows {
    /// Pairs the ends, after all have been seen.
    fn pair(&mut self) {
        let (mut begun, mut ended) = (take(&mut self.begun), take(&mut self.ended));
        begun.sort_unstable();
        ended.sort_unstable();
        let mut ends = once_each(&ended).peekable();
        self.whole = once_each(&begun)
            .filter(|id| {
                while ends.next_if(|end| end < id).is_some() {}
                ends.peek() == Some(id)
            })
            .collect();
    }

    fn has_both_ends(&self, line: Line<'_>) -> bool {
        line.arrow().is_some_and(|id| self.whole.binary_search(&id).is_ok())
    }
}

/// Returns the numbers that occur exactly once in a sorted list.
fn once_each(sorted: &[u64]) -> impl Iterator<Item = u64> {
    sorted.chunk_by(|one, other| one == other).filter(|same| same.len() == 1).map(|same| same[0])
}

impl Survey {
    fn read(&mut self, part: &Path, clock: &Clock, watch: &Watch<'_>) -> io::Result<()> {
        each_line(part, watch, |line| self.note(part, clock, line))
    }

    fn note(&mut self, part: &Path, clock: &Clock, line: Line<'_>) {
        match line.letter() {
            Some('M') => {
                if line.0.contains("\"udeck_dropped\"") {
                    let count = line.member("events").and_then(|count| count.parse().ok());
                    self.dropped.insert(part.to_owned(), count.unwrap_or(0));
                }
                return;
            }
            Some('s') => self.arrows.begun.extend(line.arrow()),
            Some('f') => self.arrows.ended.extend(line.arrow()),
            _ => {}
        }
        if let Some(time) = line.time() {
            let time = clock.convert(time);
            self.begin = Some(self.begin.map_or(time, |begin| begin.min(time)));
        }
    }
}

/// Asks now and then whether there is time for more.
struct Watch<'a> {
    may_go_on: &'a dyn Fn() -> bool,
    lines: Cell<u32>,
}

impl Watch<'_> {
    /// Number of lines between two calls of `may_go_on`: about a millisecond.
    const LINES: u32 = 4096;

    fn look(&self) -> io::Result<()> {
        let lines = self.lines.get();
        self.lines.set(lines.wrapping_add(1));
        if lines.is_multiple_of(Self::LINES) && !(self.may_go_on)() {
            return Err(Error::new(ErrorKind::TimedOut, "the time for merging was over"));
        }
        Ok(())
    }
}

/// Passes each event of a part to `note`.
fn each_line(part: &Path, watch: &Watch<'_>, mut note: impl FnMut(Line<'_>)) -> io::Result<()> {
    let mut reader = BufReader::new(open_own(part)?);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        watch.look()?;
        if let Some(line) = Line::of(&String::from_utf8_lossy(&bytes)) {
            note(line);
        }
        bytes.clear();
    }
    Ok(())
}

fn text_of(part: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open_own(part)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The line of one event.
#[derive(Clone, Copy)]
struct Line<'a>(&'a str);

/// Returns the events of a part.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.split_inclusive('\n').filter_map(Line::of)
}

impl<'a> Line<'a> {
    /// Checks a line. The last one of a part may be cut off, if the process was killed.
    fn of(text: &'a str) -> Option<Self> {
        text.strip_suffix(",\n").filter(|line| line.starts_with("{\"ph\":\"")).map(Line)
    }

    /// Returns the id of the arrow that begins or ends here.
    fn arrow(self) -> Option<u64> {
        u64::from_str_radix(self.member("id")?.strip_prefix("0x")?, 16).ok()
    }

    fn letter(self) -> Option<char> {
        self.0.strip_prefix("{\"ph\":\"")?.chars().next()
    }

    /// Returns a member's text. The member must not hold words of the program: those come behind all members
    /// that are read here.
    fn member(self, name: &str) -> Option<&'a str> {
        let (_, rest) = self.0.split_once(&format!("\"{name}\":"))?;
        let end = rest.find([',', '}'])?;
        Some(rest[..end].trim_matches('"'))
    }

    /// Returns the event's time, in nanoseconds.
    fn time(self) -> Option<u64> {
        nanoseconds(self.member("ts")?)
    }

    fn length(self) -> u64 {
        if self.letter() == Some('X') { self.member("dur").and_then(nanoseconds).unwrap_or(0) } else { 0 }
    }
}

fn nanoseconds(micros: &str) -> Option<u64> {
    let (whole, rest) = micros.split_once('.')?;
    Some(whole.parse::<u64>().ok()? * 1000 + rest.parse::<u64>().ok()?)
}

fn write(
    to: NewFile,
    lanes: &[Lane],
    parts: &[(PathBuf, Clock)],
    (survey, watch): (&Survey, &Watch<'_>),
    job: u64,
) -> io::Result<Merged> {
    let mut file = BufWriter::new(to);
    let mut merged = Merged { dropped: survey.dropped.values().sum(), ..Merged::default() };
    file.write_all(head(lanes, merged.dropped, job).as_bytes())?;
    let begin = survey.begin.unwrap_or(0);
    let mut separator = "";
    let mut out = String::new();
    for (part, clock) in parts {
        let text = text_of(part)?;
        // A slice's end is converted like its beginning: nested slices stay nested, whatever the clock's drift.
        let mut events: Vec<(i64, Reverse<u64>, Line<'_>)> = Vec::new();
        for line in lines(&text) {
            watch.look()?;
            let time = match line.letter() {
                Some('M') if line.0.contains(",\"name\":\"udeck_") => continue,
                Some('M') => i64::MIN,
                Some('s' | 'f') if !survey.arrows.has_both_ends(line) => continue,
                _ => line.time().map_or(i64::MIN, |time| clock.convert(time)),
            };
            let end = line.time().map_or(time, |start| clock.convert(start + line.length()));
            events.push((time, Reverse(end.saturating_sub(time).max(0) as u64), line));
        }
        events.sort_by_key(|(time, length, _)| (*time, *length));
        for (time, Reverse(length), line) in events {
            watch.look()?;
            out.clear();
            out.push_str(separator);
            separator = ",\n";
            placed(&mut out, line, if time == i64::MIN { 0 } else { (time - begin).max(0) as u64 }, length);
            file.write_all(out.as_bytes())?;
            merged.events += 1;
            merged.arrows += u64::from(line.letter() == Some('f'));
        }
    }
    file.write_all(b"\n]}\n")?;
    file.flush()?;
    Ok(merged)
}

/// Writes the event with its time and its length in the trace.
fn placed(to: &mut String, line: Line<'_>, time: u64, length: u64) {
    let Some((before, rest)) = line.0.split_once("\"ts\":") else { return to.push_str(line.0) };
    let behind = rest.find([',', '}']).map_or("", |end| &rest[end..]);
    to.push_str(before);
    to.push_str("\"ts\":");
    json::micros(to, time);
    let Some(rest) = behind.strip_prefix(",\"dur\":") else { return to.push_str(behind) };
    to.push_str(",\"dur\":");
    json::micros(to, length);
    to.push_str(rest.find([',', '}']).map_or("", |end| &rest[end..]));
}

const METHOD: &str = "ranks of one host share CLOCK_MONOTONIC; another host's clock is compared with that of \
                      rank 0's host by round trips of short messages when the world is made and when it is finished; \
                      the shortest of each counts, its middle is the moment of comparison, half of it the error \
                      stated; between the two the offset changes evenly";

const BEGINNING: &str = "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"producer\":\"udeck ";

/// Returns the text before the events.
fn head(lanes: &[Lane], dropped: u64, job: u64) -> String {
    let mut to = String::from(BEGINNING);
    let error = lanes.iter().map(|lane| lane.clock.error()).max().unwrap_or(0);
    let _ = write!(to, "{}\",\"job\":\"{job:x}\",\"clock_method\":", env!("CARGO_PKG_VERSION"));
    json::quoted(&mut to, METHOD);
    let _ = write!(to, ",\n\"clock_error_ns\":{error},\"dropped_events\":{dropped},\"ranks\":[");
    for (nth, lane) in lanes.iter().enumerate() {
        let Lane { rank, host, clock, .. } = lane;
        let _ = write!(to, "{}\n{{\"rank\":{rank},\"host\":", if nth == 0 { "" } else { "," });
        json::quoted(&mut to, host);
        let state = lane.state();
        let offset = clock.0.first().map_or(0, |sample| sample.offset);
        let error = clock.error();
        let _ =
            write!(to, ",\"events\":\"{state}\",\"clock_offset_ns\":{offset},\"clock_error_ns\":{error}}}");
    }
    to.push_str("]},\n\"traceEvents\":[\n");
    to
}
