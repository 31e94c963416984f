//! Common parts of PMI-1 and PMI-2: a service of the launcher that answers one request after the other.
//!
//! ```text
//!   pmi1, pmi2 ─► Request ─► Service ─► Channel ─► the launcher
//!                 wire: bytes, no I/O    deadlines
//! ```
//!
//! The service may be wrong, slow, or dead. Any of its answers leads to a [`StartError`] at worst, by the
//! deadline.

mod channel;
mod wire;

#[cfg(test)]
pub(super) mod fake;

use std::{str::FromStr, time::Instant};

use udeck_sys::Deadline;

pub(super) use self::{
    channel::{Broken, Channel},
    wire::{Framing, Inbox, Message, command, line},
};
use super::{
    StartError,
    found::{ENV_LAUNCH, Shown, Vars},
};

/// Upper bound of a key of [`Environment::put`](super::Environment::put), in bytes.
const LONGEST_KEY: usize = 16;

/// Upper bound of a [`key_of`], in bytes.
pub(super) const LONGEST_WHOLE_KEY: usize = "udeck-4294967295-".len() + LONGEST_KEY;

/// One request: its bytes, and the form of its answer.
pub(super) struct Request {
    /// The request's name for errors: "reading `root` of rank 0".
    pub(super) doing: String,
    pub(super) bytes: Vec<u8>,
    /// Framing of the answer.
    pub(super) framing: Framing,
    /// The `cmd` of the answer.
    pub(super) answer: &'static str,
}

impl Request {
    /// Returns the answer, or `None` while a part of it is missing.
    ///
    /// # Errors
    /// The reason, in words.
    pub(super) fn answered(&self, inbox: &mut Inbox) -> Result<Option<Message>, String> {
        inbox.next(self.framing)?.map(|message| message.expect(self.answer)).transpose()
    }
}

/// The launcher's environment variables.
pub(super) struct Variables<'a> {
    /// The protocol's name: "PMI-1".
    pub(super) protocol: &'static str,
    pub(super) vars: Vars<'a>,
}

impl Variables<'_> {
    /// Returns the name of the protocol and, as far as it is known, of the launcher: "PMI-1 (Hydra)".
    pub(super) fn title(&self) -> String {
        match self.launcher() {
            Some(launcher) => format!("{} ({launcher})", self.protocol),
            None => self.protocol.into(),
        }
    }

    /// Returns the launcher's name. Hydra and Flux are tested first: they may run within an allocation of
    /// Slurm, whose variables are then there, too.
    fn launcher(&self) -> Option<&'static str> {
        let known = [("HYDI_CONTROL_FD", "Hydra"), ("FLUX_JOB_ID", "Flux"), ("SLURM_JOB_ID", "Slurm")];
        known.into_iter().find(|(name, _)| (self.vars)(name).is_some()).map(|(_, launcher)| launcher)
    }

    /// Returns the number in the first of these variables that is set.
    ///
    /// # Errors
    /// [`StartError::Unusable`].
    pub(super) fn number<N: FromStr>(&self, names: &[&str]) -> Result<N, StartError> {
        let Some((name, value)) = names.iter().find_map(|name| Some((*name, (self.vars)(name)?))) else {
            return Err(self.unusable(format!("{} is not set", names[0])));
        };
        value.parse().map_err(|_| self.unusable(format!("{name} is no such number")))
    }

    /// Takes the descriptor that the launcher left open.
    ///
    /// # Errors
    /// [`StartError::Unusable`].
    pub(super) fn inherited(&self, number: &str) -> Result<Channel, StartError> {
        let taken = udeck_sys::inherited_channel(number);
        let taken = taken.and_then(|fd| Channel::inherited(fd).map_err(|error| error.to_string()));
        taken.map_err(|why| self.unusable(format!("PMI_FD cannot be used: {why}")))
    }

    pub(super) fn unusable(&self, why: impl Into<String>) -> StartError {
        let names = ["PMI_FD", "PMI_PORT", "PMI_ID", "PMI_RANK", "PMI_SIZE", "PMI_JOBID"];
        let found = Shown(self.vars, &names).to_string();
        StartError::Unusable {
            by: self.launcher().map_or_else(|| format!("a launcher with {}", self.protocol), Into::into),
            found: if found.is_empty() { "none of PMI's variables".into() } else { found },
            why: why.into(),
            advice: format!(
                "Let the launcher start the program itself, once per rank (`mpiexec -n 4 program`, `srun --mpi=pmi2 \
                 program`), not a script that starts it twice, closes descriptors or sets these variables. \
                 {ENV_LAUNCH}=none makes each process a world of its own"
            ),
        }
    }
}

/// A rank's connection to its launcher's service.
pub(super) struct Service {
    channel: Channel,
    inbox: Inbox,
    title: String,
    /// The reason why no further request can succeed.
    over: Option<String>,
    /// Nothing can be sent either: the goodbye was sent, or a part of a request.
    silent: bool,
}

impl Service {
    pub(super) fn new(channel: Channel, title: String) -> Service {
        Service { channel, inbox: Inbox::default(), title, over: None, silent: false }
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Sends `request`, waits for its answer, and reads it. After an error no further request is sent.
    ///
    /// # Errors
    /// [`StartError::Server`], also with a fault that `read` finds; [`StartError::Late`].
    pub(super) fn ask<T>(
        &mut self,
        request: &Request,
        until: Deadline,
        read: impl FnOnce(&Message) -> Result<T, String>,
    ) -> Result<T, StartError> {
        let begun = Instant::now();
        let asked = self.converse(request, until).and_then(|answer| read(&answer).map_err(Broken::Gone));
        asked.map_err(|broken| self.fail(&request.doing, begun, broken))
    }

    fn converse(&mut self, request: &Request, until: Deadline) -> Result<Message, Broken> {
        if let Some(why) = &self.over {
            return Err(Broken::Gone(why.clone()));
        }
        // Bytes behind the previous answer cannot answer a request that is not yet sent: from here on every
        // answer would be wrong.
        if !request.bytes.is_empty() && !self.inbox.is_empty() {
            return Err(Broken::Gone("it has said more than it was asked".into()));
        }
        self.channel.send(&request.bytes, until)?;
        loop {
            if let Some(answer) = request.answered(&mut self.inbox).map_err(Broken::Gone)? {
                return Ok(answer);
            }
            self.channel.receive(&mut self.inbox, until)?;
        }
    }

    /// Says goodbye, unless MPI does so for this process. Nothing is sent afterwards, with or without an
    /// answer.
    ///
    /// # Errors
    /// Those of [`Service::ask`].
    pub(super) fn finish(&mut self, request: &Request, until: Deadline) -> Result<(), StartError> {
        let is_mpis = self.channel.is_shared();
        let finished = if is_mpis { Ok(()) } else { self.ask(request, until, Message::succeeded) };
        self.over.get_or_insert_with(|| "this rank has said goodbye".into());
        self.silent = true;
        finished
    }

    /// Sends the last `request`, to which no answer comes. Possible after an error, too.
    ///
    /// # Errors
    /// Those of [`Service::ask`].
    pub(super) fn send_last(&mut self, request: &Request, until: Deadline) -> Result<(), StartError> {
        let begun = Instant::now();
        let sent = match &self.over {
            Some(why) if self.silent => Err(Broken::Gone(why.clone())),
            _ => self.channel.send(&request.bytes, until),
        };
        let sent = sent.map_err(|broken| self.fail(&request.doing, begun, broken));
        self.over.get_or_insert_with(|| "this rank has asked for the end of the job".into());
        self.silent = true;
        sent
    }

    /// Makes the error of a request that cannot be sent, or that was answered wrongly.
    pub(super) fn wrong(&self, doing: impl Into<String>, why: impl Into<String>) -> StartError {
        StartError::Server { environment: self.title.clone(), doing: doing.into(), why: why.into() }
    }

    #[cold]
    fn fail(&mut self, doing: &str, begun: Instant, broken: Broken) -> StartError {
        self.silent |= broken == Broken::Late { torn: true };
        let why = match &broken {
            Broken::Late { .. } => "no answer in time",
            Broken::Gone(why) => why,
        };
        self.over.get_or_insert_with(|| format!("no request is possible after this error: {doing}: {why}"));
        failure(&self.title, doing, begun, broken)
    }
}

/// Makes the error of the operation `doing`, begun at `begun`, from a broken connection.
pub(super) fn failure(title: &str, doing: &str, begun: Instant, broken: Broken) -> StartError {
    let (environment, doing) = (title.to_owned(), doing.to_owned());
    match broken {
        Broken::Late { .. } => StartError::Late { environment, doing, waited: begun.elapsed() },
        Broken::Gone(why) => StartError::Server { environment, doing, why },
    }
}

/// Returns a rank's key in the service's table, which all ranks share.
pub(super) fn key_of(rank: u32, key: &str) -> String {
    format!("udeck-{rank}-{key}")
}

/// Checks that every service takes this key and value. Escapes are not allowed: Hydra and Slurm end a value at
/// a doubled `;`.
///
/// # Errors
/// The reason, in words.
pub(super) fn check(key: &str, value: &str, longest: usize) -> Result<(), String> {
    if key.is_empty() || key.len() > LONGEST_KEY || !is_plain(key) {
        return Err(format!("a key consists of 1 to {LONGEST_KEY} letters, digits and `-`"));
    }
    check_value(value, longest)
}

/// Checks that a rank can have put this value.
///
/// # Errors
/// The reason, in words.
pub(super) fn check_value(value: &str, longest: usize) -> Result<(), String> {
    if value.len() > longest {
        return Err(format!("its value has {} bytes; at most {longest} are possible", value.len()));
    }
    if value.is_empty() || !is_plain(value) {
        // The value is not shown: it may be a part of the job's secret.
        let length = value.len();
        return Err(format!("its value of {length} bytes has to consist of letters, digits and `-`"));
    }
    Ok(())
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Checks that these can be a rank and a size.
///
/// # Errors
/// The reason, in words.
pub(super) fn check_rank(rank: u32, size: u32) -> Result<(), String> {
    if rank < size { Ok(()) } else { Err(format!("it says that this is rank {rank} of {size}")) }
}

/// Checks the version in the service's answer to `init`. A service may also name a later subversion that it
/// speaks: MPICH 5's Hydra answers 1.2 to a request for 1.1.
///
/// # Errors
/// In words: the version is another one than `ours`, or the service refuses.
pub(super) fn check_version(answer: &Message, ours: (u32, u32)) -> Result<(), String> {
    let said = |key| answer.number::<u32>(key);
    match (said("pmi_version"), said("pmi_subversion")) {
        (Ok(version), Ok(subversion)) if version != ours.0 || subversion < ours.1 => {
            Err(format!("it speaks PMI {version}.{subversion}, and {}.{} was asked for", ours.0, ours.1))
        }
        (Err(why), _) | (_, Err(why)) => answer.succeeded().and(Err(why)),
        _ => answer.succeeded(),
    }
}
