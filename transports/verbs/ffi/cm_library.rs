//! Loading of `librdmacm.so.1`, when the program runs and only when a device is to be connected through it.

use std::ffi::{CString, OsString, c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::attributes::QpAttr;
use super::cm::{CmEvent, CmId, ConnParam, EventChannel};
use super::library::{functions, loaded};

/// Environment variable that names another file than [`NAME`].
pub const VARIABLE: &str = "DECK_VERBS_CM_LIBRARY";
const NAME: &str = "librdmacm.so.1";

functions! { CmLibrary {
    rdma_create_event_channel: fn() -> *mut EventChannel;
    rdma_destroy_event_channel: fn(channel: *mut EventChannel);
    rdma_create_id: fn(channel: *mut EventChannel, id: *mut *mut CmId, context: *mut c_void, ps: u32) -> c_int;
    rdma_destroy_id: fn(id: *mut CmId) -> c_int;
    rdma_bind_addr: fn(id: *mut CmId, addr: *mut libc::sockaddr) -> c_int;
    rdma_listen: fn(id: *mut CmId, backlog: c_int) -> c_int;
    rdma_get_src_port: fn(id: *mut CmId) -> u16;
    rdma_resolve_addr: fn(id: *mut CmId, src_addr: *mut libc::sockaddr, dst_addr: *mut libc::sockaddr, timeout_ms: c_int) -> c_int;
    rdma_resolve_route: fn(id: *mut CmId, timeout_ms: c_int) -> c_int;
    rdma_connect: fn(id: *mut CmId, param: *mut ConnParam) -> c_int;
    rdma_accept: fn(id: *mut CmId, param: *mut ConnParam) -> c_int;
    rdma_reject: fn(id: *mut CmId, private_data: *const c_void, private_data_len: u8) -> c_int;
    /// Function of `RDMACM_1.2`, like the next one: both are for queue pairs that the library does not make.
    rdma_establish: fn(id: *mut CmId) -> c_int;
    rdma_init_qp_attr: fn(id: *mut CmId, attr: *mut QpAttr, mask: *mut c_int) -> c_int;
    rdma_get_cm_event: fn(channel: *mut EventChannel, event: *mut *mut CmEvent) -> c_int;
    rdma_ack_cm_event: fn(event: *mut CmEvent) -> c_int;
} optional {} }

impl CmLibrary {
    /// Returns the library that [`VARIABLE`] names, or else the system's. It is loaded once.
    ///
    /// # Errors
    /// Reason as text, which names the file and the package.
    pub fn load() -> Result<Arc<Self>, String> {
        static LOADED: OnceLock<Result<Arc<CmLibrary>, String>> = OnceLock::new();
        LOADED
            .get_or_init(|| {
                let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
                #[cfg(test)]
                let named = named.or_else(|| super::library::beside().map(OsString::from));
                Self::open(named.unwrap_or_else(|| NAME.into())).map(Arc::new)
            })
            .clone()
    }

    fn open(name: OsString) -> Result<Self, String> {
        let file = name.to_string_lossy().into_owned();
        let path =
            CString::new(name.into_encoded_bytes()).map_err(|_| format!("{VARIABLE} has a zero byte"))?;
        let handle = loaded(&path).map_err(|why| {
            format!("the library of rdma_cm cannot be loaded: {why} (install librdmacm1, or name its file in {VARIABLE})")
        })?;
        Self::fill(handle, file).map_err(|why| format!("{why} (librdmacm1 of rdma-core 23 or later has it)"))
    }
}

impl std::fmt::Debug for CmLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmLibrary({})", self.file)
    }
}
