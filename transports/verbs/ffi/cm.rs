//! C interface of `librdmacm.so.1`: `rdma/rdma_cma.h` of rdma-core, whose binary interface has not changed since
//! `RDMACM_1.0`. Types have the library's names in Rust's spelling (`rdma_cm_id` is [`CmId`]), and its fields'
//! names.

use std::ffi::{c_int, c_void};

use super::attributes::{AhAttr, Gid};
use super::objects::{CompChannel, RawContext, RawCq, RawPd, RawQp, RawSrq};

/// `struct rdma_event_channel`
#[repr(C)]
#[derive(Debug)]
pub struct EventChannel {
    pub fd: c_int,
}

/// `struct rdma_ib_addr`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IbAddr {
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: u16,
}

/// `struct rdma_addr`, with the longest members of its unions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Addr {
    pub src_storage: libc::sockaddr_storage,
    pub dst_storage: libc::sockaddr_storage,
    pub ibaddr: IbAddr,
}

/// `struct rdma_route`
#[repr(C)]
pub struct RdmaRoute {
    pub addr: Addr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// `struct rdma_cm_id`: made by the library only.
#[repr(C)]
pub struct CmId {
    pub verbs: *mut RawContext,
    pub channel: *mut EventChannel,
    pub context: *mut c_void,
    pub qp: *mut RawQp,
    pub route: RdmaRoute,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut CmEvent,
    pub send_cq_channel: *mut CompChannel,
    pub send_cq: *mut RawCq,
    pub recv_cq_channel: *mut CompChannel,
    pub recv_cq: *mut RawCq,
    pub srq: *mut RawSrq,
    pub pd: *mut RawPd,
    pub qp_type: u32,
}

/// `struct rdma_conn_param`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_ud_param`, declared for its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: AhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// The union `param` of `struct rdma_cm_event`
#[repr(C)]
#[derive(Clone, Copy)]
pub union Param {
    pub conn: ConnParam,
    pub ud: UdParam,
}

/// `struct rdma_cm_event`
#[repr(C)]
pub struct CmEvent {
    pub id: *mut CmId,
    pub listen_id: *mut CmId,
    pub event: u32,
    pub status: c_int,
    pub param: Param,
}

/// `enum rdma_port_space`
pub mod port_space {
    pub const TCP: u32 = 0x0106;
}

/// `enum rdma_cm_event_type`
pub mod cm_event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

// Sizes and offsets of rdma_cma.h on 64-bit machines; the opt-in oracle compares every field.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Addr>() == 296 && size_of::<RdmaRoute>() == 312 && size_of::<CmId>() == 416);
    assert!(offset_of!(CmId, ps) == 344 && offset_of!(CmId, port_num) == 348);
    assert!(size_of::<ConnParam>() == 24 && size_of::<UdParam>() == 56 && size_of::<CmEvent>() == 80);
};
