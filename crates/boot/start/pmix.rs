//! PMIx: the interface of Open MPI's `mpirun`, of PRRTE, and of Slurm (`srun --mpi=pmix`), by their library.
//!
//! `libpmix.so.2` is loaded when it is needed. The library talks with the launcher's daemon of this host, which
//! it finds by `PMIX_…` variables, on a thread of its own that lives as long as the process (for the reason see
//! [`session`]).
//!
//! The library is shared with MPI, if the program uses MPI, too: it counts its users, and MPI's values lie
//! beside ours. Fences are told apart by their participants: all ranks must make those of MPI and of µDECK in
//! the same order. Open MPI 4.1 takes either order of `MPI_Init` and [`Pmix::open`]. In Open MPI 5 `MPI_Init`
//! has to come first: it does not learn its rank from a library that other code has initialised.

mod ask;
mod ffi;
mod find;
mod session;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::fmt::Display;
use std::ptr;

use udeck_sys::Deadline;

use super::{Environment, StartError};
use ask::{NoAnswer, ask};
pub(super) use ffi::is_mpi_initialized;
use ffi::{Library, Proc, Status, Unread};
use find::Vars;
use session::{Joined, SESSION, Session, leave_at_exit};

/// Upper bound of a value, in bytes. PMIx itself has no limit as low; servers move all values of a host in one
/// message.
const LONGEST_VALUE: usize = 4096;

/// The connection of this rank to a launcher's PMIx server.
#[derive(Debug)]
pub(crate) struct Pmix {
    joined: Joined,
    /// The joined session. Tests have their own.
    session: &'static Session,
    /// The number of this world in the process, the same in all ranks.
    world: u32,
    /// The call that has not returned by its deadline.
    stuck: Option<String>,
}

impl Pmix {
    /// Joins the job that the variables name.
    ///
    /// # Errors
    /// [`StartError::Unusable`] with the missing part; [`StartError::Late`] if the server does not answer. Once
    /// the library has been called, its error is final in this process.
    pub(crate) fn open(vars: Vars<'_>, until: Deadline) -> Result<Self, StartError> {
        if vars("PMIX_NAMESPACE").is_none() {
            // The library would make a job of this process alone.
            return Err(unusable(vars, "there is no job to join".into()));
        }
        let library = find::library(vars);
        let library = library.map_err(|why| unusable_by(vars, why, find::advice_to_install(vars)))?;
        Self::with(library, &SESSION, vars, until)
    }

    fn with(
        library: Library,
        session: &'static Session,
        vars: Vars<'_>,
        until: Deadline,
    ) -> Result<Self, StartError> {
        let joined = session.join(|| join(library, session, vars, until));
        let (joined, world) = joined.map_err(|error| {
            error.unwrap_or_else(|| {
                unusable(vars, "another thread joins the job, or the process exits".into())
            })
        })?;
        Ok(Pmix { joined, session, world, stuck: None })
    }

    /// Makes a call of the library, on a thread that may be left behind.
    fn ask<T: Send + 'static>(
        &mut self,
        doing: impl Display,
        until: Deadline,
        call: impl FnOnce(&Library, &Proc) -> T + Send + 'static,
    ) -> Result<T, StartError> {
        if let Some(stuck) = &self.stuck {
            return Err(self.failed(doing, format!("{stuck} has not returned yet")));
        }
        self.ask_regardless(doing, until, call)
    }

    fn ask_regardless<T: Send + 'static>(
        &mut self,
        doing: impl Display,
        until: Deadline,
        call: impl FnOnce(&Library, &Proc) -> T + Send + 'static,
    ) -> Result<T, StartError> {
        let Joined { library, me, .. } = self.joined.clone();
        ask(until, move || call(&library, &me)).map_err(|why| match why {
            NoAnswer::Late(waited) => {
                self.stuck = Some(doing.to_string());
                self.session.is_stuck();
                StartError::Late { environment: self.title(), doing: doing.to_string(), waited }
            }
            NoAnswer::Failed(why) => self.failed(doing, why),
        })
    }

    /// Returns the key in the library: it differs from MPI's keys, and from those of the process's other
    /// worlds. PMIx 5 returns a value that was read before, though another one was put under the same key.
    fn key(&self, key: &str) -> Result<CString, ()> {
        c_string(&format!("udeck{}.{key}", self.world))
    }

    fn failed(&self, doing: impl Display, why: String) -> StartError {
        StartError::Server { environment: self.title(), doing: doing.to_string(), why }
    }

    fn reason(&self, status: Status) -> String {
        reason(&self.joined.library, status)
    }

    fn unread(&self, why: Unread) -> String {
        unread(&self.joined.library, why)
    }
}

impl Environment for Pmix {
    fn title(&self) -> String {
        self.joined.title.clone()
    }

    fn rank(&self) -> u32 {
        self.joined.me.rank()
    }

    fn size(&self) -> u32 {
        self.joined.size
    }

    fn longest_value(&self) -> usize {
        LONGEST_VALUE
    }

    fn put(&mut self, key: &str, value: &str, until: Deadline) -> Result<(), StartError> {
        let doing = format!("putting `{key}`");
        let name = self.key(key);
        let (Ok(name), Ok(text)) = (name, c_string(value)) else {
            return Err(self.failed(doing, "it has a zero byte".into()));
        };
        if value.len() > LONGEST_VALUE {
            return Err(self.failed(doing, format!("its {} bytes are too many", value.len())));
        }
        let put = self.ask(&doing, until, move |library, _| {
            library.put(&name, &text).and_then(|()| library.commit())
        })?;
        put.map_err(|status| self.failed(doing, self.reason(status)))
    }

    fn fence(&mut self, until: Deadline) -> Result<(), StartError> {
        let doing = "waiting for all ranks";
        let met = self.ask(doing, until, |library, me| library.fence(me))?;
        met.map_err(|status| self.failed(doing, self.reason(status)))
    }

    fn get(&mut self, rank: u32, key: &str, until: Deadline) -> Result<String, StartError> {
        let doing = format!("reading `{key}` of rank {rank}");
        let Ok(name) = self.key(key) else {
            return Err(self.failed(doing, "it has a zero byte".into()));
        };
        let read =
            self.ask(&doing, until, move |library, me| library.text(&me.other(rank), &name, LONGEST_VALUE))?;
        read.map_err(|why| self.failed(doing, self.unread(why)))
    }

    fn finalize(&mut self, _: Deadline) -> Result<(), StartError> {
        self.session.end_in_order();
        Ok(())
    }

    fn abort(&mut self, code: u8, why: &str, until: Deadline) -> Result<(), StartError> {
        let doing = "ending the job";
        let why = c_string(&why.replace('\0', " ")).unwrap_or_default();
        // A server that does not let a fence end may still do this.
        let ended = self.ask_regardless(doing, until, move |library, _| library.abort(code, &why))?;
        ended.map_err(|status| self.failed(doing, self.reason(status)))
    }
}

/// Joins the job: the part that a [`Session`] does once.
fn join(library: Library, session: &Session, vars: Vars<'_>, until: Deadline) -> Result<Joined, StartError> {
    let title = title(&library.version(), find::launcher(vars));
    let unusable = |why: String| unusable(vars, format!("{why} ({})", library.file));
    let unanswered = |doing: &str, why: NoAnswer| {
        let (environment, doing) = (title.clone(), doing.to_owned());
        match why {
            NoAnswer::Late(waited) => {
                session.is_stuck();
                StartError::Late { environment, doing, waited }
            }
            NoAnswer::Failed(why) => StartError::Server { environment, doing, why },
        }
    };
    let called = library.clone();
    let me = ask(until, move || called.init()).map_err(|why| unanswered("joining the job", why))?;
    let me = me.map_err(|status| unusable(format!("PMIx_Init fails: {}", reason(&library, status))))?;
    let named = (vars("PMIX_NAMESPACE"), vars("PMIX_RANK").and_then(|rank| rank.parse().ok()));
    if named != (Some(me.namespace()), Some(me.rank())) {
        return Err(unusable(format!("PMIx_Init makes it rank {} of {}", me.rank(), me.namespace())));
    }
    let called = library.clone();
    let size = ask(until, move || called.job_size(&me));
    let size = size.map_err(|why| unanswered("reading the job's size", why))?;
    let size =
        size.map_err(|why| unusable(format!("the job's size is not known: {}", unread(&library, why))))?;
    if me.rank() >= size {
        return Err(unusable(format!("it is rank {} of {size}", me.rank())));
    }
    if ptr::eq(session, &SESSION) {
        leave_at_exit();
    }
    Ok(Joined { library, me, size, title })
}

fn reason(library: &Library, status: Status) -> String {
    let words = library.words(status);
    if status.is_lost() {
        return format!("{words}: the launcher's daemon on this host cannot be reached, or has ended");
    }
    words
}

fn unread(library: &Library, why: Unread) -> String {
    match why {
        Unread::Refused(status) => reason(library, status),
        Unread::Nonsense(words) => words,
    }
}

fn c_string(text: &str) -> Result<CString, ()> {
    CString::new(text).map_err(drop)
}

fn unusable(vars: Vars<'_>, why: String) -> StartError {
    unusable_by(vars, why, find::advice_to_start(vars))
}

fn unusable_by(vars: Vars<'_>, why: String, advice: String) -> StartError {
    StartError::Unusable { by: find::launcher(vars).to_owned(), found: find::found(vars), why, advice }
}

/// Makes the title "PMIx 4.2.2 (Open MPI)" from the library's text "OpenPMIx 4.2.2, repo rev: …".
fn title(version: &str, launcher: &str) -> String {
    let mut words = version.split([' ', ',']);
    match words.find(|word| word.starts_with(|first: char| first.is_ascii_digit())) {
        Some(number) => format!("PMIx {number} ({launcher})"),
        None => format!("PMIx ({launcher})"),
    }
}
