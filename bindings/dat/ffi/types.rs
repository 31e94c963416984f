//! The structures of `dat.h` and `udat.h`, as the C compiler lays them out. (A test asks the compiler, where the headers are.)

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

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// A structure's name and size in C, and fields with their offsets here.
    type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

    macro_rules! layout {
        ($c:literal, $ours:ty { $($field:literal = $ours_field:tt),* $(,)? }) => {
            ($c, size_of::<$ours>(), vec![$(($field, offset_of!($ours, $ours_field))),*])
        };
    }

    fn layouts() -> Vec<Layout> {
        vec![
            layout!("DAT_EVENT", CEvent { "event_number" = number, "evd_handle" = evd, "event_data" = data, "event_extension_data" = extension }),
            layout!("DAT_IA_ATTR", IaAttr {
                "vendor_name" = vendor_name, "hardware_version_major" = hardware_version, "firmware_version_major" = firmware_version,
                "ia_address_ptr" = address, "max_eps" = max_eps, "max_dto_per_ep" = max_dto_per_ep, "max_evd_qlen" = max_evd_qlen,
                "max_lmr_virtual_address" = max_lmr_virtual_address, "max_message_size" = max_message_size, "max_srqs" = max_srqs,
                "max_rmr_target_address" = max_rmr_target_address, "max_rdma_read_out" = max_rdma_read_out, "zb_supported" = zb_supported,
                "extension_version" = extension_version, "transport_attr" = transport_attr, "vendor_attr" = vendor_attr,
            }),
            layout!("DAT_PROVIDER_ATTR", ProviderAttr {
                "provider_version_major" = provider_version, "dapl_version_major" = dapl_version, "is_thread_safe" = is_thread_safe,
                "max_private_data_size" = max_private_data_size, "optimal_buffer_alignment" = optimal_buffer_alignment,
                "evd_stream_merging_supported" = evd_stream_merging, "srq_supported" = srq_supported, "lmr_sync_req" = lmr_sync_req,
                "rmr_scope_supported" = rmr_scope_supported, "ha_loadbalancing" = ha_loadbalancing,
                "provider_specific_attr" = provider_specific_attr,
            }),
            layout!("DAT_EP_ATTR", EpAttr {
                "max_message_size" = max_message_size, "max_recv_dtos" = max_recv_dtos, "max_request_iov" = max_request_iov,
                "max_rdma_write_iov" = max_rdma_write_iov, "ep_transport_specific" = transport_specific,
                "ep_provider_specific" = provider_specific,
            }),
            layout!("DAT_EP_PARAM", EpParam {
                "ep_state" = state, "comm" = comm, "local_ia_address_ptr" = local_address, "local_port_qual" = local_port,
                "remote_port_qual" = remote_port, "pz_handle" = pz, "connect_evd_handle" = connect_evd, "srq_handle" = srq, "ep_attr" = attr,
            }),
            layout!("DAT_EVD_PARAM", EvdParam { "evd_qlen" = qlen, "evd_state" = state, "cno_handle" = cno, "evd_flags" = flags }),
            layout!("DAT_REGION_DESCRIPTION", Region { "for_va" = first }),
            layout!("DAT_LMR_PARAM", LmrParam {
                "mem_type" = mem_type, "region_desc" = region, "length" = length, "pz_handle" = pz, "va_type" = va_type,
                "rmr_context" = rmr_context, "registered_address" = registered_address,
            }),
            layout!("DAT_RMR_PARAM", RmrParam { "pz_handle" = pz, "lmr_triplet" = triplet, "rmr_context" = rmr_context, "va_type" = va_type }),
            layout!("DAT_LMR_TRIPLET", Triplet { "virtual_address" = address, "segment_length" = len, "lmr_context" = key }),
            layout!("DAT_RMR_TRIPLET", Triplet { "virtual_address" = address, "segment_length" = len, "rmr_context" = key }),
            layout!("DAT_CNO_PARAM", CnoParam { "proxy_type" = proxy_type, "proxy" = proxy }),
            layout!("DAT_OS_WAIT_PROXY_AGENT", Agent { "instance_data" = data, "proxy_agent_func" = function }),
            layout!("DAT_SRQ_ATTR", SrqAttr { "max_recv_iov" = max_recv_iov, "low_watermark" = low_watermark }),
            layout!("DAT_SRQ_PARAM", SrqParam { "srq_state" = state, "pz_handle" = pz, "outstanding_dto_count" = outstanding }),
            layout!("DAT_PSP_PARAM", PspParam { "conn_qual" = qualifier, "evd_handle" = evd, "psp_flags" = flags }),
            layout!("DAT_RSP_PARAM", RspParam { "conn_qual" = qualifier, "evd_handle" = evd, "ep_handle" = ep }),
            layout!("DAT_CR_PARAM", CrParam { "remote_port_qual" = remote_port, "private_data" = private_data, "local_ep_handle" = local_ep }),
            layout!("DAT_PROVIDER_INFO", ProviderInfo { "dapl_version_major" = version, "is_thread_safe" = is_thread_safe }),
            layout!("DAT_NAMED_ATTR", NamedAttr { "value" = value }),
        ]
    }

    /// Compares with the C compiler's layout, from Debian's headers.
    #[test]
    fn structures_are_those_of_the_headers() {
        if !Path::new("/usr/include/dat2/udat.h").exists() {
            let required = std::env::var("UDECK_DAT").is_ok_and(|word| word == "require");
            assert!(!required, "UDECK_DAT=require, and there is no udat.h");
            println!("skipped: /usr/include/dat2/udat.h is not there (Debian: apt-get install libdapl-dev)");
            return;
        }
        let mut c =
            String::from("#include <stddef.h>\n#include <dat2/udat.h>\n#include <dat2/udat_redirection.h>\n");
        c += "_Static_assert(sizeof(DAT_PROVIDER) == 648, \"the table of calls\");\n";
        for (name, size, fields) in layouts() {
            c += &format!("_Static_assert(sizeof({name}) == {size}, \"size\");\n");
            for (field, at) in fields {
                c += &format!("_Static_assert(offsetof({name}, {field}) == {at}, \"{field}\");\n");
            }
        }
        for (nth, (name, _)) in super::super::provider::NAMES.iter().enumerate() {
            c += &format!(
                "_Static_assert(offsetof(DAT_PROVIDER, {name}_func) == {}, \"{name}\");\n",
                16 + 8 * nth
            );
        }
        for (name, code) in [
            ("DAT_INVALID_STATE_EP_UNCONNECTED", crate::core::code::Sub::EpUnconnected),
            ("DAT_INVALID_STATE_SRQ_SHUTDOWN", crate::core::code::Sub::SrqShutdown),
            ("DAT_INVALID_ADDRESS_MALFORMED", crate::core::code::Sub::AddressMalformed),
            ("DAT_INVALID_ARG1", crate::core::code::Sub::InvalidArg1),
            ("DAT_INVALID_HANDLE_SRQ", crate::core::code::Sub::HandleSrq),
        ] {
            c += &format!("_Static_assert({name} == {}, \"{name}\");\n", code as u32);
        }
        let file = std::env::temp_dir().join(format!("udeck-dat-abi-{}.c", std::process::id()));
        std::fs::write(&file, c).unwrap();
        let output = Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&file).output().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
