//! PMI-2, the protocol of Slurm's `mpi/pmi2` (and of Hydra, if asked): commands with their length before them,
//! over a descriptor that the launcher left open (`PMI_FD`). Only the first exchange is lines, as in PMI-1: a
//! server of both protocols learns by it which one the rank speaks.
//!
//! ```text
//!              cmd=init pmi_version=2 pmi_subversion=0⏎   ─►  cmd=response_to_init pmi_version=2 …⏎
//!              fullinit;pmijobid=;pmirank=;threaded=      ─►  fullinit-response;rc=;rank=;size=
//!   put        kvs-put;key=;value=                        ─►  kvs-put-response;rc=
//!   fence      kvs-fence                                  ─►  kvs-fence-response;rc=
//!   get        kvs-get;jobid=;srcid=;key=                 ─►  kvs-get-response;rc=;found=;value=
//!   finalize   finalize                                   ─►  finalize-response;rc=
//!   abort      abort;isworld=;msg=                            (no answer)
//! ```
//!
//! Sources: P. Balaji et al., "PMI: A Scalable Parallel Process-Management Interface for Extreme-Scale Systems", EuroMPI 2010;
//! "PMI v2 wire protocol" of MPICH's documents; what Slurm 22.05 and Hydra 4.0 answer.

use udeck_sys::Deadline;

use super::{
    Environment, StartError,
    found::Vars,
    pmi::{
        Framing, Message, Request, Service, Variables, check, check_rank, check_value, check_version,
        command, key_of, line,
    },
};

const PROTOCOL: &str = "PMI-2";
const VERSION: (u32, u32) = (2, 0);

/// Upper bound of a value, in bytes: services take 1024 for a whole command, including the names of its fields
/// and its key.
const LONGEST_VALUE: usize = 1024 - 128;
/// Upper bound of the reason for an abort, in bytes.
const LONGEST_REASON: usize = 200;

/// A rank's connection to a service that speaks PMI-2. Dropping it closes the connection without a goodbye.
pub struct Pmi2 {
    service: Service,
    rank: u32,
    size: u32,
    /// The launcher's name of the job; empty under Hydra.
    job: String,
}

impl Pmi2 {
    /// Joins the job of the variables `vars`. The descriptor is marked close-on-exec. Works once per process.
    ///
    /// # Errors
    /// [`StartError::Unusable`] if a variable is missing or wrong, the descriptor is not open, or this process
    /// has joined before; otherwise those of [`Environment::put`].
    pub fn open(vars: Vars<'_>, until: Deadline) -> Result<Pmi2, StartError> {
        let variables = Variables { protocol: PROTOCOL, vars };
        let Some(number) = vars("PMI_FD") else { return Err(variables.unusable("PMI_FD is not set")) };
        let rank = variables.number(&["PMI_RANK", "PMI_ID"])?;
        let job = vars("PMI_JOBID").unwrap_or_default();
        if job.len() > 256 || !job.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';') {
            return Err(variables.unusable("PMI_JOBID is not the name of a job"));
        }
        let channel = variables.inherited(&number)?;
        Pmi2::join(Service::new(channel, variables.title()), rank, job, until)
    }

    fn join(mut service: Service, rank: u32, job: String, until: Deadline) -> Result<Pmi2, StartError> {
        service.ask(&init(), until, |answer| check_version(answer, VERSION))?;
        let size = service.ask(&full_init(rank, &job), until, |answer| {
            answer.succeeded()?;
            let (told, size) = (answer.number("rank")?, answer.number("size")?);
            check_rank(told, size)?;
            if told != rank {
                return Err(format!("it says that this is rank {told}, and PMI_RANK says {rank}"));
            }
            Ok(size)
        })?;
        Ok(Pmi2 { service, rank, size, job })
    }
}

impl Environment for Pmi2 {
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
        LONGEST_VALUE
    }

    fn put(&mut self, key: &str, value: &str, until: Deadline) -> Result<(), StartError> {
        let request = put(self.rank, key, value);
        check(key, value, LONGEST_VALUE).map_err(|why| self.service.wrong(&request.doing, why))?;
        self.service.ask(&request, until, Message::succeeded)
    }

    fn fence(&mut self, until: Deadline) -> Result<(), StartError> {
        self.service.ask(&fence(), until, Message::succeeded)
    }

    fn get(&mut self, rank: u32, key: &str, until: Deadline) -> Result<String, StartError> {
        self.service.ask(&get(&self.job, rank, key), until, |answer| {
            answer.succeeded()?;
            if answer.text("found")? != "TRUE" {
                return Err("that rank has put nothing there".into());
            }
            let value = answer.text("value")?;
            check_value(value, LONGEST_VALUE)?;
            Ok(value.to_owned())
        })
    }

    fn finalize(&mut self, until: Deadline) -> Result<(), StartError> {
        self.service.finish(&finalize(), until)
    }

    fn abort(&mut self, code: u8, why: &str, until: Deadline) -> Result<(), StartError> {
        self.service.send_last(&abort(code, why), until)
    }
}

fn request(doing: impl Into<String>, fields: &[(&str, &str)], answer: &'static str) -> Request {
    Request { doing: doing.into(), bytes: command(fields), framing: Framing::Command, answer }
}

/// Makes the one request that is a line.
fn init() -> Request {
    Request {
        doing: "joining the job".into(),
        bytes: line(&[("cmd", "init"), ("pmi_version", "2"), ("pmi_subversion", "0")]),
        framing: Framing::Line,
        answer: "response_to_init",
    }
}

fn full_init(rank: u32, job: &str) -> Request {
    let rank = rank.to_string();
    let fields = [("cmd", "fullinit"), ("pmijobid", job), ("pmirank", &rank), ("threaded", "FALSE")];
    request("joining the job", &fields, "fullinit-response")
}

fn put(rank: u32, key: &str, value: &str) -> Request {
    let fields = [("cmd", "kvs-put"), ("key", &key_of(rank, key)), ("value", value)];
    request(format!("putting `{key}`"), &fields, "kvs-put-response")
}

fn fence() -> Request {
    request("fence", &[("cmd", "kvs-fence")], "kvs-fence-response")
}

fn get(job: &str, rank: u32, key: &str) -> Request {
    // The source is a hint where to look first; the table is one for all.
    let (source, whole) = (rank.to_string(), key_of(rank, key));
    let fields = [("cmd", "kvs-get"), ("jobid", job), ("srcid", source.as_str()), ("key", &whole)];
    request(format!("reading `{key}` of rank {rank}"), &fields, "kvs-get-response")
}

fn finalize() -> Request {
    request("saying goodbye", &[("cmd", "finalize")], "finalize-response")
}

/// Makes the request for an abort. PMI-2 has no field for an exit code; it becomes part of the reason.
/// Characters that could end the reason are replaced.
fn abort(code: u8, why: &str) -> Request {
    let why = format!("exit code {code}: {why}");
    let plain =
        |letter: char| if matches!(letter, ' '..='~') && !";=".contains(letter) { letter } else { '.' };
    let why: String = why.chars().map(plain).take(LONGEST_REASON).collect();
    let fields = [("cmd", "abort"), ("isworld", "TRUE"), ("msg", &why)];
    request("asking for the end of the job", &fields, "")
}

#[cfg(test)]
mod tests;
