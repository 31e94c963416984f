//! Objects that the library makes. Only the first fields of each are declared; all are used behind pointers from the
//! library.

use std::ffi::{c_char, c_int, c_void};

use super::work::{RecvWr, SendWr, Wc};

/// `struct ibv_device`
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    pub ops: [*mut c_void; 2],
    pub node_type: i32,
    pub transport_type: i32,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`: calls that are no symbols but entries of a table, because the provider's own code is
/// called directly. Entries that are not used here are pointers of unknown type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextOps {
    pub query_device: *mut c_void,
    pub query_port: *mut c_void,
    pub alloc_pd: *mut c_void,
    pub dealloc_pd: *mut c_void,
    pub reg_mr: *mut c_void,
    pub rereg_mr: *mut c_void,
    pub dereg_mr: *mut c_void,
    pub alloc_mw: *mut c_void,
    pub bind_mw: *mut c_void,
    pub dealloc_mw: *mut c_void,
    pub create_cq: *mut c_void,
    pub poll_cq: Option<unsafe extern "C" fn(cq: *mut RawCq, entries: c_int, wc: *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(cq: *mut RawCq, solicited_only: c_int) -> c_int>,
    pub cq_event: *mut c_void,
    pub resize_cq: *mut c_void,
    pub destroy_cq: *mut c_void,
    pub create_srq: *mut c_void,
    pub modify_srq: *mut c_void,
    pub query_srq: *mut c_void,
    pub destroy_srq: *mut c_void,
    pub post_srq_recv:
        Option<unsafe extern "C" fn(srq: *mut RawSrq, wr: *mut RecvWr, bad_wr: *mut *mut RecvWr) -> c_int>,
    pub create_qp: *mut c_void,
    pub query_qp: *mut c_void,
    pub modify_qp: *mut c_void,
    pub destroy_qp: *mut c_void,
    pub post_send:
        Option<unsafe extern "C" fn(qp: *mut RawQp, wr: *mut SendWr, bad_wr: *mut *mut SendWr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(qp: *mut RawQp, wr: *mut RecvWr, bad_wr: *mut *mut RecvWr) -> c_int>,
    pub create_ah: *mut c_void,
    pub destroy_ah: *mut c_void,
    pub attach_mcast: *mut c_void,
    pub detach_mcast: *mut c_void,
    pub async_event: *mut c_void,
}

/// `struct ibv_context`, without the mutex and the pointer at its end
#[repr(C)]
#[derive(Debug)]
pub struct RawContext {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// `struct ibv_pd`
#[repr(C)]
#[derive(Debug)]
pub struct RawPd {
    pub context: *mut RawContext,
    pub handle: u32,
}

/// `struct ibv_mr`
#[repr(C)]
#[derive(Debug)]
pub struct RawMr {
    pub context: *mut RawContext,
    pub pd: *mut RawPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    pub context: *mut RawContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`, without the locks and counts at its end
#[repr(C)]
#[derive(Debug)]
pub struct RawCq {
    pub context: *mut RawContext,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// `struct ibv_srq`, without the locks and counts at its end
#[repr(C)]
#[derive(Debug)]
pub struct RawSrq {
    pub context: *mut RawContext,
    pub srq_context: *mut c_void,
    pub pd: *mut RawPd,
    pub handle: u32,
}

/// `struct ibv_qp`, without the locks and counts at its end
#[repr(C)]
#[derive(Debug)]
pub struct RawQp {
    pub context: *mut RawContext,
    pub qp_context: *mut c_void,
    pub pd: *mut RawPd,
    pub send_cq: *mut RawCq,
    pub recv_cq: *mut RawCq,
    pub srq: *mut RawSrq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
}

/// The union `element` of `struct ibv_async_event`
#[repr(C)]
#[derive(Clone, Copy)]
pub union Element {
    pub cq: *mut RawCq,
    pub qp: *mut RawQp,
    pub port_num: c_int,
}

/// `struct ibv_async_event`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    pub element: Element,
    pub event_type: u32,
}
