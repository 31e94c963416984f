//! `DAT_PROVIDER`: the table of calls, and how the registry loads it.

use std::ffi::{CStr, CString, c_char, c_void};

use parking_lot::Mutex;

use super::types::{NAME, ProviderInfo};
use super::{call, eps, events, ia, memory, posts, service, srqs};
use crate::core::code::Code;

/// Calls that a provider has, `handle_extendedop` included.
pub const CALLS: usize = 79;

#[repr(C)]
pub struct Provider {
    device_name: *const c_char,
    extension: *mut c_void,
    calls: [*const (); CALLS],
}

// SAFETY: addresses of functions and of names that stay.
unsafe impl Send for Provider {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Provider {}

const _: () = assert!(size_of::<Provider>() == 648);

/// Stands for calls that are not served. (C's caller removes the arguments, whichever they are.)
extern "C" fn not_implemented() -> Code {
    Code::NOT_IMPLEMENTED
}

macro_rules! table {
    ($($name:literal => $function:expr,)*) => {
        /// The calls' names, in order, and whether they are served.
        #[cfg(test)]
        pub const NAMES: [(&str, bool); CALLS] = [$(($name, !is_missing(stringify!($function)))),*];

        fn calls() -> [*const (); CALLS] {
            [$($function as *const ()),*]
        }
    };
}

#[cfg(test)]
const fn is_missing(function: &str) -> bool {
    function.as_bytes()[0] == b'n'
}

table! {
    "ia_open" => ia::open,
    "ia_query" => ia::query,
    "ia_close" => ia::close,
    "set_consumer_context" => ia::set_consumer_context,
    "get_consumer_context" => ia::get_consumer_context,
    "get_handle_type" => ia::get_handle_type,
    "cno_create" => events::cno_create,
    "cno_modify_agent" => events::cno_modify_agent,
    "cno_query" => events::cno_query,
    "cno_free" => events::cno_free,
    "cno_wait" => events::cno_wait,
    "cr_query" => service::cr_query,
    "cr_accept" => service::cr_accept,
    "cr_reject" => service::cr_reject,
    "cr_handoff" => not_implemented,
    "evd_create" => events::create,
    "evd_query" => events::query,
    "evd_modify_cno" => events::modify_cno,
    "evd_enable" => events::enable,
    "evd_disable" => events::disable,
    "evd_wait" => events::wait,
    "evd_resize" => events::resize,
    "evd_post_se" => events::post_se,
    "evd_dequeue" => events::dequeue,
    "evd_free" => events::free,
    "ep_create" => eps::create,
    "ep_query" => eps::query,
    "ep_modify" => eps::modify,
    "ep_connect" => eps::connect,
    "ep_dup_connect" => eps::dup_connect,
    "ep_disconnect" => eps::disconnect,
    "ep_post_send" => posts::post_send,
    "ep_post_recv" => posts::post_recv,
    "ep_post_rdma_read" => posts::post_rdma_read,
    "ep_post_rdma_write" => posts::post_rdma_write,
    "ep_get_status" => eps::get_status,
    "ep_free" => eps::free,
    "lmr_create" => memory::lmr_create,
    "lmr_query" => memory::lmr_query,
    "lmr_free" => memory::lmr_free,
    "rmr_create" => memory::rmr_create,
    "rmr_query" => memory::rmr_query,
    "rmr_bind" => memory::rmr_bind,
    "rmr_free" => memory::rmr_free,
    "psp_create" => service::psp_create,
    "psp_query" => service::psp_query,
    "psp_free" => service::psp_free,
    "rsp_create" => service::rsp_create,
    "rsp_query" => service::rsp_query,
    "rsp_free" => service::rsp_free,
    "pz_create" => memory::pz_create,
    "pz_query" => memory::pz_query,
    "pz_free" => memory::pz_free,
    "psp_create_any" => service::psp_create_any,
    "ep_reset" => eps::reset,
    "evd_set_unwaitable" => events::set_unwaitable,
    "evd_clear_unwaitable" => events::clear_unwaitable,
    "lmr_sync_rdma_read" => memory::lmr_sync,
    "lmr_sync_rdma_write" => memory::lmr_sync,
    "ep_create_with_srq" => eps::create_with_srq,
    "ep_recv_query" => eps::recv_query,
    "ep_set_watermark" => not_implemented,
    "srq_create" => srqs::srq_create,
    "srq_free" => srqs::srq_free,
    "srq_post_recv" => srqs::srq_post_recv,
    "srq_query" => srqs::srq_query,
    "srq_resize" => srqs::srq_resize,
    "srq_set_lw" => srqs::srq_set_lw,
    "csp_create" => not_implemented,
    "csp_query" => not_implemented,
    "csp_free" => not_implemented,
    "ep_common_connect" => not_implemented,
    "rmr_create_for_ep" => not_implemented,
    "ep_post_send_with_invalidate" => posts::post_send_with_invalidate,
    "ep_post_rdma_read_to_rmr" => not_implemented,
    "cno_fd_create" => events::cno_fd_create,
    "cno_trigger" => events::cno_trigger,
    "ia_ha_related" => not_implemented,
    "handle_extendedop" => not_implemented,
}

/// A line of dat.conf.
struct Loaded {
    name: String,
    device: &'static str,
    provider: &'static Provider,
    /// Whether the line calls the provider thread-safe. The registry uses it to find the provider again.
    is_thread_safe: u32,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The NIC, and the provider, of a name in dat.conf.
pub fn loaded(name: &str) -> Option<(&'static str, usize)> {
    let all = LOADED.lock();
    let found = all.iter().find(|loaded| loaded.name == name)?;
    Some((found.device, std::ptr::from_ref(found.provider) as usize))
}

/// Whether the line of this name calls the provider thread-safe. (It is.)
pub fn is_thread_safe(name: &str) -> u32 {
    LOADED.lock().iter().find(|loaded| loaded.name == name).map_or(1, |loaded| loaded.is_thread_safe)
}

/// Returns the provider of this name for a transport; always the same one for a name.
pub fn load(name: &str, transport: &str, is_thread_safe: u32) -> Option<&'static Provider> {
    let device = ["shm0", "tcp0", "udp0", "verbs0"]
        .into_iter()
        .find(|nic| nic.trim_end_matches('0') == transport.trim_end_matches('0'))?;
    let mut all = LOADED.lock();
    if let Some(known) = all.iter_mut().find(|loaded| loaded.name == name) {
        (known.device, known.is_thread_safe) = (device, is_thread_safe);
        return Some(known.provider);
    }
    let device_name = CString::new(name).ok()?.into_raw();
    let provider =
        Box::leak(Box::new(Provider { device_name, extension: std::ptr::null_mut(), calls: calls() }));
    all.push(Loaded { name: name.to_owned(), device, provider, is_thread_safe });
    Some(provider)
}

/// Finds a call of the registry, which the program has loaded.
fn registry(name: &CStr) -> Option<extern "C" fn(*const Provider, *const ProviderInfo) -> u32> {
    // SAFETY: a search by name in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        udeck::via::say!(
            "uDAPL: {} is not there: a DAT registry (libdat2) loads this library",
            name.to_string_lossy()
        );
        return None;
    }
    // SAFETY: `dat_registry.h` declares both calls so.
    Some(unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const Provider, *const ProviderInfo) -> u32>(found)
    })
}

/// Called by the registry for a line of dat.conf. `instance` are its parameters: the transport.
///
/// # Safety
/// Both are NULL or what `dat_registry.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_init(info: *const ProviderInfo, instance: *const c_char) {
    call(|| {
        if info.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL; an array of characters that a 0 ends.
        let name = unsafe { name_of(&(*info).ia_name) };
        let words = match instance.is_null() {
            true => "",
            // SAFETY: not NULL, so a C string.
            false => unsafe { CStr::from_ptr(instance) }.to_str().unwrap_or(""),
        };
        let transport = words.split_whitespace().next().unwrap_or("shm");
        // SAFETY: not NULL.
        let Some(provider) = load(&name, transport, unsafe { (*info).is_thread_safe }) else {
            udeck::via::say!(
                "uDAPL: dat.conf names a device {transport:?} for {name:?}: give it shm, tcp, udp or verbs"
            );
            return Ok(());
        };
        if let Some(add) = registry(c"dat_registry_add_provider") {
            let code = add(provider, info);
            if code != 0 {
                udeck::via::say!("uDAPL: the registry does not take {name:?}: {code:#x}");
            }
        }
        Ok(())
    });
}

/// Called by the registry when nobody uses the provider any more. The library stays loaded: its threads may still end.
///
/// # Safety
/// As [`dat_provider_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_provider_fini(info: *const ProviderInfo) {
    call(|| {
        if info.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        let name = unsafe { name_of(&(*info).ia_name) };
        let provider = LOADED.lock().iter().find(|loaded| loaded.name == name).map(|loaded| loaded.provider);
        if let (Some(provider), Some(remove)) = (provider, registry(c"dat_registry_remove_provider")) {
            remove(provider, info);
        }
        Ok(())
    });
}

fn name_of(characters: &[c_char; NAME]) -> String {
    let bytes = characters.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_missing_from_the_table() {
        let provider = load("table", "shm", 0).unwrap();
        assert!(provider.calls.iter().all(|call| !call.is_null()));
        assert_eq!(not_implemented(), Code(0xbfff_0000));
        let missing: Vec<&str> = NAMES.iter().filter(|(_, served)| !served).map(|(name, _)| *name).collect();
        assert_eq!(missing.len(), 10, "{missing:?}");
    }

    /// The book's table says of each call whether it is served.
    #[test]
    fn the_book_has_each_call() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/udapl.md")).unwrap();
        for (name, served) in NAMES {
            let row =
                page.lines().find(|line| line.starts_with('|') && line.contains(&format!("`dat_{name}`")));
            let row = row.unwrap_or_else(|| panic!("docs/udapl.md has no row for dat_{name}"));
            assert_eq!(row.contains("not implemented"), !served, "{row}");
        }
    }

    #[test]
    fn a_device_that_is_none_is_refused() {
        assert!(load("none", "infiniband", 0).is_none());
        assert_eq!(loaded("none"), None);
    }
}
