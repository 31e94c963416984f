//! uDAPL's calls as C programs make them: through the table that a handle's first word points to.

use std::ffi::{c_char, c_int, c_void};

/// `DAT_HANDLE`.
pub type Handle = usize;

/// `DAT_LMR_TRIPLET`.
#[repr(C)]
pub struct Triplet {
    pub address: u64,
    pub len: u32,
    pub context: u32,
}

/// `DAT_EVENT`.
#[repr(C)]
#[derive(Default)]
pub struct Event {
    pub number: u32,
    pub evd: Handle,
    pub data: [u64; 5],
    pub extension: [u64; 8],
}

/// `DAT_REGION_DESCRIPTION`: memory of the program's.
#[repr(C)]
pub struct Region {
    pub address: *const c_void,
    pub beside: usize,
}

/// `DAT_PROVIDER`.
#[repr(C)]
pub struct Table {
    device_name: *const c_char,
    extension: *mut c_void,
    calls: [*const (); 79],
}

/// `DAT_HANDLE_TO_PROVIDER`.
///
/// # Safety
/// A handle that a call has given.
#[inline(always)]
pub unsafe fn table_of(handle: Handle) -> *const Table {
    // SAFETY: as promised: what it points to begins with the table's address, and is never freed.
    unsafe { *(handle as *const *const Table) }
}

macro_rules! calls {
    ($($name:ident = $nth:literal ($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// The call of that name in `udat.h`.
            ///
            /// # Safety
            /// The provider's table, and the arguments are what `udat.h` says.
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "udat.h's")]
            pub unsafe fn $name(table: *const Table, $($argument: $kind),*) -> u32 {
                // SAFETY: the table's call of that number has these arguments.
                unsafe {
                    let call = std::mem::transmute::<*const (), unsafe extern "C" fn($($kind),*) -> u32>(
                        (*table).calls[$nth],
                    );
                    call($($argument),*)
                }
            }
        )*
    };
}

calls! {
    ia_open = 0(name: *const c_char, room: c_int, asynchronous: *mut Handle, ia: *mut Handle);
    ia_close = 2(ia: Handle, flags: u32);
    cr_accept = 12(cr: Handle, ep: Handle, size: c_int, private_data: *const u8);
    evd_create = 15(ia: Handle, room: c_int, cno: Handle, flags: u32, evd: *mut Handle);
    evd_wait = 20(evd: Handle, microseconds: u32, threshold: c_int, event: *mut Event, more: *mut c_int);
    evd_dequeue = 23(evd: Handle, event: *mut Event);
    ep_create = 25(
        ia: Handle, pz: Handle, receives: Handle, requests: Handle, connections: Handle, attributes: *const c_void,
        ep: *mut Handle
    );
    ep_connect = 28(
        ep: Handle, address: *const c_void, qualifier: u64, microseconds: u32, size: c_int, private_data: *const u8,
        qos: u32, flags: u32
    );
    ep_post_send = 31(ep: Handle, count: c_int, iov: *const Triplet, cookie: u64, flags: u32);
    ep_post_recv = 32(ep: Handle, count: c_int, iov: *const Triplet, cookie: u64, flags: u32);
    lmr_create = 37(
        ia: Handle, kind: u32, region: Region, length: u64, pz: Handle, rights: u32, addressing: u32,
        lmr: *mut Handle, lmr_context: *mut u32, rmr_context: *mut u32, size: *mut u64, address: *mut u64
    );
    pz_create = 50(ia: Handle, pz: *mut Handle);
    psp_create_any = 53(ia: Handle, qualifier: *mut u64, evd: Handle, flags: u32, psp: *mut Handle);
}
