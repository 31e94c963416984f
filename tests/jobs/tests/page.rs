//! Tests of the page of `deckperf report` in a headless Chromium: with a sample that has everything, and with
//! measurements of this host.
//!
//! `cargo xtask test --only page` builds deckperf and sets its folder in `DECK_BIN_DIR`. Without a browser all tests are
//! skipped, with the reason; `UDECK_PAGE=require` makes that a failure.
//! `cargo test -p udeck-jobs --test page -- pictures PAGE FOLDER` makes pictures of a page instead.

#[path = "page/browser.rs"]
mod browser;
#[path = "page/pictures.rs"]
mod pictures;
#[path = "page/sample.rs"]
mod sample;

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use browser::Browser;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

/// Variable that makes the skip a failure.
const REQUIRED: &str = "UDECK_PAGE";
/// Widths of a telephone and of a desktop in pixels.
const WIDTHS: [u32; 2] = [390, 1400];

/// Time limit of a page, measured or not, on a busy machine. It only ends a hang.
const PATIENCE: Duration = Duration::from_secs(240);

type Case = (&'static str, fn(&Browser, &Path));

/// Cases, each with a browser of its own and a folder.
const CASES: [Case; 9] = [
    ("nothing_overflows_and_nobody_complains", nothing_overflows),
    ("all_curves_are_drawn_light_and_dark", curves_are_drawn),
    ("mouse_finger_and_keys_show_the_figures", figures_are_shown),
    ("a_line_can_be_hidden", lines_can_be_hidden),
    ("the_csv_has_every_figure", csv_is_whole),
    ("the_json_is_read_again", json_is_read_again),
    ("print_is_light_and_whole", print_is_whole),
    ("what_is_measured_here_is_a_page", measured_page),
    ("a_report_that_is_killed_leaves_nothing_behind", killed_report),
];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [command, page, folder] = &words[..]
        && command == "pictures"
    {
        let program = browser::find().expect("a browser");
        pictures::take(&program, Path::new(page), Path::new(folder));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Only one job runs at a time, because jobs check for leftovers.
    arguments.test_threads = Some(1);
    let program = browser::find();
    let required = env::var(REQUIRED).is_ok_and(|word| word == "require");
    let trials = CASES.map(|(name, case)| trial(name, case, program.clone(), required));
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    if program.is_none() {
        println!("skipped: no Chromium on PATH (apt install chromium)");
    }
    conclusion.exit_code()
}

fn trial(name: &'static str, case: fn(&Browser, &Path), program: Option<PathBuf>, required: bool) -> Trial {
    match program {
        None if required => Trial::test(name, || {
            Err(Failed::from(format!("no Chromium on PATH, and {REQUIRED} asks for it")))
        }),
        None => Trial::test(name, || Ok(())).with_ignored_flag(true),
        Some(program) => Trial::test(name, move || {
            let folder = Folder::new(name);
            let run = || case(&Browser::start(&program, &folder.0), &folder.0);
            panic::catch_unwind(AssertUnwindSafe(run)).map_err(|_| Failed::without_message())
        }),
    }
}

/// Folder of a test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("udeck-page-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the page of the sample.
fn sample_page(folder: &Path) -> PathBuf {
    let files = sample::runs().into_iter().map(|(name, run)| {
        let file = folder.join(name);
        fs::write(&file, run.to_string()).expect("a file");
        file
    });
    report(folder, files)
}

/// Makes deckperf's page from these words, which are files or options.
fn report(folder: &Path, words: impl IntoIterator<Item = PathBuf>) -> PathBuf {
    let programs = env::var_os("DECK_BIN_DIR").expect("DECK_BIN_DIR: `cargo xtask test --only page` sets it");
    let (page, said) = (folder.join("page.html"), folder.join("said"));
    let log = || fs::File::options().append(true).create(true).open(&said).expect("a file for what it says");
    let mut command = Command::new(Path::new(&programs).join("deckperf"));
    command.args(["report", "-o"]).arg(&page).args(words);
    // The environment hides other libraries and the user's settings.
    command.env("PATH", "/nonexistent").stdin(Stdio::null()).stdout(log()).stderr(log());
    let settings =
        env::vars_os().map(|(name, _)| name).filter(|name| name.as_encoded_bytes().starts_with(b"DECK_"));
    settings.for_each(|name| _ = command.env_remove(name));
    let mut child = command.spawn().expect("deckperf, as the step has built it");
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().expect("the state of a child") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let said = fs::read_to_string(&said).unwrap_or_default();
    assert!(status.is_some_and(|status| status.success()), "{status:?} after {PATIENCE:?} or less: {said}");
    assert!(said.ends_with("page.html: open it in a browser\n"), "{said}");
    page
}

/// Script that finds elements that reach out of the window, or hide text that cannot be scrolled to.
const OVERFLOWING: &str = r#"(() => {
    const wide = document.documentElement.scrollWidth - innerWidth;
    const found = wide > 0 ? ["the page is " + wide + " px too wide"] : [];
    for (const one of document.querySelectorAll("body *")) {
        const style = getComputedStyle(one);
        if (one.closest("svg, script, .u-wrap, #tip") || !one.innerText || style.display === "inline" || !one.clientWidth) continue;
        if (one.scrollWidth > one.clientWidth + 1 && style.overflowX !== "auto") found.push(one.tagName + "." + one.className + ": " + one.innerText.slice(0, 60));
    }
    return found;
})()"#;

/// Script that describes each chart: its heading, the contenders in the legend, and those whose colour its
/// canvas has.
const DRAWN: &str = r#"[...document.querySelectorAll("figure[data-chart]")].map(chart => {
    const canvas = chart.querySelector("canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (colour) => { probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1); return probe.getImageData(0, 0, 1, 1).data; };
    const colours = [...chart.querySelectorAll(".legend line")].map(line => rgb(line.getAttribute("stroke")));
    const counts = colours.map(() => 0);
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 200) continue;
        colours.forEach((c, n) => {
            if (Math.abs(data[at] - c[0]) + Math.abs(data[at + 1] - c[1]) + Math.abs(data[at + 2] - c[2]) < 24) counts[n]++;
        });
    }
    return { title: chart.querySelector("h4").innerText, lines: colours.length, seen: counts.filter(n => n > 20).length };
})"#;

fn assert_fits(browser: &Browser, when: &str) {
    let found = browser.evaluate(OVERFLOWING);
    assert_eq!(found, serde_json::json!([]), "{when}");
}

fn assert_drawn(browser: &Browser, when: &str) -> Vec<Value> {
    let drawn = browser.evaluate(DRAWN).as_array().cloned().unwrap_or_default();
    for chart in &drawn {
        let lines = chart["lines"].as_u64().unwrap_or(0);
        assert!(lines > 0 && chart["seen"] == chart["lines"], "{when}: {chart}");
    }
    drawn
}

fn nothing_overflows(browser: &Browser, folder: &Path) {
    let page = sample_page(folder);
    for width in WIDTHS {
        for dark in [false, true] {
            browser.open(&page, width, dark);
            assert_fits(browser, &format!("{width} px, dark: {dark}"));
            assert_eq!(browser.complaints(), Vec::<String>::new());
        }
    }
    // Names are shown as text, whatever they contain.
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    let shown = browser.evaluate("document.querySelector('table.compared thead').textContent");
    assert!(shown.as_str().is_some_and(|text| text.contains(sample::HOSTILE)), "{shown}");
    // An exception would have been noticed.
    browser.evaluate("setTimeout(() => { throw new Error('seen') })");
    browser.settle();
    assert_eq!(browser.complaints().len(), 1);
}

fn curves_are_drawn(browser: &Browser, folder: &Path) {
    let page = sample_page(folder);
    let paper = "getComputedStyle(document.body).backgroundColor";
    for width in WIDTHS {
        browser.open(&page, width, false);
        let light = browser.evaluate(paper);
        let drawn = assert_drawn(browser, "light");
        assert_eq!(drawn.len(), sample::CHARTS, "{drawn:?}");
        let lines = drawn.iter().map(|chart| chart["lines"].as_u64().unwrap_or(0)).collect::<Vec<_>>();
        // The lines are four protocols and three limits of the time over shared memory.
        assert_eq!((lines[0], lines.iter().max()), (7, Some(&7)), "{drawn:?}");
        browser.dark(true);
        browser.settle();
        assert_ne!(browser.evaluate(paper), light);
        assert_drawn(browser, "dark");
        browser.evaluate("document.getElementById('theme').click()");
        browser.settle();
        assert_eq!(browser.evaluate(paper), light);
        assert_drawn(browser, "light again");
        browser.evaluate("localStorage.clear()");
    }
}

/// Script that returns the first chart's tip at the pointer, and the values of the table below it.
const SHOWN: &str = r##"(() => {
    const tip = document.getElementById("tip");
    if (tip.hidden) return "hidden";
    const box = tip.getBoundingClientRect();
    if (box.left < 0 || box.right > innerWidth) return "outside of the window";
    const place = tip.querySelector("strong").textContent.split(",")[0];
    const table = document.querySelector("figure[data-chart] table.figures");
    const heads = [...table.querySelectorAll("thead th")].map(head => head.textContent.split(",")[0]);
    const row = [...table.rows].find(row => row.cells[0].textContent === place);
    for (const shown of tip.querySelectorAll("tr")) {
        const [, name, figure, bounds] = [...shown.cells].map(cell => cell.textContent);
        const cell = row.cells[heads.indexOf(name)];
        if (cell.textContent !== figure) return name + " has " + figure + ", not " + cell.textContent;
        const known = cell.title.match(/bounds (\S+ to \S+)/)[1];
        if (bounds !== "95 %: " + known) return name + " has bounds " + bounds + ", not " + known;
    }
    return place + ": " + tip.querySelectorAll("tr").length;
})()"##;

/// Middle of the first chart, after it was scrolled into view.
fn middle(browser: &Browser) -> (f64, f64) {
    let found = browser.evaluate(
        "(() => { const over = document.querySelector('.u-over'); over.scrollIntoView({ block: 'center' });
         const box = over.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; })()",
    );
    (found[0].as_f64().expect("x"), found[1].as_f64().expect("y"))
}

fn figures_are_shown(browser: &Browser, folder: &Path) {
    let page = sample_page(folder);
    for width in WIDTHS {
        browser.open(&page, width, false);
        assert_eq!(browser.evaluate(SHOWN), "hidden");
        let (x, y) = middle(browser);
        browser.mouse(x, y);
        assert_eq!(browser.evaluate(SHOWN), "512 B: 7", "mouse, {width} px");
        browser.mouse(2.0, 2.0);
        assert_eq!(browser.evaluate(SHOWN), "hidden");
    }
    browser.open(&page, WIDTHS[0], false);
    let (x, y) = middle(browser);
    browser.tap(x, y);
    assert_eq!(browser.evaluate(SHOWN), "512 B: 7", "finger");

    browser.open(&page, WIDTHS[1], false);
    browser.evaluate("document.querySelector('.plot').focus()");
    for (key, place) in
        [("ArrowRight", "0 B"), ("ArrowRight", "8 B"), ("End", "1 MiB"), ("ArrowLeft", "64 KiB")]
    {
        browser.key(key);
        assert_eq!(browser.evaluate(SHOWN), format!("{place}: 7"), "{key}");
    }
    let read = browser.evaluate("document.querySelector('.read').textContent");
    assert!(
        read.as_str().is_some_and(|text| text.starts_with("64 KiB: copy ") && text.ends_with(" µs")),
        "{read}"
    );
    browser.key("Escape");
    assert_eq!(browser.evaluate(SHOWN), "hidden");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

fn lines_can_be_hidden(browser: &Browser, folder: &Path) {
    browser.open(&sample_page(folder), WIDTHS[1], false);
    let seen = || browser.evaluate(DRAWN)[0]["seen"].as_u64();
    assert_eq!(seen(), Some(7));
    for (pressed, left) in [("false", 6), ("true", 7)] {
        browser.evaluate("document.querySelector('.legend button').click()");
        browser.settle();
        let state = browser.evaluate("document.querySelector('.legend button').getAttribute('aria-pressed')");
        assert_eq!((state, seen()), (pressed.into(), Some(left)));
    }
}

/// Data that a button produces, without a file.
fn downloaded(browser: &Browser, button: &str) -> String {
    let text = browser.evaluate(&format!(
        "new Promise((done) => {{
            const made = URL.createObjectURL;
            URL.createObjectURL = (blob) => {{ blob.text().then(done); URL.createObjectURL = made; return made(blob); }};
            document.getElementById('{button}').click();
        }})"
    ));
    text.as_str().expect("text").to_owned()
}

fn csv_is_whole(browser: &Browser, folder: &Path) {
    browser.call("Browser.setDownloadBehavior", serde_json::json!({ "behavior": "deny" }));
    browser.open(&sample_page(folder), WIDTHS[1], false);
    let csv = downloaded(browser, "csv");
    let mut lines = csv.lines();
    let heads = lines.next().unwrap_or_default();
    let start = "source,command,date,test,library,transport,protocol,payload,size,ranks,buffers,from,per-second,row,to,waiting,";
    assert!(heads.starts_with(start) && heads.ends_with("unit,better,round,figure"), "{heads}");
    assert_eq!(lines.clone().count(), sample::figures());
    let quoted = format!("\"{}\"", sample::HOSTILE.replace('"', "\"\""));
    assert_eq!(lines.filter(|line| line.contains(&quoted)).count(), 3 * sample::ROUNDS);
}

fn json_is_read_again(browser: &Browser, folder: &Path) {
    browser.call("Browser.setDownloadBehavior", serde_json::json!({ "behavior": "deny" }));
    let page = sample_page(folder);
    browser.open(&page, WIDTHS[1], false);
    let first = fs::read_to_string(&page).expect("the page");
    let file = folder.join("all.json");
    fs::write(&file, downloaded(browser, "json")).expect("a file");
    report(folder, [file]);
    assert!(fs::read_to_string(&page).expect("the page") == first, "the page of its own data is another one");
}

fn print_is_whole(browser: &Browser, folder: &Path) {
    browser.open(&sample_page(folder), WIDTHS[1], true);
    let paper = serde_json::json!({ "printBackground": true, "paperWidth": 8.27, "paperHeight": 11.69 });
    let pdf = browser.call("Page.printToPDF", paper);
    // The text is Base64 of "%PDF-".
    assert!(pdf["data"].as_str().is_some_and(|text| text.starts_with("JVBERi0") && text.len() > 100_000));
    browser.settle();
    assert_eq!(browser.evaluate("document.documentElement.dataset.theme"), "dark", "afterwards");
    // The width is that of paper, whose printable width is about 700 px.
    browser.call("Emulation.setEmulatedMedia", serde_json::json!({ "media": "print" }));
    browser.resize(718, 1000);
    browser.evaluate("dispatchEvent(new Event('beforeprint'))");
    browser.settle();
    assert_fits(browser, "print");
    let widths = "[...document.querySelectorAll('.plot, table')].filter(one => one.offsetParent).map(one => one.getBoundingClientRect().right)";
    let widths = browser.evaluate(widths);
    let widths: Vec<f64> = widths.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    assert!(!widths.is_empty() && widths.iter().all(|right| *right <= 718.0), "{widths:?}");
    assert_eq!(assert_drawn(browser, "print").len(), sample::CHARTS);
    assert_eq!(browser.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)");
}

/// The end of `deckperf report` ends the processes that it has started, even after a signal that cannot be
/// caught.
fn killed_report(_: &Browser, folder: &Path) {
    let programs = env::var_os("DECK_BIN_DIR").expect("DECK_BIN_DIR: `cargo xtask test --only page` sets it");
    let mut command = Command::new(Path::new(&programs).join("deckperf"));
    command
        .args(["report", "--time", "600", "--no-pin", "--transport", "shm", "-o"])
        .arg(folder.join("never.html"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("deckperf, as the step has built it");
    let wait_for = |what: &str, limit: Duration, there: &mut dyn FnMut() -> bool| {
        let deadline = Instant::now() + limit;
        while !there() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    let mut all = Vec::new();
    // The processes are the stage, and its two ranks.
    wait_for("no stage has begun", PATIENCE, &mut || {
        all = descendants(child.id());
        all.len() >= 3
    });
    child.kill().expect("a child");
    child.wait().expect("a child");
    // Otherwise the stage would go on for minutes.
    wait_for("what a report has started outlives it", Duration::from_secs(30), &mut || {
        !all.iter().any(|process| is_alive(*process))
    });
}

/// Descendants of this process, including children of children.
fn descendants(process: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = entries
        .filter_map(|entry| {
            let child = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            // The fields after the name, which may contain any letters, are the state and the parent.
            let parent = stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((child, parent))
        })
        .collect();
    let mut all = vec![process];
    let mut at = 0;
    while let Some(&next) = all.get(at) {
        all.extend(parents.iter().filter(|(_, parent)| *parent == next).map(|(child, _)| *child));
        at += 1;
    }
    all.split_off(1)
}

/// Whether the process is alive, and no zombie, which waits for its parent.
fn is_alive(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn measured_page(browser: &Browser, folder: &Path) {
    // The measurement is as short as possible, of everything that this build has.
    let words = ["--time", "2", "--no-pin", "--json"].map(PathBuf::from);
    let raw = folder.join("raw.json");
    let page = report(folder, words.into_iter().chain([raw.clone()]));
    // With one processor no comparison is possible, and the page says so.
    let stages = if thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) { 4 } else { 3 };
    for width in WIDTHS {
        browser.open(&page, width, false);
        assert_fits(browser, &format!("measured, {width} px"));
        let drawn = browser.evaluate(DRAWN).as_array().cloned().unwrap_or_default();
        // The charts show time and bandwidth, with data untouched and not, over each of three transports, and all transports
        // beside each other.
        assert!(drawn.len() >= 4 * 4, "{drawn:?}");
        // One line may cover another here.
        assert!(drawn.iter().all(|chart| chart["seen"].as_u64() > Some(0)), "{drawn:?}");
        let notices = browser.evaluate("[...document.querySelectorAll('.notice')].map(one => one.innerText)");
        let notices = notices.as_array().cloned().unwrap_or_default();
        // This test does not judge whether the machine was busy meanwhile.
        let others: Vec<_> = notices.iter().filter(|one| !says_busy(one)).collect();
        assert_eq!(others.len(), usize::from(stages == 3), "{notices:?}");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    let raw: Value = serde_json::from_str(&fs::read_to_string(raw).expect("raw data")).expect("JSON");
    assert!(raw["runs"].as_array().is_some_and(|runs| runs.len() >= stages));
}

fn says_busy(notice: &Value) -> bool {
    notice.as_str().is_some_and(|text| text.starts_with("The machine was busy."))
}
