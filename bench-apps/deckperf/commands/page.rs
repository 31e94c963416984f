//! `deckperf report`: one HTML page of a new measurement or of earlier runs.
//!
//! ```text
//!   JSON files ─┐
//!   stages.rs ──┴► source.rs ─► sections.rs ─► page.html + page.css + page.js + vendor/uPlot ─► report.html
//!   (this program again,         key_figures, charts, heat, evaluation: statistics and words are made here,
//!    --format json)              page.js only draws
//! ```
//!
//! The page needs no network: style, script, uPlot and all figures are inside. Text that comes from a file is escaped in
//! `html.rs`.

mod charts;
mod evaluation;
mod heat;
mod html;
mod key_figures;
mod processor;
mod sections;
mod show;
mod source;
mod stages;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;

use self::source::Source;
use crate::failure::PerfError;

pub use self::{source::SEVERAL, stages::end_with_the_report};

/// Plan of `deckperf report`.
#[derive(Clone, Debug, PartialEq)]
pub struct PagePlan {
    /// Path of the page.
    pub output: PathBuf,
    /// Path of the raw data, if they are written as well.
    pub json: Option<PathBuf>,
    /// Files of earlier runs; empty: measure now.
    pub files: Vec<PathBuf>,
    /// Whether the page is about the figures of the thesis on DECK over VIA.
    pub is_evaluation: bool,
    /// Settings of the measurement.
    pub measure: Measure,
}

/// Default time of all stages, in seconds: with the starts of the peers less than five minutes.
pub const SECONDS: u64 = 200;
/// Time of all stages with `--quick`, in seconds.
pub const QUICK: u64 = 40;
/// Default time of all stages of `--evaluation`, in seconds; NAS FT takes longer where the machine is slow.
pub const EVALUATION: u64 = 360;

/// Settings of the measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Time of all stages together, without their start.
    pub time: Duration,
    /// Transport that is measured; `None`: the best there is.
    pub transport: Option<&'static str>,
    /// Folder of other libraries that are measured beside the installed ones.
    pub peers: Option<PathBuf>,
    /// Whether each rank has a core of its own.
    pub pin: bool,
}

/// Errors of `deckperf report`.
#[derive(Debug, thiserror::Error)]
pub enum PageFailure {
    /// The input is no run.
    #[error("{name}: {why}")]
    Unusable {
        /// Name of the file or of the stage.
        name: String,
        /// The reason, in words that follow the name.
        why: String,
    },
    /// The page, or the raw data, cannot be written.
    #[error("cannot write {path}: {source}; name another place with -o or --json", path = path.display())]
    Unwritable {
        /// The path, as the user gave it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Nothing was measured.
    #[error("no stage has measured anything, so there is no page; the lines above say why")]
    NothingMeasured,
    /// The command was started as a rank, or the text could not be printed.
    #[error(transparent)]
    Perf(#[from] PerfError),
}

impl PageFailure {
    fn unusable(name: &str, why: impl std::fmt::Display) -> Self {
        Self::Unusable { name: name.to_owned(), why: why.to_string() }
    }
}

impl PagePlan {
    /// Checks that no output overwrites an input or the other output.
    fn check_places(&self) -> Result<(), PageFailure> {
        let same = |one: &Path, other: &Path| match (fs::canonicalize(one), fs::canonicalize(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => one == other,
        };
        let refuse = |path: &Path, why| {
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            Err(PageFailure::Unwritable { path: path.to_owned(), source })
        };
        for path in [Some(&self.output), self.json.as_ref()].into_iter().flatten() {
            if self.files.iter().any(|file| same(file, path)) {
                return refuse(path, "it is read");
            }
        }
        match &self.json {
            Some(json) if same(json, &self.output) => refuse(json, "it is the page"),
            _ => Ok(()),
        }
    }
}

/// Reads or measures, writes the page, and returns the text to print. `has` says which commands this program has.
///
/// # Errors
/// A file cannot be read or written. A stage that fails is no error: it is named on the page.
pub fn make(plan: &PagePlan, has: impl Fn(&str) -> bool) -> Result<String, PageFailure> {
    if std::env::var_os("DECK_RANK").is_some() {
        return Err(PerfError::IsRank("report").into());
    }
    plan.check_places()?;
    // Outputs are opened first, before minutes are spent on figures that cannot be written.
    for path in [Some(&plan.output), plan.json.as_ref()].into_iter().flatten() {
        Draft::open(path)?;
    }
    let (sources, losses) = if plan.files.is_empty() {
        let stages = match plan.is_evaluation {
            true => stages::of_the_evaluation(&plan.measure),
            false => stages::of_everything(&plan.measure, has),
        };
        stages::measure(&plan.measure, &stages)
    } else {
        let runs: Result<Vec<_>, _> = plan.files.iter().map(|path| source::read(path)).collect();
        (runs?.into_iter().flatten().collect(), Vec::new())
    };
    if sources.is_empty() {
        return Err(match plan.files.first() {
            Some(file) => PageFailure::unusable(&file.display().to_string(), "has no runs"),
            None => PageFailure::NothingMeasured,
        });
    }
    let mut said = String::new();
    if let Some(path) = &plan.json {
        Draft::open(path)?.write(&data(&sources))?;
        said += &format!("{}: the raw data, for `deckperf report {0}`\n", path.display());
    }
    Draft::open(&plan.output)?.write(&render(&sources, &losses, plan.is_evaluation))?;
    Ok(said + &format!("{}: open it in a browser\n", plan.output.display()))
}

/// All runs as one JSON object, which `report` can read again.
fn data(sources: &[Source]) -> String {
    let runs: Vec<_> = sources.iter().map(Source::kept).collect();
    format!("{}\n", json!({ SEVERAL: runs }))
}

fn render(sources: &[Source], losses: &[String], is_evaluation: bool) -> String {
    let mut charts = Vec::new();
    let sections = sections::all(sources, is_evaluation, &mut charts);
    let links = sections
        .iter()
        .map(|section| format!("<a href=\"#{}\">{}</a>", section.id, html::escape(&section.title)))
        .collect::<String>();
    let bodies = sections.iter().map(|section| {
        let sections::Section { id, title, body } = section;
        format!("<section id=\"{id}\"><h2>{}</h2>{body}</section>\n", html::escape(title))
    });
    let busy = sources.iter().filter_map(|one| Some(format!("{}: {}", one.name, one.run.load_if_busy()?)));
    let notice = notice("The machine was busy.", &busy.collect::<Vec<_>>())
        + &notice("Not everything was measured.", losses);
    let first = &sources[0].run;
    let machine = first.machine.get("cpu").and_then(|value| value.as_str()).unwrap_or("unknown processor");
    let subtitle = format!("µDECK {}, {machine}, {}", first.udeck, first.date);
    let charts = html::script_json(&json!(charts).to_string());
    fill(&[
        ("style", &[include_str!("page/vendor/uPlot.min.css"), include_str!("page/page.css")].join("\n")),
        ("subtitle", &html::escape(&subtitle)),
        ("links", &links),
        ("notice", &notice),
        ("sections", &bodies.collect::<String>()),
        ("charts", &charts),
        ("data", &html::script_json(&data(sources))),
        ("uplot", include_str!("page/vendor/uPlot.iife.min.js")),
        ("script", include_str!("page/page.js")),
    ])
}

/// A box of what a reader has to know first; empty without lines.
fn notice(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let list = html::list(lines.iter().map(String::as_str));
    format!("<div class=\"notice\" role=\"note\"><strong>{title}</strong>{list}</div>")
}

/// Puts each text into its place of the template, once. Texts are not searched for places.
fn fill(texts: &[(&str, &str)]) -> String {
    let mut pieces = include_str!("page/page.html").split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        let text = texts.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text);
        page += text;
        page += rest;
    }
    page
}

/// A file beside the one that is to be written; it replaces that file when it is complete.
struct Draft {
    path: PathBuf,
    draft: PathBuf,
    file: fs::File,
}

impl Draft {
    fn open(path: &Path) -> Result<Self, PageFailure> {
        let fail = |source| PageFailure::Unwritable { path: path.to_owned(), source };
        let name = path.file_name().filter(|_| !path.is_dir());
        let name = name.ok_or_else(|| fail(io::Error::from(io::ErrorKind::IsADirectory)))?;
        // Where the path is a link, the file behind it is replaced, and not the link.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = real.file_name().unwrap_or(name);
        // A device, or a file that may not be changed, is not replaced either.
        if path.exists() {
            if !path.is_file() {
                return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
            }
            fs::OpenOptions::new().append(true).open(path).map_err(fail)?;
        }
        let draft = real.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
        let file = fs::File::create(&draft).map_err(fail)?;
        Ok(Self { path: real, draft, file })
    }

    fn write(mut self, text: &str) -> Result<(), PageFailure> {
        let written = self.file.write_all(text.as_bytes()).and_then(|()| fs::rename(&self.draft, &self.path));
        written.map_err(|source| PageFailure::Unwritable { path: self.path.clone(), source })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // The draft no longer exists if it has replaced the other file.
        let _ = fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{commands::messages::sample, experiment::plan::Format};

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("deckperf-page-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn plan(output: PathBuf, files: Vec<PathBuf>) -> PagePlan {
        let measure = Measure { time: Duration::from_secs(1), transport: None, peers: None, pin: true };
        PagePlan { output, json: None, files, is_evaluation: false, measure }
    }

    #[test]
    fn a_page_of_a_file_has_everything_inside() {
        let folder = folder("inside");
        let (run, page) = (folder.join("run.json"), folder.join("page.html"));
        fs::write(&run, sample().render(Format::Json)).expect("a file");
        let said = make(&plan(page.clone(), vec![run]), |_| false).expect("a page");
        assert!(said.ends_with("page.html: open it in a browser\n"), "{said}");
        let html = fs::read_to_string(&page).expect("the page");
        for part in [
            "var uPlot",
            "id=\"charts-json\">[{",
            "One-way time over shm, data untouched",
            "Some CPU",
            "</html>",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(!html.contains("{{") && !html.contains("src=") && !html.contains("@import"));
        assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 2, "a draft is left");
        fs::remove_dir_all(folder).expect("the folder");
    }

    /// The banner is in the text, on the page, and beside what is compared with it.
    #[test]
    fn figures_of_a_busy_machine_have_a_banner() {
        let mut report = sample();
        report.machine.load = Some(udeck_cli::load::Load { others: 1.4, stolen: 0.0, cores: 2 });
        let banner = "other programs used 1.4 of this host's 2 processors";
        let text = report.render(Format::Table);
        let second = text.lines().nth(1).expect("a head");
        assert!(second.starts_with(&format!("# BUSY:    {banner}")), "{text}");
        let raw = serde_json::from_str(&report.render(Format::Json)).expect("JSON");
        let html = render(&[Source::parse("run.json".into(), raw).expect("a run")], &[], false);
        let (head, figures) = html.split_once("<section").expect("sections");
        assert!(head.contains("The machine was busy.") && head.contains("other programs used 1.4"), "{head}");
        assert!(!figures.contains("The machine was busy."));
        report.machine.load = Some(udeck_cli::load::Load { others: 0.1, stolen: 0.0, cores: 2 });
        assert!(report.render(Format::Table).contains("\n# Load:    other programs used 0.1"));
    }

    /// The page of a run that has none of the thesis's figures is the usual one.
    #[test]
    fn an_evaluation_has_its_section_first_if_it_has_figures() {
        let first = |raw: serde_json::Value| {
            let html = render(&[Source::parse("run.json".into(), raw).expect("a run")], &[], true);
            html.split("<section id=\"").nth(1).expect("a section").split('"').next().map(str::to_owned)
        };
        let mut raw: serde_json::Value = serde_json::from_str(&sample().render(Format::Json)).expect("JSON");
        assert_eq!(first(raw.clone()).as_deref(), Some("summary"));
        for series in raw["series"].as_array_mut().expect("series") {
            match series["protocol"].as_str() {
                Some("copy") => series["protocol"] = "handshake".into(),
                Some("hand-off") => series["protocol"] = "eager".into(),
                _ => {}
            }
        }
        assert_eq!(first(raw).as_deref(), Some("evaluation"));
    }

    #[test]
    fn a_link_stays_and_leads_to_the_page() {
        let folder = folder("link");
        let (run, page, link) = (folder.join("run.json"), folder.join("page.html"), folder.join("link.html"));
        fs::write(&run, sample().render(Format::Json)).expect("a file");
        fs::write(&page, "").expect("a file");
        std::os::unix::fs::symlink(&page, &link).expect("a link");
        make(&plan(link.clone(), vec![run]), |_| false).expect("a page");
        assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
        assert!(fs::read_to_string(&page).expect("the page").contains("</html>"));
        fs::remove_dir_all(folder).expect("the folder");
    }

    #[test]
    fn what_cannot_be_read_or_written_is_said_in_words() {
        let folder = folder("words");
        let bad = folder.join("bad.json");
        fs::write(&bad, "{}").expect("a file");
        let why = |plan: PagePlan| make(&plan, |_| false).expect_err("no page").to_string();
        let unread = why(plan(folder.join("page.html"), vec![bad.clone()]));
        assert!(
            unread.starts_with(&format!("{}: has no figures that can be read", bad.display())),
            "{unread}"
        );
        let absent = why(plan(folder.join("page.html"), vec![folder.join("none.json")]));
        assert!(absent.contains("none.json: No such file"), "{absent}");
        // This error comes before anything is measured or read.
        let unwritten = why(plan(folder.join("none/page.html"), Vec::new()));
        assert!(
            unwritten.contains("cannot write") && unwritten.contains("name another place with -o"),
            "{unwritten}"
        );
        let run = folder.join("run.json");
        fs::write(&run, sample().render(Format::Json)).expect("a file");
        let over = why(plan(run.clone(), vec![run.clone()]));
        assert!(over.contains("run.json: it is read") && over.contains("another place"), "{over}");
        let page = folder.join("both.html");
        let twice = why(PagePlan { json: Some(page.clone()), ..plan(page, vec![run.clone()]) });
        assert!(twice.contains("both.html: it is the page"), "{twice}");
        let device = why(plan("/dev/null".into(), vec![run]));
        assert!(device.contains("cannot write /dev/null: it is no regular file"), "{device}");
        let is_folder = why(plan(folder.clone(), Vec::new()));
        assert!(is_folder.contains("is a directory"), "{is_folder}");
        assert!(!folder.join("page.html").exists());
        fs::remove_dir_all(folder).expect("the folder");
    }
}
