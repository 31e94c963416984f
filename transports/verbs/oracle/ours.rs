//! Structures and numbers of the transport. A new structure gets its lines here.

use crate::ffi::attributes::*;
use crate::ffi::cm::*;
use crate::ffi::objects::*;
use crate::ffi::work::*;
use crate::{Layout, constants_of, layout};

/// Layouts of all structures that the transport takes from the header.
pub fn layouts() -> Vec<Layout> {
    vec![
        layout!(whole Gid as "ibv_gid" {
            raw,
        }),
        layout!(whole GidEntry as "ibv_gid_entry" {
            gid, gid_index, port_num, gid_type, ndev_ifindex,
        }),
        layout!(whole DeviceAttr as "ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }),
        // The structure grew by `active_speed_ex` in rdma-core 55; the exported `ibv_query_port` still fills only
        // the earlier fields.
        layout!(front PortAttr as "ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }),
        layout!(whole GlobalRoute as "ibv_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class,
        }),
        layout!(whole AhAttr as "ibv_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
        }),
        layout!(whole QpCap as "ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }),
        layout!(whole QpInitAttr as "ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        }),
        layout!(whole QpAttr as "ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit, cap.max_inline_data, ah_attr.grh.dgid,
            ah_attr.grh.sgid_index, ah_attr.is_global, ah_attr.port_num,
        }),
        layout!(whole Device as "ibv_device" {
            ops = "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path,
        }),
        layout!(whole ContextOps as "ibv_context_ops" {
            query_device = "_compat_query_device", query_port = "_compat_query_port",
            alloc_pd = "_compat_alloc_pd", dealloc_pd = "_compat_dealloc_pd", reg_mr = "_compat_reg_mr",
            rereg_mr = "_compat_rereg_mr", dereg_mr = "_compat_dereg_mr", alloc_mw, bind_mw, dealloc_mw,
            create_cq = "_compat_create_cq", poll_cq, req_notify_cq, cq_event = "_compat_cq_event",
            resize_cq = "_compat_resize_cq", destroy_cq = "_compat_destroy_cq",
            create_srq = "_compat_create_srq", modify_srq = "_compat_modify_srq",
            query_srq = "_compat_query_srq", destroy_srq = "_compat_destroy_srq", post_srq_recv,
            create_qp = "_compat_create_qp", query_qp = "_compat_query_qp", modify_qp = "_compat_modify_qp",
            destroy_qp = "_compat_destroy_qp", post_send, post_recv, create_ah = "_compat_create_ah",
            destroy_ah = "_compat_destroy_ah", attach_mcast = "_compat_attach_mcast",
            detach_mcast = "_compat_detach_mcast", async_event = "_compat_async_event",
        }),
        layout!(front RawContext as "ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, ops.poll_cq, ops.req_notify_cq,
            ops.post_srq_recv, ops.post_send, ops.post_recv,
        }),
        layout!(whole RawPd as "ibv_pd" {
            context, handle,
        }),
        layout!(whole RawMr as "ibv_mr" {
            context, pd, addr, length, handle, lkey, rkey,
        }),
        layout!(whole CompChannel as "ibv_comp_channel" {
            context, fd, refcnt,
        }),
        layout!(front RawCq as "ibv_cq" {
            context, channel, cq_context, handle, cqe,
        }),
        layout!(front RawSrq as "ibv_srq" {
            context, srq_context, pd, handle,
        }),
        layout!(whole SrqAttr as "ibv_srq_attr" {
            max_wr, max_sge, srq_limit,
        }),
        layout!(whole SrqInitAttr as "ibv_srq_init_attr" {
            srq_context, attr, attr.max_wr, attr.max_sge, attr.srq_limit,
        }),
        layout!(front RawQp as "ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
        }),
        layout!(whole AsyncEvent as "ibv_async_event" {
            element, event_type, element.cq, element.qp, element.port_num,
        }),
        layout!(whole Sge as "ibv_sge" {
            addr, length, lkey,
        }),
        layout!(whole SendWr as "ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            xrc_remote_srqn = "qp_type.xrc.remote_srqn", bind_mw, wr.rdma.remote_addr, wr.rdma.rkey,
            wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, bind_mw.mw,
            bind_mw.rkey, bind_mw.bind_info_mr = "bind_mw.bind_info.mr",
            bind_mw.bind_info_addr = "bind_mw.bind_info.addr",
            bind_mw.bind_info_length = "bind_mw.bind_info.length",
            bind_mw.bind_info_mw_access_flags = "bind_mw.bind_info.mw_access_flags",
        }),
        layout!(whole RecvWr as "ibv_recv_wr" {
            wr_id, next, sg_list, num_sge,
        }),
        layout!(whole Wc as "ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits,
        }),
        layout!(whole EventChannel as "rdma_event_channel" {
            fd,
        }),
        layout!(whole IbAddr as "rdma_ib_addr" {
            sgid, dgid, pkey,
        }),
        layout!(whole Addr as "rdma_addr" {
            src_storage, dst_storage, ibaddr = "addr.ibaddr",
        }),
        layout!(whole Route as "rdma_route" {
            addr, path_rec, num_paths,
        }),
        layout!(whole CmId as "rdma_cm_id" {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type,
        }),
        layout!(whole ConnParam as "rdma_conn_param" {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }),
        layout!(whole UdParam as "rdma_ud_param" {
            private_data, private_data_len, ah_attr, qp_num, qkey,
        }),
        layout!(whole CmEvent as "rdma_cm_event" {
            id, listen_id, event, status, param, param.conn, param.ud,
        }),
    ]
}

/// The header's names for the modules of `ffi/codes.rs` and `ffi/cm.rs`.
const PREFIXES: [(&str, &str); 17] = [
    ("transport", "IBV_TRANSPORT"),
    ("port_state", "IBV_PORT"),
    ("link_layer", "IBV_LINK_LAYER"),
    ("qp_type", "IBV_QPT"),
    ("qp_state", "IBV_QPS"),
    ("attr_mask", "IBV_QP"),
    ("access", "IBV_ACCESS"),
    ("opcode", "IBV_WR"),
    ("send_flags", "IBV_SEND"),
    ("status", "IBV_WC"),
    ("wc_opcode", "IBV_WC"),
    ("wc_flags", "IBV_WC"),
    ("event", "IBV_EVENT"),
    ("gid_type", "IBV_GID_TYPE"),
    ("fork", "IBV_FORK"),
    ("port_space", "RDMA_PS"),
    ("cm_event", "RDMA_CM_EVENT"),
];

/// Constants of the header, and the transport's expressions for them.
///
/// # Panics
/// For a module without a line in the table above.
pub fn constants() -> Vec<(String, String)> {
    fn prefix(module: &str) -> Option<&str> {
        let known = PREFIXES.iter().find(|(name, _)| *name == module);
        Some(known.unwrap_or_else(|| panic!("{module}: which constants are these?")).1)
    }
    let texts: [&str; 2] = [include_str!("../ffi/codes.rs"), include_str!("../ffi/cm.rs")];
    texts.into_iter().flat_map(|text| constants_of(text, prefix)).collect()
}
