//! What the conformance suite cannot ask: devices that fail, ports that go down, peers that are gone, memory that cannot be pinned. Over the
//! stand-in, which cargo builds beside this program.

mod beside;
mod choice;
mod early;
mod failures;
mod hostile;
mod leaks;
mod panics;
mod pool;
mod qp_connect;
mod unreliable;

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use udeck_via::{Arrival, Cq, Deadline, Error, Listener, NetAddress, Nic, Receive, Vi, ViAttributes};

use crate::{Options, Settings, Source};

const SECRET: [u8; 32] = [0x5a; 32];

/// Long enough that only a lost event gets here.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A failure of the device meets all that are open: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nic() -> Nic {
    crate::open(options(Settings::default())).expect("the NIC opens")
}

fn options(settings: Settings) -> Options {
    let mut options = Options::new(SECRET).expect("no such variables here");
    options.memory = Source::Fresh(64 << 20);
    options.settings = settings;
    options
}

/// Whether this is the process that is to run `test` with the stand-in as `variables` say; it reads them once. If not, such a
/// process is started, and has to end well.
fn unreliable(test: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "UDECK_VERBS_TEST";
    if std::env::var(MARK).is_ok_and(|mark| mark == test) {
        return true;
    }
    let mut unreliable = std::process::Command::new(std::env::current_exe().expect("it runs"));
    unreliable.args(["--exact", test, "--nocapture"]).env(MARK, test).envs(variables.iter().copied());
    let output = unreliable.output().expect("it runs again");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// A function of the stand-in's own.
fn standin(name: &CStr) -> *mut libc::c_void {
    let library = crate::ffi::library::beside().expect("cargo has built the stand-in");
    let file = std::ffi::CString::new(library.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: it is loaded already, and never unloaded.
    let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Has the stand-in tell of an event.
fn inject(event: u32, number: u32) {
    let inject = standin(c"standin_inject");
    // SAFETY: the stand-in declares it so.
    let inject: extern "C" fn(u32, u32) -> i32 = unsafe { std::mem::transmute(inject) };
    assert_eq!(inject(event, number), 0, "event {event} of {number}");
}

/// A VI that receives lent, and its completion queue.
struct End {
    vi: Vi,
    cq: Cq,
}

impl End {
    fn new(nic: &Nic) -> Self {
        let attributes = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(nic.ptag()) };
        End { vi: Vi::new(nic, attributes).unwrap(), cq: Cq::new(nic).unwrap() }
    }

    fn connect(&mut self, to: &NetAddress) -> udeck_via::Result<Vec<u8>> {
        let cq = self.cq.handle();
        self.vi.connect(to, &cq, &cq, b"", soon())
    }

    fn accept(&mut self, listener: &Listener) {
        let cq = self.cq.handle();
        listener.wait(soon()).unwrap().accept(&mut self.vi, &cq, &cq, b"").unwrap();
    }

    /// The next arrival, or the end of the connection.
    fn next(&mut self) -> udeck_via::Result<Arrival> {
        let deadline = soon();
        loop {
            if let Some(arrival) = self.vi.arrival()? {
                return Ok(arrival);
            }
            assert!(!deadline.passed(), "nothing came");
            self.cq.wait(Deadline::after(Duration::from_millis(100)), || false);
        }
    }

    fn end(&mut self) -> Error {
        loop {
            if let Err(end) = self.next() {
                return end;
            }
        }
    }
}

/// Two connected ends of two NICs.
fn pair(a: &Nic, b: &Nic) -> (End, End) {
    let host = b.attributes().address.clone();
    let (listener, to) =
        (Listener::new(b, b"door").unwrap(), NetAddress { host, discriminator: b"door".to_vec() });
    let (mut left, mut right) = (End::new(a), End::new(b));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| left.connect(&to));
        right.accept(&listener);
        asking.join().unwrap().unwrap();
    });
    (left, right)
}

/// A message goes there and back.
fn check(left: &mut End, right: &mut End) {
    let one_way = |from: &mut End, to: &mut End| {
        from.vi.send_inline(Some(7), b"", b"works").unwrap();
        assert_eq!(to.next().unwrap().immediate, Some(7));
    };
    one_way(left, right);
    one_way(right, left);
}
