//! The structures of `dat.h` and `udat.h`, as the C compiler lays them out. (`tests/abi.rs` asks it, where the headers are.)

use std::ffi::{c_char, c_int, c_void};

use crate::core::event::Event;
use crate::core::memory::Triplet;

pub const NAME: usize = 256;
/// `DAT_IA_HANDLE` and all others: an address, or 0.
pub type Handle = usize;

#[repr(C)]
pub struct CEvent {
    pub number: u32,
    pub evd: Handle,
    pub data: [u64; 5],
    pub extension: [u64; 8],
}

impl CEvent {
    pub fn of(event: Event, evd: Handle) -> CEvent {
        CEvent { number: event.number, evd, data: event.data, extension: [0; 8] }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct NamedAttr {
    pub name: *const c_char,
    pub value: *const c_char,
}

#[repr(C)]
pub struct IaAttr {
    pub adapter_name: [c_char; NAME],
    pub vendor_name: [c_char; NAME],
    pub hardware_version: [u32; 2],
    pub firmware_version: [u32; 2],
    pub address: *const c_void,
    pub max_eps: c_int,
    pub max_dto_per_ep: c_int,
    pub max_rdma_read_per_ep_in: c_int,
    pub max_rdma_read_per_ep_out: c_int,
    pub max_evds: c_int,
    pub max_evd_qlen: c_int,
    pub max_iov_segments_per_dto: c_int,
    pub max_lmrs: c_int,
    pub max_lmr_block_size: u32,
    pub max_lmr_virtual_address: u64,
    pub max_pzs: c_int,
    pub max_message_size: u32,
    pub max_rdma_size: u32,
    pub max_rmrs: c_int,
    pub max_rmr_target_address: u64,
    pub max_srqs: c_int,
    pub max_ep_per_srq: c_int,
    pub max_recv_per_srq: c_int,
    pub max_iov_segments_per_rdma_read: c_int,
    pub max_iov_segments_per_rdma_write: c_int,
    pub max_rdma_read_in: c_int,
    pub max_rdma_read_out: c_int,
    pub read_per_ep_in_guaranteed: u32,
    pub read_per_ep_out_guaranteed: u32,
    pub zb_supported: u32,
    pub extension_supported: u32,
    pub extension_version: c_int,
    pub num_transport_attr: c_int,
    pub transport_attr: *const NamedAttr,
    pub num_vendor_attr: c_int,
    pub vendor_attr: *const NamedAttr,
}

#[repr(C)]
pub struct ProviderAttr {
    pub provider_name: [c_char; NAME],
    pub provider_version: [u32; 2],
    pub dapl_version: [u32; 2],
    pub lmr_mem_types_supported: u32,
    pub iov_ownership_on_return: u32,
    pub dat_qos_supported: u32,
    pub completion_flags_supported: u32,
    pub is_thread_safe: u32,
    pub max_private_data_size: c_int,
    pub supports_multipath: u32,
    pub ep_creator: u32,
    pub pz_support: u32,
    pub optimal_buffer_alignment: u32,
    pub evd_stream_merging: [[u32; 6]; 6],
    pub srq_supported: u32,
    pub srq_watermarks_supported: c_int,
    pub srq_ep_pz_difference_supported: u32,
    pub srq_info_supported: c_int,
    pub ep_recv_info_supported: c_int,
    pub lmr_sync_req: u32,
    pub dto_async_return_guaranteed: u32,
    pub rdma_write_for_rdma_read_req: u32,
    pub rdma_read_lmr_rmr_context_exposure: u32,
    pub rmr_scope_supported: u32,
    pub is_signal_safe: u32,
    pub ha_supported: u32,
    pub ha_loadbalancing: u32,
    pub num_provider_specific_attr: c_int,
    pub provider_specific_attr: *const NamedAttr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpAttr {
    pub service_type: u32,
    pub max_message_size: u32,
    pub max_rdma_size: u32,
    pub qos: u32,
    pub recv_completion_flags: u32,
    pub request_completion_flags: u32,
    pub max_recv_dtos: c_int,
    pub max_request_dtos: c_int,
    pub max_recv_iov: c_int,
    pub max_request_iov: c_int,
    pub max_rdma_read_in: c_int,
    pub max_rdma_read_out: c_int,
    pub srq_soft_hw: c_int,
    pub max_rdma_read_iov: c_int,
    pub max_rdma_write_iov: c_int,
    pub transport_specific_count: c_int,
    pub transport_specific: *const NamedAttr,
    pub provider_specific_count: c_int,
    pub provider_specific: *const NamedAttr,
}

#[repr(C)]
pub struct EpParam {
    pub ia: Handle,
    pub state: u32,
    pub comm: [c_int; 3],
    pub local_address: *const c_void,
    pub local_port: u64,
    pub remote_address: *const c_void,
    pub remote_port: u64,
    pub pz: Handle,
    pub recv_evd: Handle,
    pub request_evd: Handle,
    pub connect_evd: Handle,
    pub srq: Handle,
    pub attr: EpAttr,
}

#[repr(C)]
pub struct EvdParam {
    pub ia: Handle,
    pub qlen: c_int,
    pub state: u32,
    pub cno: Handle,
    pub flags: u32,
}

/// `DAT_REGION_DESCRIPTION`, a union: an address, an LMR, or an address and a cookie.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Region {
    pub first: usize,
    pub cookie: usize,
}

#[repr(C)]
pub struct LmrParam {
    pub ia: Handle,
    pub mem_type: u32,
    pub region: Region,
    pub length: u64,
    pub pz: Handle,
    pub mem_priv: u32,
    pub va_type: u32,
    pub lmr_context: u32,
    pub rmr_context: u32,
    pub registered_size: u64,
    pub registered_address: u64,
}

#[repr(C)]
pub struct RmrParam {
    pub ia: Handle,
    pub pz: Handle,
    pub triplet: Triplet,
    pub mem_priv: u32,
    pub rmr_context: u32,
    pub rmr_scope: u32,
    pub va_type: u32,
}

#[repr(C)]
pub struct CnoParam {
    pub ia: Handle,
    pub proxy_type: u32,
    pub proxy: Agent,
}

/// `DAT_OS_WAIT_PROXY_AGENT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Agent {
    pub data: *mut c_void,
    pub function: Option<extern "C" fn(*mut c_void, Handle)>,
}

#[repr(C)]
pub struct SrqAttr {
    pub max_recv_dtos: c_int,
    pub max_recv_iov: c_int,
    pub low_watermark: c_int,
}

#[repr(C)]
pub struct SrqParam {
    pub ia: Handle,
    pub state: u32,
    pub pz: Handle,
    pub max_recv_dtos: c_int,
    pub max_recv_iov: c_int,
    pub low_watermark: c_int,
    pub available: c_int,
    pub outstanding: c_int,
}

#[repr(C)]
pub struct PspParam {
    pub ia: Handle,
    pub qualifier: u64,
    pub evd: Handle,
    pub flags: u32,
}

#[repr(C)]
pub struct RspParam {
    pub ia: Handle,
    pub qualifier: u64,
    pub evd: Handle,
    pub ep: Handle,
}

#[repr(C)]
pub struct CrParam {
    pub remote_address: *const c_void,
    pub remote_port: u64,
    pub private_data_size: c_int,
    pub private_data: *const c_void,
    pub local_ep: Handle,
}

/// `DAT_PROVIDER_INFO`.
#[repr(C)]
pub struct ProviderInfo {
    pub ia_name: [c_char; NAME],
    pub version: [u32; 2],
    pub is_thread_safe: u32,
}
