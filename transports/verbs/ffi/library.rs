//! Loading of `libibverbs.so.1`, when the program runs: a build needs nothing of it, and a program starts without it.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::attributes::{DeviceAttr, Gid, GidEntry, PortAttr, QpAttr, QpInitAttr, SrqInitAttr};
use super::objects::{AsyncEvent, CompChannel, Device, RawContext, RawCq, RawMr, RawPd, RawQp, RawSrq};

/// Environment variable that names another file than [`NAME`].
pub const VARIABLE: &str = "DECK_VERBS_LIBRARY";
const NAME: &str = "libibverbs.so.1";
/// Version of the symbols. Without it a program may be given a symbol of `IBVERBS_1.0`, whose structures differ.
const VERSION: &CStr = c"IBVERBS_1.1";

/// Declares the table of functions, and the code that fills it.
macro_rules! functions {
    ($library:ident { $($(#[$doc:meta])* $name:ident: fn($($arg:ident: $kind:ty),*) $(-> $result:ty)?;)* }
     optional { $($(#[$odoc:meta])* $oname:ident: fn($($oarg:ident: $okind:ty),*) $(-> $oresult:ty)?;)* }) => {
        /// Functions of the library. They stay loaded as long as the process lives: providers leave threads and
        /// handlers behind whose code unloading would remove.
        pub struct $library {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg: $kind),*) $(-> $result)?,)*
            $($(#[$odoc])* pub $oname: Option<unsafe extern "C" fn($($oarg: $okind),*) $(-> $oresult)?>,)*
            /// Name of the file that was loaded.
            pub file: String,
        }

        impl $library {
            fn fill(handle: *mut c_void, file: String) -> Result<Self, String> {
                Ok($library {
                    // SAFETY: the symbol is the function that the library's header declares under this name.
                    $($name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(
                        $crate::ffi::library::symbol(handle, stringify!($name))
                            .ok_or_else(|| $crate::ffi::library::lacks(&file, stringify!($name)))?) },)*
                    $($oname: $crate::ffi::library::symbol(handle, stringify!($oname)).map(|at| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($okind),*) $(-> $oresult)?>(at) }
                    }),)*
                    file,
                })
            }
        }
    };
}

pub(super) use functions;

functions! { Library {
    ibv_get_device_list: fn(count: *mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(list: *mut *mut Device);
    ibv_get_device_name: fn(device: *mut Device) -> *const c_char;
    ibv_open_device: fn(device: *mut Device) -> *mut RawContext;
    ibv_close_device: fn(context: *mut RawContext) -> c_int;
    ibv_query_device: fn(context: *mut RawContext, attr: *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(context: *mut RawContext, port: u8, attr: *mut PortAttr) -> c_int;
    ibv_query_gid: fn(context: *mut RawContext, port: u8, index: c_int, gid: *mut Gid) -> c_int;
    ibv_query_pkey: fn(context: *mut RawContext, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    ibv_get_async_event: fn(context: *mut RawContext, event: *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(event: *mut AsyncEvent);
    ibv_alloc_pd: fn(context: *mut RawContext) -> *mut RawPd;
    ibv_dealloc_pd: fn(pd: *mut RawPd) -> c_int;
    ibv_reg_mr: fn(pd: *mut RawPd, addr: *mut c_void, length: usize, access: c_int) -> *mut RawMr;
    ibv_dereg_mr: fn(mr: *mut RawMr) -> c_int;
    ibv_create_comp_channel: fn(context: *mut RawContext) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(channel: *mut CompChannel) -> c_int;
    ibv_create_cq: fn(context: *mut RawContext, cqe: c_int, cq_context: *mut c_void, channel: *mut CompChannel, vector: c_int) -> *mut RawCq;
    ibv_destroy_cq: fn(cq: *mut RawCq) -> c_int;
    ibv_get_cq_event: fn(channel: *mut CompChannel, cq: *mut *mut RawCq, cq_context: *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(cq: *mut RawCq, events: u32);
    ibv_create_srq: fn(pd: *mut RawPd, attr: *mut SrqInitAttr) -> *mut RawSrq;
    ibv_destroy_srq: fn(srq: *mut RawSrq) -> c_int;
    ibv_create_qp: fn(pd: *mut RawPd, attr: *mut QpInitAttr) -> *mut RawQp;
    ibv_modify_qp: fn(qp: *mut RawQp, attr: *mut QpAttr, mask: c_int) -> c_int;
    ibv_destroy_qp: fn(qp: *mut RawQp) -> c_int;
} optional {
    /// Function of `IBVERBS_1.7`: the address that peers use can be chosen.
    ibv_reg_mr_iova: fn(pd: *mut RawPd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut RawMr;
    /// Function of `IBVERBS_1.11`: a GID and its kind. Without it, the kernel's files tell the kind.
    _ibv_query_gid_ex: fn(context: *mut RawContext, port: u32, index: u32, entry: *mut GidEntry, flags: u32, size: usize) -> c_int;
    ibv_fork_init: fn() -> c_int;
    ibv_is_fork_initialized: fn() -> c_int;
} }

impl Library {
    /// Returns the library that [`VARIABLE`] names, or else the system's. It is loaded once.
    ///
    /// # Errors
    /// Reason as text.
    pub fn load() -> Result<Arc<Self>, String> {
        static LOADED: OnceLock<Result<Arc<Library>, String>> = OnceLock::new();
        LOADED
            .get_or_init(|| {
                let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
                #[cfg(test)]
                let named = named.or_else(|| beside().map(OsString::from));
                Self::open(named.unwrap_or_else(|| NAME.into())).map(Arc::new)
            })
            .clone()
    }

    fn open(name: OsString) -> Result<Self, String> {
        let file = name.to_string_lossy().into_owned();
        let path =
            CString::new(name.into_encoded_bytes()).map_err(|_| format!("{VARIABLE} has a zero byte"))?;
        let handle = loaded(&path)
            .map_err(|why| format!("the verbs library cannot be loaded: {why} (install libibverbs1)"))?;
        Self::fill(handle, file)
    }
}

/// Loads a file.
///
/// # Errors
/// Text of the loader.
pub(super) fn loaded(path: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: loading a library runs its initialisers: it is the system's, or the one that the user names.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() { Err(last_error()) } else { Ok(handle) }
}

/// Path of the stand-in that cargo has built beside the tests.
#[cfg(test)]
pub fn beside() -> Option<std::path::PathBuf> {
    let library = std::env::current_exe().ok()?.with_file_name("libudeck_mock_verbs.so");
    library.exists().then_some(library)
}

/// Finds a symbol of [`VERSION`], or without a version in libraries that have none.
pub(super) fn symbol(handle: *mut c_void, name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: an open library and terminated strings.
    let found = unsafe {
        let versioned = libc::dlvsym(handle, name.as_ptr(), VERSION.as_ptr());
        if versioned.is_null() { libc::dlsym(handle, name.as_ptr()) } else { versioned }
    };
    (!found.is_null()).then_some(found)
}

pub(super) fn lacks(file: &str, name: &str) -> String {
    format!("{file} is no library that can be used: it has no {name}")
}

fn last_error() -> String {
    // SAFETY: the loader's text about this thread's last failure is a terminated string until the next failure.
    unsafe {
        let words = libc::dlerror();
        if words.is_null() {
            "for no reason given".into()
        } else {
            CStr::from_ptr(words).to_string_lossy().into_owned()
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({})", self.file)
    }
}
