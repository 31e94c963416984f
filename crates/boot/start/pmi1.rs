//! PMI-1, the protocol of MPICH's Hydra and others: requests and answers are lines of text over a descriptor
//! that the launcher left open (`PMI_FD`), or over TCP (`PMI_PORT`).
//!
//! ```text
//!   over PMI_PORT first    initack pmiid=3                  ─►  initack, set size=, set rank=, set debug=
//!                          init pmi_version=1 …             ─►  response_to_init pmi_version=1 …
//!                          get_maxes                        ─►  maxes kvsname_max= keylen_max= vallen_max=
//!                          get_my_kvsname                   ─►  my_kvsname kvsname=
//!   put                    put kvsname= key= value=         ─►  put_result rc=
//!   fence                  barrier_in                       ─►  barrier_out
//!   get                    get kvsname= key=                ─►  get_result rc= value=
//!   finalize               finalize                         ─►  finalize_ack
//!   abort                  abort exitcode=                      (no answer)
//! ```
//!
//! Sources: P. Balaji et al., "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems", EuroMPI 2010;
//! Flux RFC 13, "Simple Process Manager Interface v1"; what Hydra 4.0 and 5.0, and Slurm 22.05 answer.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use udeck_sys::Deadline;

use super::{
    Environment, StartError,
    found::Vars,
    pmi::{
        Channel, Framing, LONGEST_WHOLE_KEY, Message, Request, Service, Variables, check, check_rank,
        check_value, check_version, failure, key_of, line,
    },
};

const PROTOCOL: &str = "PMI-1";
const VERSION: (u32, u32) = (1, 1);

/// Time for the launcher to pass on a rank's output; it needs much less.
const PASSED_ON: std::time::Duration = std::time::Duration::from_millis(200);
/// Upper bound of a line that services take, with its end and a zero, in bytes.
const LONGEST_LINE: usize = 1024;
/// Upper bound of the name of a table of values, in bytes.
const LONGEST_SPACE: usize = 256;

/// A rank's connection to a service that speaks PMI-1. Dropping it closes the connection without a goodbye.
pub struct Pmi1 {
    service: Service,
    rank: u32,
    size: u32,
    /// The service's name of the job's table of values.
    space: String,
    /// Upper bound of a key, in bytes.
    longest_key: usize,
    longest_value: usize,
}

impl Pmi1 {
    /// Joins the job of the variables `vars`. The descriptor is marked close-on-exec. Works once per process.
    ///
    /// # Errors
    /// [`StartError::Unusable`] if a variable is missing or wrong, the descriptor is not open, or this process
    /// has joined before; otherwise those of [`Environment::put`].
    pub fn open(vars: Vars<'_>, until: Deadline) -> Result<Pmi1, StartError> {
        static JOINED: AtomicBool = AtomicBool::new(false);
        Pmi1::open_once(vars, until, &JOINED)
    }

    /// `joined` is set when this process has connected to its `PMI_PORT`. (A descriptor has such a mark of its
    /// own.)
    fn open_once(vars: Vars<'_>, until: Deadline, joined: &AtomicBool) -> Result<Pmi1, StartError> {
        let variables = Variables { protocol: PROTOCOL, vars };
        if let Some(number) = vars("PMI_FD") {
            let rank = variables.number(&["PMI_RANK", "PMI_ID"])?;
            let size = variables.number(&["PMI_SIZE"])?;
            check_rank(rank, size).map_err(|why| variables.unusable(why))?;
            let channel = variables.inherited(&number)?;
            return Pmi1::join(Service::new(channel, variables.title()), rank, size, until);
        }
        let Some(address) = vars("PMI_PORT") else {
            return Err(variables.unusable("neither PMI_FD nor PMI_PORT is set"));
        };
        let id = variables.number(&["PMI_ID"])?;
        if !is_address(&address) {
            return Err(variables.unusable("PMI_PORT is not `host:port`"));
        }
        if joined.swap(true, Ordering::Relaxed) {
            return Err(variables.unusable("this process has joined its job already"));
        }
        let begun = Instant::now();
        let channel = Channel::connect(&address, until).map_err(|broken| {
            joined.store(false, Ordering::Relaxed);
            failure(&variables.title(), &format!("connecting to {address}"), begun, broken)
        })?;
        let mut service = Service::new(channel, variables.title());
        let (rank, size) = introduce(&mut service, id, until)?;
        Pmi1::join(service, rank, size, until)
    }

    fn join(mut service: Service, rank: u32, size: u32, until: Deadline) -> Result<Pmi1, StartError> {
        service.ask(&init(), until, |answer| check_version(answer, VERSION))?;
        let (longest_key, longest) = service.ask(&maxes(), until, |answer| {
            answer.succeeded()?;
            answer.number::<usize>("kvsname_max")?;
            Ok((answer.number::<usize>("keylen_max")?, answer.number::<usize>("vallen_max")?))
        })?;
        let space = service.ask(&space(), until, |answer| {
            answer.succeeded()?;
            let space = answer.text("kvsname")?;
            if space.is_empty() || space.len() > LONGEST_SPACE || space.contains(' ') {
                return Err(format!("the name of its table of values has {} bytes or a blank", space.len()));
            }
            Ok(space.to_owned())
        })?;
        // The limits count C's zero at the end.
        let longest_value = longest.saturating_sub(1).min(room_in_line(&space));
        Ok(Pmi1 { service, rank, size, space, longest_key: longest_key.saturating_sub(1), longest_value })
    }
}

impl Environment for Pmi1 {
    fn title(&self) -> String {
        self.service.title().into()
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn longest_value(&self) -> usize {
        self.longest_value
    }

    fn put(&mut self, key: &str, value: &str, until: Deadline) -> Result<(), StartError> {
        let whole = key_of(self.rank, key);
        let request = put(&self.space, &whole, key, value);
        check(key, value, self.longest_value).map_err(|why| self.service.wrong(&request.doing, why))?;
        if whole.len() > self.longest_key {
            let why = format!("`{whole}` is too long; its keys have at most {} bytes", self.longest_key);
            return Err(self.service.wrong(request.doing, why));
        }
        self.service.ask(&request, until, Message::succeeded)
    }

    fn fence(&mut self, until: Deadline) -> Result<(), StartError> {
        self.service.ask(&barrier(), until, Message::succeeded)
    }

    fn get(&mut self, rank: u32, key: &str, until: Deadline) -> Result<String, StartError> {
        let longest = self.longest_value;
        self.service.ask(&get(&self.space, rank, key), until, |answer| {
            // Hydra answers -1 and a reason, Slurm 1: for both, a key that no rank has put is the only cause.
            answer.succeeded().map_err(|why| format!("that rank has put nothing there ({why})"))?;
            let value = answer.text("value")?;
            check_value(value, longest)?;
            Ok(value.to_owned())
        })
    }

    fn finalize(&mut self, until: Deadline) -> Result<(), StartError> {
        self.service.finish(&finalize(), until)
    }

    /// Returns `true`: Hydra does.
    fn kills_all_at_once(&self) -> bool {
        true
    }

    /// Does not pass the reason on: PMI-1 has no field for it.
    fn abort(&mut self, code: u8, _why: &str, until: Deadline) -> Result<(), StartError> {
        // Hydra kills all ranks at once, and loses their output that it has not passed on.
        std::thread::sleep(PASSED_ON.min(until.remaining() / 2));
        self.service.send_last(&abort(code), until)
    }
}

/// Introduces a rank that connects over TCP: it sends its number among the launcher's processes, and gets its
/// rank and the size.
fn introduce(service: &mut Service, id: u32, until: Deadline) -> Result<(u32, u32), StartError> {
    service.ask(&initack(id), until, Message::succeeded)?;
    let size = service.ask(&told("size"), until, |told| told.number("size"))?;
    let rank = service.ask(&told("rank"), until, |told| {
        let rank = told.number("rank")?;
        check_rank(rank, size)?;
        Ok(rank)
    })?;
    service.ask(&told("debug"), until, |told| told.text("debug").map(drop))?;
    Ok((rank, size))
}

fn is_address(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Returns how long a value can be so that the line that puts it, and the one that brings it, are short enough.
fn room_in_line(space: &str) -> usize {
    let rest = put(space, &"k".repeat(LONGEST_WHOLE_KEY), "", "").bytes.len();
    (LONGEST_LINE - 1).saturating_sub(rest)
}

fn request(doing: impl Into<String>, fields: &[(&str, &str)], answer: &'static str) -> Request {
    Request { doing: doing.into(), bytes: line(fields), framing: Framing::Line, answer }
}

fn initack(id: u32) -> Request {
    request("introducing itself", &[("cmd", "initack"), ("pmiid", &id.to_string())], "initack")
}

/// Makes a request without bytes, for the lines that the service sends unasked after `initack`.
fn told(what: &str) -> Request {
    Request { bytes: Vec::new(), ..request(format!("being told its {what}"), &[], "set") }
}

fn init() -> Request {
    let fields = [("cmd", "init"), ("pmi_version", "1"), ("pmi_subversion", "1")];
    request("joining the job", &fields, "response_to_init")
}

fn maxes() -> Request {
    request("asking for its limits", &[("cmd", "get_maxes")], "maxes")
}

fn space() -> Request {
    request("asking for its table of values", &[("cmd", "get_my_kvsname")], "my_kvsname")
}

fn put(space: &str, whole_key: &str, key: &str, value: &str) -> Request {
    let fields = [("cmd", "put"), ("kvsname", space), ("key", whole_key), ("value", value)];
    request(format!("putting `{key}`"), &fields, "put_result")
}

fn barrier() -> Request {
    request("fence", &[("cmd", "barrier_in")], "barrier_out")
}

fn get(space: &str, rank: u32, key: &str) -> Request {
    let fields = [("cmd", "get"), ("kvsname", space), ("key", &key_of(rank, key))];
    request(format!("reading `{key}` of rank {rank}"), &fields, "get_result")
}

fn finalize() -> Request {
    request("saying goodbye", &[("cmd", "finalize")], "finalize_ack")
}

fn abort(code: u8) -> Request {
    let fields = [("cmd", "abort"), ("exitcode", &code.to_string())];
    request("asking for the end of the job", &fields, "")
}

#[cfg(test)]
mod tests;
