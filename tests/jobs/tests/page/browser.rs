//! A headless Chromium, driven over its DevTools protocol.
//!
//! `--remote-debugging-pipe` makes it read commands from descriptor 3 and write answers to descriptor 4, as JSON with a zero byte
//! after each. A shell makes these two its standard input and output. So there is no port that anybody else could use, and no
//! websocket. Every wait has a deadline, and the browser ends with its [`Browser`].

use std::{
    cell::{Cell, RefCell},
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Time limit of each answer, on a busy machine, too. It only ends a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Debian's name of the program, and others.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Path of the installed browser.
pub fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|file| file.is_file())
}

/// A running browser, with one page.
pub struct Browser {
    child: Child,
    commands: RefCell<ChildStdin>,
    answers: Receiver<Value>,
    /// Events that came before an answer.
    events: RefCell<Vec<Value>>,
    last: Cell<u64>,
    session: RefCell<Option<String>>,
    folder: PathBuf,
}

impl Browser {
    /// Starts the browser, with a folder of its own for its files.
    ///
    /// # Panics
    /// This and all other calls panic if the browser does not do what was requested, or not by the deadline.
    pub fn start(program: &Path, folder: &Path) -> Self {
        let profile = folder.join("profile");
        fs::create_dir_all(&profile).expect("a folder for the browser");
        let log = fs::File::create(folder.join("browser.log")).expect("a file for what the browser says");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >&2"]).arg(program);
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args([
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-extensions",
            "--disable-background-networking",
        ]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.env("HOME", folder).env("XDG_CONFIG_HOME", folder).env("XDG_CACHE_HOME", folder);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("a shell");
        let commands = RefCell::new(child.stdin.take().expect("its standard input"));
        let mut stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            while stdout.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
                let value = serde_json::from_slice(text).unwrap_or(Value::Null);
                bytes.clear();
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let (events, last, session) = (RefCell::default(), Cell::new(0), RefCell::default());
        let browser = Self { child, commands, answers, events, last, session, folder: folder.to_owned() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach);
        *browser.session.borrow_mut() = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command and returns its answer.
    pub fn call(&self, method: &str, parameters: Value) -> Value {
        self.last.set(self.last.get() + 1);
        let id = self.last.get();
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &*self.session.borrow() {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        if let Err(error) = self.commands.borrow_mut().write_all(&bytes) {
            panic!("the browser does not take {method}: {error}; {}", self.said());
        }
        self.wait(
            method,
            |answer| (answer["id"] == id).then(|| answer.clone()),
            |answer| {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                answer["result"].clone()
            },
        )
    }

    fn wait<T>(&self, what: &str, wanted: impl Fn(&Value) -> Option<Value>, of: impl Fn(Value) -> T) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(message) = self.answers.recv_timeout(left) else {
                panic!(
                    "the browser has not answered {what} within {} s; {}",
                    PATIENCE.as_secs(),
                    self.said()
                );
            };
            match wanted(&message) {
                Some(found) => return of(found),
                None => self.events.borrow_mut().push(message),
            }
        }
    }

    fn said(&self) -> String {
        let log = fs::read_to_string(self.folder.join("browser.log")).unwrap_or_default();
        log.lines().rev().take(5).collect::<Vec<_>>().join(" | ")
    }

    /// Loads a file, in a window of this width.
    pub fn open(&self, file: &Path, width: u32, dark: bool) {
        self.events.borrow_mut().clear();
        self.resize(width, 900);
        self.dark(dark);
        self.call("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
        self.until("document.readyState === 'complete'");
        self.settle();
    }

    /// Sets the size as on a device of this width: a window of the browser cannot be as narrow as a telephone.
    pub fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Sets the colour scheme that the system is said to prefer.
    pub fn dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Waits until the page has drawn the requested changes.
    pub fn settle(&self) {
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))",
        );
    }

    /// Evaluates an expression in the page, and awaits its value.
    pub fn evaluate(&self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", asked);
        let failed = &answer["exceptionDetails"];
        assert!(failed.is_null(), "{expression}\nthrows {failed}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(expression) != true {
            assert!(Instant::now() < deadline, "not within {} s: {expression}", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Moves the mouse.
    pub fn mouse(&self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y }));
        self.settle();
    }

    /// Taps the screen.
    pub fn tap(&self, x: f64, y: f64) {
        for (kind, points) in [("touchStart", json!([{ "x": x, "y": y }])), ("touchEnd", json!([]))] {
            self.call("Input.dispatchTouchEvent", json!({ "type": kind, "touchPoints": points }));
        }
        self.settle();
    }

    /// Presses a key.
    pub fn key(&self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "code": key }));
        }
        self.settle();
    }

    /// Errors on the console, exceptions, and requests for anything but the file, since it was opened.
    pub fn complaints(&self) -> Vec<String> {
        // All events before this answer have arrived.
        self.evaluate("1");
        let events = self.events.borrow();
        events.iter().filter_map(complaint).collect()
    }
}

fn complaint(event: &Value) -> Option<String> {
    let parameters = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(format!("exception: {}", parameters["exceptionDetails"])),
        "Runtime.consoleAPICalled" => {
            let kind = parameters["type"].as_str().unwrap_or_default();
            ["error", "warning", "assert"].contains(&kind).then(|| format!("console: {}", parameters["args"]))
        }
        "Log.entryAdded" => Some(format!("log: {}", parameters["entry"])),
        "Network.requestWillBeSent" => {
            let url = parameters["request"]["url"].as_str().unwrap_or_default();
            let own = ["file:", "data:", "blob:", "about:"].iter().any(|scheme| url.starts_with(scheme));
            (!own).then(|| format!("asks the network for {url}"))
        }
        _ => None,
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The shell has become the browser, whose helpers end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
