//! A PMIx server in Rust functions: good answers, and each kind of bad one.
//!
//! C functions have no state, and so the values of all tests lie in one table. Each test has its own keys.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;

pub(in crate::start::pmix) const SIZE: u32 = 4;
pub(in crate::start::pmix) const RANK: u32 = 2;
pub(in crate::start::pmix) const JOB: &str = "fake-job";
const NOT_FOUND: c_int = -46;
const LOST: c_int = -61;
const UNREACH: c_int = -25;
/// Stands for no status: the call does not return.
const NEVER: c_int = 1;

static PUT: LazyLock<Mutex<HashMap<CString, CString>>> = LazyLock::new(Mutex::default);
static COMMITTED: LazyLock<Mutex<HashMap<CString, CString>>> = LazyLock::new(Mutex::default);
/// The codes and reasons of all `abort`s.
pub(in crate::start::pmix) static ABORTED: Mutex<Vec<(c_int, CString)>> = Mutex::new(Vec::new());

/// One item for each [`Library::counted`] that was left.
pub(in crate::start::pmix) static LEFT: Mutex<Vec<()>> = Mutex::new(Vec::new());

impl Library {
    /// Makes a server that answers as it should.
    pub(in crate::start::pmix) fn good() -> Self {
        let calls = Calls { init, finalize, put, commit, fence, get, abort, error_string, get_version };
        Self::with(calls)
    }

    /// Makes a server whose calls all return errors, as after its death.
    pub(in crate::start::pmix) fn lost() -> Self {
        let calls = Calls {
            finalize: answer_finalize::<LOST>,
            put: answer_put::<LOST>,
            fence: answer_fence::<LOST>,
            get: answer_get::<LOST>,
            abort: answer_abort::<LOST>,
            ..Self::good().calls
        };
        Self::with(calls)
    }

    pub(in crate::start::pmix) fn unreachable() -> Self {
        Self::with(Calls { init: answer_init::<UNREACH>, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn hanging_in_init() -> Self {
        Self::with(Calls { init: answer_init::<NEVER>, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn hanging_in_fence() -> Self {
        Self::with(Calls { fence: answer_fence::<NEVER>, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn hanging_in_finalize() -> Self {
        Self::with(Calls { finalize: answer_finalize::<NEVER>, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn hanging_in_both() -> Self {
        let calls = Calls { fence: answer_fence::<NEVER>, ..Self::hanging_in_finalize().calls };
        Self::with(calls)
    }

    /// Makes a server that counts the calls to leave, in [`LEFT`].
    pub(in crate::start::pmix) fn counted() -> Self {
        Self::with(Calls { finalize: counted_finalize, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn refusing_to_commit() -> Self {
        Self::with(Calls { commit: answer_commit::<-1>, ..Self::good().calls })
    }

    /// Makes a server that makes this process a job of its own, as PMIx does where it finds no server.
    pub(in crate::start::pmix) fn alone() -> Self {
        Self::with(Calls { init: init_alone, ..Self::good().calls })
    }

    /// Makes a server whose job name has no end.
    pub(in crate::start::pmix) fn endless_name() -> Self {
        Self::with(Calls { init: init_endless, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn giving(kind: Gives) -> Self {
        let get = match kind {
            Gives::Nothing => answer_get::<0>,
            Gives::OtherType => give_other_type,
            Gives::NoBytes => give_no_bytes,
            Gives::Huge => give_huge,
            Gives::NoUtf8 => give_no_utf8,
            Gives::SmallJob => give_small_job,
        };
        Self::with(Calls { get, ..Self::good().calls })
    }

    pub(in crate::start::pmix) fn without_words() -> Self {
        let calls = Self::unreachable().calls;
        Self::with(Calls { error_string: no_error_string, get_version: no_version, ..calls })
    }

    fn with(calls: Calls) -> Self {
        Library { calls, file: "fake".into() }
    }
}

/// Faults of the values that are read.
pub(in crate::start::pmix) enum Gives {
    /// The call succeeds without a value.
    Nothing,
    OtherType,
    NoBytes,
    Huge,
    NoUtf8,
    /// The job has fewer ranks than this rank's number needs.
    SmallJob,
}

/// Declares functions that always return the same status, or never return.
macro_rules! answers {
    ($($name:ident($($kind:ty),*);)*) => {$(
        unsafe extern "C" fn $name<const STATUS: c_int>($(_: $kind),*) -> c_int {
            while STATUS == NEVER {
                std::thread::sleep(Duration::from_secs(1));
            }
            STATUS
        }
    )*};
}

answers! {
    answer_init(*mut Proc, *mut Info, usize);
    answer_finalize(*const Info, usize);
    answer_put(u8, *const c_char, *mut Value);
    answer_commit();
    answer_fence(*const Proc, usize, *const Info, usize);
    answer_get(*const Proc, *const c_char, *const Info, usize, *mut *mut Value);
    answer_abort(c_int, *const c_char, *mut Proc, usize);
}

unsafe extern "C" fn counted_finalize(_: *const Info, _: usize) -> c_int {
    LEFT.lock().push(());
    0
}

unsafe extern "C" fn init_alone(me: *mut Proc, _: *mut Info, _: usize) -> c_int {
    // SAFETY: the caller's place for the answer.
    unsafe { *me = named("singleton", 0) };
    0
}

unsafe extern "C" fn init_endless(me: *mut Proc, _: *mut Info, _: usize) -> c_int {
    // SAFETY: as above.
    unsafe { *me = Proc { namespace: [c_char::from_ne_bytes([b'x']); NAMESPACE], rank: RANK } };
    0
}

unsafe extern "C" fn no_error_string(_: c_int) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn no_version() -> *const c_char {
    ptr::null()
}

fn named(namespace: &str, rank: u32) -> Proc {
    let mut proc = Proc { rank, ..Proc::default() };
    for (to, from) in proc.namespace.iter_mut().zip(namespace.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    proc
}

unsafe extern "C" fn init(me: *mut Proc, info: *mut Info, infos: usize) -> c_int {
    assert!(info.is_null() && infos == 0);
    // SAFETY: the caller's place for the answer.
    unsafe { *me = named(JOB, RANK) };
    0
}

unsafe extern "C" fn finalize(info: *const Info, infos: usize) -> c_int {
    assert!(info.is_null() && infos == 0);
    0
}

unsafe extern "C" fn put(scope: u8, key: *const c_char, value: *mut Value) -> c_int {
    // SAFETY: the caller's C string and value, whose text is one, too.
    let (key, kind, text) =
        unsafe { (CStr::from_ptr(key), (*value).kind, CStr::from_ptr((*value).data.string)) };
    assert_eq!((scope, kind), (GLOBAL, STRING));
    PUT.lock().insert(key.to_owned(), text.to_owned());
    0
}

unsafe extern "C" fn commit() -> c_int {
    let put = PUT.lock();
    COMMITTED.lock().extend(put.iter().map(|(key, text)| (key.clone(), text.clone())));
    0
}

/// Expects all ranks, and one directive: the data are collected.
unsafe extern "C" fn fence(procs: *const Proc, count: usize, info: *const Info, infos: usize) -> c_int {
    assert_eq!((count, infos), (1, 1));
    // SAFETY: the counts are asserted above: one of each.
    let (all, key, flag) = unsafe { (*procs, CStr::from_ptr((*info).key.as_ptr()), (*info).value.data.flag) };
    assert_eq!((all.namespace().as_str(), all.rank, key, flag), (JOB, WILDCARD, COLLECT_DATA, 1));
    0
}

unsafe extern "C" fn get(
    of: *const Proc,
    key: *const c_char,
    info: *const Info,
    infos: usize,
    value: *mut *mut Value,
) -> c_int {
    // SAFETY: the caller's rank and C string.
    let (of, key) = unsafe { (*of, CStr::from_ptr(key)) };
    assert_eq!(of.namespace(), JOB);
    if key == JOB_SIZE {
        assert_eq!((of.rank, infos), (WILDCARD, 0));
        // SAFETY: the caller's place for the answer.
        return unsafe { give(value, UINT32, Data { uint32: SIZE }) };
    }
    // SAFETY: the caller passes one directive, as its count says.
    assert_eq!((infos, unsafe { CStr::from_ptr((*info).key.as_ptr()) }), (1, IMMEDIATE));
    let committed = COMMITTED.lock();
    let Some(text) = committed.get(key).filter(|_| of.rank == RANK) else { return NOT_FOUND };
    // SAFETY: as above; a copy for the caller.
    unsafe { give(value, STRING, Data { string: libc::strdup(text.as_ptr()) }) }
}

/// # Safety
/// The caller's place for an answer.
unsafe fn give(value: *mut *mut Value, kind: u16, data: Data) -> c_int {
    // SAFETY: new memory, large enough and aligned, and the caller's promise.
    unsafe {
        let answer = libc::calloc(1, size_of::<Value>()).cast::<Value>();
        answer.write(Value { kind, data });
        *value = answer;
    }
    0
}

/// Declares functions that return the correct number of ranks, with which the job can be joined, and then the
/// spoilt value.
macro_rules! gives {
    ($($name:ident: $kind:expr, $data:expr;)*) => {$(
        unsafe extern "C" fn $name(
            of: *const Proc,
            key: *const c_char,
            info: *const Info,
            infos: usize,
            value: *mut *mut Value,
        ) -> c_int {
            // SAFETY: the caller's C string and place for the answer.
            unsafe {
                let spoilt = stringify!($name) == "give_small_job" || CStr::from_ptr(key) != JOB_SIZE;
                if spoilt { give(value, $kind, $data) } else { get(of, key, info, infos, value) }
            }
        }
    )*};
}

gives! {
    give_other_type: 26, Data { all: [8; 3] };
    give_no_bytes: STRING, Data { string: ptr::null_mut() };
    give_huge: STRING, Data { string: libc::strdup(CString::new(vec![b'x'; 1 << 20]).unwrap().as_ptr()) };
    give_no_utf8: STRING, Data { string: libc::strdup(c"\xff\xfe".as_ptr()) };
    give_small_job: UINT32, Data { uint32: RANK };
}

unsafe extern "C" fn abort(status: c_int, why: *const c_char, procs: *mut Proc, count: usize) -> c_int {
    assert!(procs.is_null() && count == 0);
    // SAFETY: the caller's C string.
    ABORTED.lock().push((status, unsafe { CStr::from_ptr(why) }.to_owned()));
    0
}

unsafe extern "C" fn error_string(status: c_int) -> *const c_char {
    match status {
        UNREACH => c"PMIX_ERR_UNREACH",
        NOT_FOUND => c"PMIX_ERR_NOT_FOUND",
        LOST => c"PMIX_ERR_LOST_CONNECTION",
        _ => c"PMIX_ERROR",
    }
    .as_ptr()
}

unsafe extern "C" fn get_version() -> *const c_char {
    c"OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0, Provisional ABI: 0.0)".as_ptr()
}
