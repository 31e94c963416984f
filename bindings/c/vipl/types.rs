//! `vipl.h` in Rust: the same types, fields and values, laid out as C does.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ushort, c_void};

use udeck_rdma::memory::Segment;

use super::handle::Handle;

pub(super) type Ulong = c_ulong;
pub(super) type Boolean = c_int;

/// `VIP_RETURN`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipReturn(pub c_uint);

macro_rules! codes {
    ($kind:ident: $($name:ident = $value:expr),* $(,)?) => {
        #[allow(dead_code, reason = "the header has all of them")]
        impl $kind { $(pub const $name: $kind = $kind($value);)* }
    };
}

codes!(VipReturn: SUCCESS = 0, NOT_DONE = 1, INVALID_PARAMETER = 2, ERROR_RESOURCE = 3, TIMEOUT = 4, REJECT = 5,
    INVALID_RELIABILITY_LEVEL = 6, INVALID_MTU = 7, INVALID_QOS = 8, INVALID_PTAG = 9, INVALID_RDMAREAD = 10,
    DESCRIPTOR_ERROR = 11, INVALID_STATE = 12, ERROR_NAMESERVICE = 13, NO_MATCH = 14, NOT_REACHABLE = 15,
    ERROR_NOT_SUPPORTED = 16);

/// `VIP_INFINITE`.
pub(super) const INFINITE: Ulong = Ulong::MAX;

pub(super) const ALIGNMENT: usize = 64;

/// `VIP_NET_ADDRESS`, without the bytes that follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NetAddressHead {
    pub host_len: u16,
    pub discriminator_len: u16,
}

/// `VIP_CONTROL_SEGMENT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ControlSegment {
    pub next: u64,
    pub next_handle: u32,
    pub seg_count: u16,
    pub control: u16,
    pub reserved: u32,
    pub immediate: u32,
    pub length: u32,
    pub status: u32,
}

/// `VIP_DESCRIPTOR_SEGMENT`: `last` is the length of a data segment, reserved in an address segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorSegment {
    pub data: u64,
    pub handle: u32,
    pub last: u32,
}

impl From<DescriptorSegment> for Segment {
    fn from(segment: DescriptorSegment) -> Segment {
        Segment { address: segment.data, len: segment.last, key: segment.handle }
    }
}

/// `VIP_DESCRIPTOR`, up to its segments.
#[repr(C)]
pub struct Descriptor {
    pub(super) control: ControlSegment,
    pub(super) segments: [DescriptorSegment; 0],
}

pub(super) mod control {
    pub const OP_SENDRECV: u16 = 0;
    pub const OP_RDMAWRITE: u16 = 1;
    pub const OP_RDMAREAD: u16 = 2;
    pub const OP_MASK: u16 = 3;
    pub const IMMEDIATE: u16 = 4;
    pub const QFENCE: u16 = 8;
    pub const ALL: u16 = OP_MASK | IMMEDIATE | QFENCE;
}

pub(super) mod status {
    pub const DONE: u32 = 1;
    pub const FORMAT_ERROR: u32 = 2;
    pub const PROTECTION_ERROR: u32 = 4;
    pub const LENGTH_ERROR: u32 = 8;
    pub const DESC_FLUSHED_ERROR: u32 = 0x20;
    pub const TRANSPORT_ERROR: u32 = 0x40;
    pub const RDMA_PROT_ERROR: u32 = 0x80;
    pub const REMOTE_DESC_ERROR: u32 = 0x100;
    pub const OP_SEND: u32 = 0;
    pub const OP_RECEIVE: u32 = 0x10000;
    pub const OP_RDMA_WRITE: u32 = 0x20000;
    pub const OP_REMOTE_RDMA_WRITE: u32 = 0x30000;
    pub const OP_RDMA_READ: u32 = 0x40000;
    pub const IMMEDIATE: u32 = 0x80000;
}

/// `VIP_VI_STATE`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViState(pub c_uint);

codes!(ViState: IDLE = 0, CONNECTED = 1, CONNECT_PENDING = 2, ERROR = 3);

pub(super) const UNRELIABLE: c_ushort = 1;
pub(super) const RELIABLE_DELIVERY: c_ushort = 2;
pub(super) const RELIABLE_RECEPTION: c_ushort = 4;

/// `VIP_VI_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ViAttributes {
    pub reliability: c_ushort,
    pub max_transfer: c_ulong,
    pub qos: *mut c_void,
    pub ptag: Handle,
    pub rdma_write: Boolean,
    pub rdma_read: Boolean,
}

// SAFETY: `qos` is a number to us.
unsafe impl Send for ViAttributes {}

/// `VIP_MEM_ATTRIBUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemAttributes {
    pub ptag: Handle,
    pub rdma_write: Boolean,
    pub rdma_read: Boolean,
}

/// `VIP_NIC_ATTRIBUTES`.
#[repr(C)]
pub struct NicAttributes {
    pub name: [c_char; 64],
    pub hardware_version: c_ulong,
    pub provider_version: c_ulong,
    pub nic_address_len: u16,
    pub local_nic_address: *const u8,
    pub thread_safe: Boolean,
    pub max_discriminator_len: u16,
    pub max_register_bytes: c_ulong,
    pub max_register_regions: c_ulong,
    pub max_register_block_bytes: c_ulong,
    pub max_vi: c_ulong,
    pub max_descriptors_per_queue: c_ulong,
    pub max_segments_per_desc: c_ulong,
    pub max_cq: c_ulong,
    pub max_cq_entries: c_ulong,
    pub max_transfer_size: c_ulong,
    pub native_mtu: c_ulong,
    pub max_ptags: c_ulong,
    pub reliability_level_support: c_ushort,
    pub rdma_read_support: c_ushort,
}

/// `VIP_RESOURCE_CODE`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceCode(pub c_uint);

codes!(ResourceCode: NIC = 0, VI = 1, CQ = 2, DESCRIPTOR = 3);

/// `VIP_ERROR_CODE`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub c_uint);

codes!(ErrorCode: POST_DESC = 0, CONN_LOST = 1, RECVQ_EMPTY = 2, VI_OVERRUN = 3, RDMAW_PROT = 4, RDMAW_DATA = 5,
    RDMAW_ABORT = 6, RDMAR_PROT = 7, COMP_PROT = 8, RDMA_TRANSPORT = 9, CATASTROPHIC = 10);

/// `VIP_ERROR_DESCRIPTOR`.
#[repr(C)]
pub struct ErrorDescriptor {
    pub nic: Handle,
    pub vi: Handle,
    pub cq: Handle,
    pub descriptor: *mut Descriptor,
    pub op_code: c_ulong,
    pub resource: ResourceCode,
    pub error: ErrorCode,
}

/// `VIP_AUTODISCOVERY_LIST`.
#[repr(C)]
pub struct AutodiscoveryList {
    pub hops: c_ulong,
    pub addresses: *mut *mut NetAddressHead,
    pub count: c_ulong,
}

/// `VIP_SMI_AUTODISCOVERY`.
pub(super) const SMI_AUTODISCOVERY: Ulong = 1;

pub type NotifyHandler = extern "C" fn(*mut c_void, Handle, Handle, *mut Descriptor);
pub type CqHandler = extern "C" fn(*mut c_void, Handle, Handle, Boolean);
pub type ErrorHandler = extern "C" fn(*mut c_void, *mut ErrorDescriptor);
