//! `libpmix.so.2`, found when the program runs: our own definitions of its structures, and safe calls of its
//! functions.
//!
//! The structures have the same layout in PMIx 4.2 and 5 (`tests` compares it with the header's, where there is
//! one).

#![allow(unsafe_code, reason = "a C library is loaded and called")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::path::Path;
use std::{fmt, ptr};

use udeck_sys::open_above_stdio;

#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
mod tests;

/// `PMIX_MAX_NSLEN` and `PMIX_MAX_KEYLEN`, each with the zero byte.
const NAMESPACE: usize = 256;
const KEY: usize = 512;
/// `PMIX_RANK_WILDCARD`: all ranks of a namespace.
pub(super) const WILDCARD: u32 = u32::MAX - 1;
/// `pmix_data_type_t`.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
/// `pmix_scope_t`: ranks of this host and of others may read the value.
const GLOBAL: u8 = 3;
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT_DATA: &CStr = c"pmix.collect";
const IMMEDIATE: &CStr = c"pmix.immediate";

/// `pmix_proc_t`: a rank by its namespace and number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Proc {
    namespace: [c_char; NAMESPACE],
    rank: u32,
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    flag: u8,
    string: *mut c_char,
    uint32: u32,
    /// The largest variant, `pmix_envar_t`.
    all: [usize; 3],
}

/// `pmix_info_t`: a directive.
#[repr(C)]
struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

/// `pmix_status_t`, never `PMIX_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(c_int);

impl Status {
    /// Tells whether this is PMIx's error for a launcher's daemon that is not there or has gone: unreachable,
    /// communication failure, lost connection.
    pub(super) fn is_lost(self) -> bool {
        [-25, -49, -61].contains(&self.0)
    }
}

/// Reasons why a value was not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    Refused(Status),
    /// The value has another form than expected; in words.
    Nonsense(String),
}

impl From<Status> for Unread {
    fn from(status: Status) -> Self {
        Unread::Refused(status)
    }
}

/// Declares the table of functions, and the code that fills it.
macro_rules! calls {
    ($($name:ident = $symbol:literal: fn($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        /// The functions, by the header's declarations.
        #[derive(Clone, Copy)]
        struct Calls {
            $($name: unsafe extern "C" fn($($arg: $kind),*) -> $result,)*
        }

        impl Calls {
            /// Finds the functions of an open library.
            ///
            /// # Errors
            /// The name of the function that it lacks.
            fn of(handle: *mut c_void) -> Result<Self, String> {
                Ok(Calls {
                    // SAFETY: the symbol is the function that pmix.h declares under this name, and has the type declared there.
                    $($name: unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(symbol(handle, $symbol)?)
                    },)*
                })
            }
        }
    };
}

calls! {
    init = c"PMIx_Init": fn(me: *mut Proc, info: *mut Info, infos: usize) -> c_int;
    finalize = c"PMIx_Finalize": fn(info: *const Info, infos: usize) -> c_int;
    put = c"PMIx_Put": fn(scope: u8, key: *const c_char, value: *mut Value) -> c_int;
    commit = c"PMIx_Commit": fn() -> c_int;
    fence = c"PMIx_Fence": fn(procs: *const Proc, count: usize, info: *const Info, infos: usize) -> c_int;
    get = c"PMIx_Get": fn(of: *const Proc, key: *const c_char, info: *const Info, infos: usize, value: *mut *mut Value) -> c_int;
    abort = c"PMIx_Abort": fn(status: c_int, why: *const c_char, procs: *mut Proc, count: usize) -> c_int;
    error_string = c"PMIx_Error_string": fn(status: c_int) -> *const c_char;
    get_version = c"PMIx_Get_version": fn() -> *const c_char;
}

/// The library. It stays loaded for as long as the process lives: it has threads, and calls that never return.
#[derive(Clone)]
pub(super) struct Library {
    calls: Calls,
    /// The file that was loaded.
    pub(super) file: String,
}

/// The library to open.
pub(super) enum Which<'a> {
    /// A library of this name that is in the process already.
    Loaded(&'a str),
    /// A file, or a name that the loader resolves.
    File(&'a Path),
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// The loader's words, or the function that the library lacks; `None` if the library is not in this
    /// process.
    pub(super) fn open(which: &Which<'_>) -> Result<Self, Option<String>> {
        let (name, flags) = match which {
            Which::Loaded(name) => (name.as_bytes(), libc::RTLD_NOLOAD),
            Which::File(path) => (path.as_os_str().as_encoded_bytes(), 0),
        };
        let name = CString::new(name).map_err(|_| Some("its name has a zero byte".to_owned()))?;
        // RTLD_LOCAL: PMIx's plug-ins name the library as a dependency, and find it by that.
        // SAFETY: a C string. Initialisers run, of the system's library, or of one that the user or the launcher names.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
        if handle.is_null() {
            return Err((flags == 0).then(loaders_words));
        }
        let name = name.to_string_lossy();
        let lacks = |function| Some(format!("{name} is not PMIx: it has no {function}"));
        let calls = Calls::of(handle).map_err(lacks)?;
        let file = file_of(calls.get_version as *mut c_void).unwrap_or_else(|| name.clone().into_owned());
        Ok(Library { calls, file })
    }

    /// Returns "OpenPMIx 4.2.2, PMIx Standard: …"; empty if the library does not say.
    pub(super) fn version(&self) -> String {
        // SAFETY: it takes nothing, may be called at any time, and returns a constant.
        text(unsafe { (self.calls.get_version)() }).unwrap_or_default()
    }

    /// Returns a status in words: "PMIX_ERR_UNREACH (-25)".
    pub(super) fn words(&self, status: Status) -> String {
        // SAFETY: it takes any number, may be called at any time, and returns a constant.
        let words = text(unsafe { (self.calls.error_string)(status.0) });
        format!("{} ({})", words.as_deref().unwrap_or("an error without a name"), status.0)
    }

    /// Joins the job, and returns this process's rank in it. The library counts these calls: MPI may have made
    /// one, too.
    pub(super) fn init(&self) -> Result<Proc, Status> {
        let mut me = Proc::default();
        // SAFETY: a place for the answer, and no directives.
        done(open_above_stdio(|| unsafe { (self.calls.init)(&raw mut me, ptr::null_mut(), 0) }))?;
        Ok(me)
    }

    pub(super) fn finalize(&self) -> Result<(), Status> {
        // SAFETY: no directives. Nothing of ours is in the library's hands.
        done(unsafe { (self.calls.finalize)(ptr::null(), 0) })
    }

    /// Puts a text, which others may read after [`Library::commit`] and a fence.
    pub(super) fn put(&self, key: &CStr, text: &CStr) -> Result<(), Status> {
        let mut value = Value { kind: STRING, data: Data { all: [0; 3] } };
        value.data.string = text.as_ptr().cast_mut();
        // SAFETY: a C string that is short enough for a key, and a value whose text is one. The library copies both, and
        // writes neither.
        done(unsafe { (self.calls.put)(GLOBAL, key.as_ptr(), &raw mut value) })
    }

    pub(super) fn commit(&self) -> Result<(), Status> {
        // SAFETY: it takes nothing.
        done(unsafe { (self.calls.commit)() })
    }

    /// Waits for all ranks of `me`'s namespace, and collects the values that they have put.
    pub(super) fn fence(&self, me: &Proc) -> Result<(), Status> {
        let (all, collect) = (Proc { rank: WILDCARD, ..*me }, Info::set(COLLECT_DATA));
        // SAFETY: one rank and one directive, which live until it returns.
        done(unsafe { (self.calls.fence)(&raw const all, 1, &raw const collect, 1) })
    }

    /// Returns the text that a rank has put, with at most `longest` bytes. The call does not wait: a fence has
    /// brought the text.
    pub(super) fn text(&self, of: &Proc, key: &CStr, longest: usize) -> Result<String, Unread> {
        let value = self.get(of, key, Some(&Info::set(IMMEDIATE)))?;
        value.text(longest).map_err(Unread::Nonsense)
    }

    /// Returns the number of ranks in `me`'s namespace.
    pub(super) fn job_size(&self, me: &Proc) -> Result<u32, Unread> {
        let all = Proc { rank: WILDCARD, ..*me };
        self.get(&all, JOB_SIZE, None)?.number().map_err(Unread::Nonsense)
    }

    fn get(&self, of: &Proc, key: &CStr, directive: Option<&Info>) -> Result<Owned, Unread> {
        let mut value = ptr::null_mut();
        let info = directive.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: a rank, a C string that is short enough for a key, none or one directive, and a place for the answer; all live
        // until it returns.
        done(unsafe {
            (self.calls.get)(of, key.as_ptr(), info, usize::from(!info.is_null()), &raw mut value)
        })?;
        let none = || Unread::Nonsense("PMIx_Get succeeds without a value".into());
        if value.is_null() { Err(none()) } else { Ok(Owned(value)) }
    }

    /// Ends all ranks of this process's namespace.
    pub(super) fn abort(&self, code: u8, why: &CStr) -> Result<(), Status> {
        // SAFETY: a C string, which the library sends; no ranks means all.
        done(unsafe { (self.calls.abort)(c_int::from(code), why.as_ptr(), ptr::null_mut(), 0) })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.file)
    }
}

impl Default for Proc {
    /// Makes an empty name, to be filled in.
    fn default() -> Self {
        Proc { namespace: [0; NAMESPACE], rank: 0 }
    }
}

impl fmt::Debug for Proc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.namespace(), self.rank)
    }
}

impl Proc {
    /// Returns the namespace. If it is not terminated, which no library does, all of its bytes are returned.
    pub(super) fn namespace(&self) -> String {
        let bytes = self.namespace.iter().map(|byte| byte.to_ne_bytes()[0]);
        let bytes: Vec<_> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns another rank of the same job.
    pub(super) fn other(&self, rank: u32) -> Self {
        Proc { rank, ..*self }
    }
}

impl Info {
    /// Makes a directive that is set.
    fn set(name: &CStr) -> Self {
        let mut value = Value { kind: BOOL, data: Data { all: [0; 3] } };
        value.data.flag = 1;
        let mut info = Info { key: [0; KEY], flags: 0, value };
        for (to, from) in info.key.iter_mut().zip(name.to_bytes()) {
            *to = c_char::from_ne_bytes([*from]);
        }
        info
    }
}

/// A value that `PMIx_Get` has made, not null. If its type is one that we do not ask for, memory that it points
/// to is leaked.
struct Owned(*mut Value);

impl Owned {
    fn text(&self, longest: usize) -> Result<String, String> {
        self.expect(STRING)?;
        // SAFETY: a value that is ours, and a string by its type.
        let string = unsafe { (*self.0).data.string };
        if string.is_null() {
            return Err("a text without bytes".into());
        }
        // SAFETY: a C string, of which no more is read than its length.
        let length = unsafe { libc::strnlen(string, longest + 1) };
        if length > longest {
            return Err(format!("a text of more than {longest} bytes"));
        }
        // SAFETY: `strnlen` has just read this number of bytes, and they are ours.
        let bytes = unsafe { std::slice::from_raw_parts(string.cast::<u8>(), length) };
        String::from_utf8(bytes.to_vec()).map_err(|_| "a text that is not UTF-8".into())
    }

    fn number(&self) -> Result<u32, String> {
        self.expect(UINT32)?;
        // SAFETY: a value that is ours, and such a number by its type.
        Ok(unsafe { (*self.0).data.uint32 })
    }

    fn expect(&self, kind: u16) -> Result<(), String> {
        // SAFETY: a value that is ours.
        let is = unsafe { (*self.0).kind };
        if is == kind { Ok(()) } else { Err(format!("a value of type {is} instead of {kind}")) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the value is ours, made by `malloc`, as the header's PMIX_VALUE_RELEASE takes it; so is its text.
        unsafe {
            if (*self.0).kind == STRING {
                libc::free((*self.0).data.string.cast());
            }
            libc::free(self.0.cast());
        }
    }
}

fn done(status: c_int) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// Has `act` called when this process exits (by `exit`, or at the end of `main`), and when it unloads us.
pub(super) fn at_exit(act: extern "C" fn()) {
    // SAFETY: a function that lives as long as our code. If the C library has no room for it, it is not called: this process
    // then ends without having left the job.
    unsafe { libc::atexit(act) };
}

/// Returns the text of a constant of the library, or `None` for a null pointer.
fn text(constant: *const c_char) -> Option<String> {
    // SAFETY: the pointer is not null: a C string that no code changes.
    (!constant.is_null()).then(|| unsafe { CStr::from_ptr(constant) }.to_string_lossy().into_owned())
}

/// Names of the libraries of MPI that speak PMI-1 and PMI-2: MPICH and those of its ABI, Debian's MPICH, the
/// ABI of MPI 5.
const MPI: [&CStr; 3] = [c"libmpi.so.12", c"libmpich.so.12", c"libmpi_abi.so.1"];

/// Tells whether the program has initialized MPI in this process; also if it has finalized MPI since.
pub(in crate::start) fn is_mpi_initialized() -> bool {
    let asked = |handle: *mut c_void| {
        let function = symbol(handle, c"MPI_Initialized").ok()?;
        // SAFETY: MPI's function of this name has this type in C.
        let is_initialized: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { transmute(function) };
        let mut flag = 0;
        // SAFETY: it may be called at any time and by any thread, with a place for its answer.
        let status = unsafe { is_initialized(&mut flag) };
        Some(status == 0 && flag != 0)
    };
    let loaded = MPI.iter().filter_map(|name| {
        // SAFETY: a C string. Nothing is loaded that is not there already; the handle keeps it so.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(handle)
    });
    loaded.chain([libc::RTLD_DEFAULT]).any(|handle| asked(handle) == Some(true))
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: an open library and a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() { Err(name.to_string_lossy().into_owned()) } else { Ok(found) }
}

fn loaders_words() -> String {
    // SAFETY: it takes nothing; the text is this thread's until its next call of the loader.
    text(unsafe { libc::dlerror() }).unwrap_or_else(|| "the loader does not say why".into())
}

/// Returns the file that a function was loaded from.
fn file_of(function: *mut c_void) -> Option<String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address, and a place for the answer, of which null pointers are a value.
    let (found, info) = unsafe { (libc::dladdr(function, info.as_mut_ptr()), info.assume_init()) };
    if found == 0 { None } else { text(info.dli_fname) }
}
