//! Numbers of the library's enumerations and flags. (Rust enumerations would be undefined behaviour if a newer
//! library returns a number that this list lacks.)

/// `enum ibv_transport_type`
pub mod transport {
    pub const IWARP: i32 = 1;
}

/// `enum ibv_port_state`
pub mod port_state {
    pub const ACTIVE: u32 = 4;
}

/// `link_layer` of a port
pub mod link_layer {
    pub const ETHERNET: u8 = 2;
}

/// `enum ibv_qp_type`
pub mod qp_type {
    pub const RC: u32 = 2;
    pub const UC: u32 = 3;
}

/// `enum ibv_qp_state`
pub mod qp_state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const ERR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`
pub mod attr_mask {
    pub const STATE: i32 = 1;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}

/// `enum ibv_access_flags`
pub mod access {
    pub const LOCAL_WRITE: i32 = 1;
    pub const REMOTE_WRITE: i32 = 1 << 1;
    pub const REMOTE_READ: i32 = 1 << 2;
}

/// `enum ibv_wr_opcode`
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const RDMA_READ: u32 = 4;
}

/// `enum ibv_send_flags`
pub mod send_flags {
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 1 << 1;
    pub const INLINE: u32 = 1 << 3;
}

/// `enum ibv_wc_status`
pub mod status {
    pub const SUCCESS: u32 = 0;
    pub const LOC_PROT_ERR: u32 = 4;
    pub const WR_FLUSH_ERR: u32 = 5;
    pub const REM_INV_REQ_ERR: u32 = 9;
    pub const REM_ACCESS_ERR: u32 = 10;
    pub const REM_OP_ERR: u32 = 11;
    pub const RETRY_EXC_ERR: u32 = 12;
    pub const RNR_RETRY_EXC_ERR: u32 = 13;
}

/// `enum ibv_wc_opcode`
pub mod wc_opcode {
    pub const RECV_RDMA_WITH_IMM: u32 = (1 << 7) + 1;
}

/// `enum ibv_wc_flags`
pub mod wc_flags {
    pub const WITH_IMM: u32 = 1 << 1;
}

/// `enum ibv_event_type`
pub mod event {
    pub const CQ_ERR: u32 = 0;
    pub const QP_FATAL: u32 = 1;
    pub const QP_REQ_ERR: u32 = 2;
    pub const QP_ACCESS_ERR: u32 = 3;
    pub const DEVICE_FATAL: u32 = 8;
    pub const PORT_ACTIVE: u32 = 9;
    pub const PORT_ERR: u32 = 10;
    pub const LID_CHANGE: u32 = 11;
    pub const SRQ_ERR: u32 = 14;
    pub const GID_CHANGE: u32 = 18;
}

/// `enum ibv_gid_type`
pub mod gid_type {
    pub const IB: u32 = 0;
    pub const ROCE_V1: u32 = 1;
    pub const ROCE_V2: u32 = 2;
}

/// `enum ibv_fork_status`
pub mod fork {
    pub const DISABLED: i32 = 0;
}
