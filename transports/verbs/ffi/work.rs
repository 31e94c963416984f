//! Work requests and completions.

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `wr.rdma` of `struct ibv_send_wr`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `wr.atomic` of `struct ibv_send_wr`: the largest member of that union, declared for its size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// The union `wr` of `struct ibv_send_wr`
#[repr(C)]
#[derive(Clone, Copy)]
pub union Remote {
    pub rdma: Rdma,
    pub atomic: Atomic,
}

/// `bind_mw` of `struct ibv_send_wr`, with the fields of its `struct ibv_mw_bind_info`: the largest member of that
/// union, declared for its size.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindMw {
    pub mw: *mut std::ffi::c_void,
    pub rkey: u32,
    pub bind_info_mr: *mut std::ffi::c_void,
    pub bind_info_addr: u64,
    pub bind_info_length: u64,
    pub bind_info_mw_access_flags: u32,
}

/// `struct ibv_send_wr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: i32,
    pub opcode: u32,
    pub send_flags: u32,
    /// Immediate data, big-endian.
    pub imm_data: u32,
    pub wr: Remote,
    pub xrc_remote_srqn: u32,
    pub bind_mw: BindMw,
}

/// `struct ibv_recv_wr`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: i32,
}

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data, big-endian.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

// Sizes and offsets of verbs.h on 64-bit machines; the opt-in oracle compares every field.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, wr) == 40 && offset_of!(SendWr, bind_mw) == 80);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Wc>() == 48 && size_of::<Sge>() == 16);
};
