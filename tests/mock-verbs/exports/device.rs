//! Devices and contexts.

use super::{null, number, post_recv, post_send, post_srq_recv, standin};
use crate::abi::{
    IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID, IBV_NODE_CA,
    IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, ibv_context, ibv_context_ops, ibv_device,
    ibv_device_attr,
};
use crate::config::{Device, config};
use crate::objects::Context;
use crate::world::{self, semaphore, with};
use libc::{c_char, c_int};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::{Once, OnceLock};

/// An open context; it begins with the `ibv_context` that programs see.
#[repr(C)]
pub struct OpenContext {
    pub ibv: ibv_context,
    pub number: u32,
}

/// Devices of this process, which live as long as it does.
struct Devices(Vec<ibv_device>);

// SAFETY: Nothing in a device changes, and its pointers are null.
unsafe impl Sync for Devices {}
// SAFETY: As above.
unsafe impl Send for Devices {}

fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    let configured = || config().devices.as_deref().unwrap_or_default();
    DEVICES.get_or_init(|| Devices(configured().iter().map(make).collect()))
}

fn make(device: &Device) -> ibv_device {
    let uverbs = format!("uverbs{}", device.index);
    let class = "/sys/class";
    ibv_device {
        _ops: [std::ptr::null_mut(); 2],
        node_type: if device.iwarp { IBV_NODE_RNIC } else { IBV_NODE_CA },
        transport_type: if device.iwarp { IBV_TRANSPORT_IWARP } else { IBV_TRANSPORT_IB },
        name: text(&device.name),
        dev_name: text(&uverbs),
        dev_path: text(&format!("{class}/infiniband_verbs/{uverbs}")),
        ibdev_path: text(&format!("{class}/infiniband/{}", device.name)),
    }
}

/// Converts `words` to a C string, cut so that a zero fits behind.
pub fn text<const N: usize>(words: &str) -> [c_char; N] {
    let mut text = [0; N];
    for (to, from) in text.iter_mut().take(N - 1).zip(words.bytes()) {
        *to = from as c_char;
    }
    text
}

/// Handle of the device with this index.
pub fn handle(index: usize) -> *mut ibv_device {
    devices().0.get(index).map_or(std::ptr::null_mut(), |device| std::ptr::from_ref(device).cast_mut())
}

/// Index of a device in the list.
fn index(device: *mut ibv_device) -> Option<usize> {
    devices().0.iter().position(|known| std::ptr::eq(known, device))
}

/// Configuration of the context's device.
///
/// # Safety
/// A context that is open.
pub unsafe fn configured(context: *mut ibv_context) -> Option<&'static Device> {
    // SAFETY: handle
    let device = unsafe { (*context).device };
    config().devices.as_deref()?.get(index(device)?)
}

/// Number of the context.
///
/// # Safety
/// A context that is open.
pub unsafe fn number_of(context: *mut ibv_context) -> u32 {
    // SAFETY: handle; it is the beginning of ours.
    unsafe { (*context.cast::<OpenContext>()).number }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if config().devices.is_none() {
        return null(libc::ENOSYS);
    }
    let all = &devices().0;
    // SAFETY: Room for all pointers and a null, zeroed.
    let list = unsafe { libc::calloc(all.len() + 1, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    for (index, device) in all.iter().enumerate() {
        // SAFETY: There is room.
        unsafe { list.add(index).write(std::ptr::from_ref(device).cast_mut()) };
    }
    if !count.is_null() {
        // SAFETY: The caller's number.
        unsafe { count.write(all.len() as c_int) };
    }
    list
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: It was allocated above.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: handle
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let configured = config().devices.as_deref().zip(index(device)).and_then(|(all, index)| all.get(index));
    configured.map_or(0, |device| u64::from_ne_bytes(device.guid()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(index) = index(device) else { return null(libc::ENODEV) };
    if with(|world| !world.alive(index)) {
        return null(libc::EIO);
    }
    let Ok(fd) = semaphore() else { return null(libc::EMFILE) };
    start_engine();
    let async_fd = fd.as_raw_fd();
    let number = with(|world| world.contexts.insert(Context { device: index, fd, events: VecDeque::new() }));
    let ibv = ibv_context {
        device,
        ops: operations(),
        // No kernel takes commands.
        cmd_fd: -1,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        // There are no extended operations: the header's inline functions then call the exported ones.
        abi_compat: std::ptr::null_mut(),
    };
    Box::into_raw(Box::new(OpenContext { ibv, number })).cast()
}

/// Table of operations: only those are set through which programs call.
fn operations() -> ibv_context_ops {
    // SAFETY: Every member is an optional function, for which zero is none.
    let empty: ibv_context_ops = unsafe { std::mem::zeroed() };
    ibv_context_ops {
        poll_cq: Some(super::poll_cq),
        req_notify_cq: Some(super::req_notify_cq),
        post_srq_recv: Some(post_srq_recv),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..empty
    }
}

fn start_engine() {
    static ENGINE: Once = Once::new();
    ENGINE.call_once(|| {
        standin::stay_loaded();
        let engine = std::thread::Builder::new().name("standin".into());
        if let Err(problem) = engine.spawn(|| world::run_engine()) {
            eprintln!("udeck-mock-verbs: no thread for the engine: {problem}");
            std::process::abort();
        }
    });
}

/// Closes a context as if the kernel cleaned up: its remaining objects vanish from the device. Their handles are the
/// program's leak.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: handle
    let closed = unsafe { number_of(context) };
    with(|world| {
        for pair in world.pairs.numbers() {
            if world.pairs.get(pair).is_some_and(|pair| pair.context == closed) {
                world.pairs.remove(pair);
            }
        }
        for region in world.regions.numbers() {
            let domain = world.regions.get(region).and_then(|region| world.domains.get(region.domain));
            if domain.is_some_and(|domain| domain.context == closed)
                && let Some(region) = world.regions.remove(region)
            {
                world.registered -= region.length as u64;
            }
        }
        world.contexts.remove(closed);
    });
    // SAFETY: It was made so by `ibv_open_device`, and the program gives it up.
    drop(unsafe { Box::from_raw(context.cast::<OpenContext>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int {
    // SAFETY: handle
    let Some(device) = (unsafe { configured(context) }) else { return libc::EINVAL };
    if with(|world| !world.alive(usize::from(device.index))) {
        return number(Err(libc::EIO));
    }
    // SAFETY: The caller's structure, of which all is written.
    unsafe { attributes.write(limits(device)) };
    0
}

fn limits(device: &Device) -> ibv_device_attr {
    let guid = u64::from_ne_bytes(device.guid());
    // SAFETY: All members are numbers.
    let zero: ibv_device_attr = unsafe { std::mem::zeroed() };
    ibv_device_attr {
        fw_ver: text("standin"),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        max_qp: device.max_qp as c_int,
        max_qp_wr: device.max_qp_wr as c_int,
        device_cap_flags: IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_SYS_IMAGE_GUID,
        max_sge: device.max_sge as c_int,
        max_sge_rd: if device.iwarp { 1 } else { device.max_sge as c_int },
        max_cq: 1 << 16,
        max_cqe: device.max_cqe as c_int,
        max_mr: device.max_mr as c_int,
        max_pd: 1 << 15,
        max_qp_rd_atom: c_int::from(device.max_reads),
        max_res_rd_atom: c_int::from(device.max_reads) * 1024,
        max_qp_init_rd_atom: c_int::from(device.max_reads),
        max_srq: 1 << 10,
        max_srq_wr: device.max_qp_wr as c_int,
        max_srq_sge: device.max_sge as c_int,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..zero
    }
}

/// Succeeds without work: nothing is pinned here that a child's write could separate.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
