//! The same structures in `ibverbs-sys`, which bindgen has made of the header.

use crate::{Layout, layout};

/// Fields of `ibv_wc` that are private there.
pub const PRIVATE: [&str; 5] = ["wr_id", "status", "opcode", "vendor_err", "byte_len"];

/// Layouts of all structures that our definitions have, by the same names.
pub fn layouts() -> Vec<Layout> {
    vec![
        layout!(whole ibverbs_sys::ibv_gid as "ibv_gid" {
            raw,
        }),
        layout!(whole ibverbs_sys::ibv_gid_entry as "ibv_gid_entry" {
            gid, gid_index, port_num, gid_type, ndev_ifindex,
        }),
        layout!(whole ibverbs_sys::ibv_device as "ibv_device" {
            _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path,
        }),
        layout!(whole ibverbs_sys::ibv_context_ops as "ibv_context_ops" {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr,
            _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq,
            req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq,
            _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp,
            _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv,
            _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
            _compat_async_event,
        }),
        layout!(whole ibverbs_sys::ibv_context as "ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat, ops.poll_cq,
            ops.req_notify_cq, ops.post_srq_recv, ops.post_send, ops.post_recv,
        }),
        layout!(whole ibverbs_sys::ibv_device_attr as "ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }),
        layout!(whole ibverbs_sys::ibv_port_attr as "ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }),
        layout!(whole ibverbs_sys::ibv_async_event as "ibv_async_event" {
            element, event_type, element.cq, element.qp, element.srq, element.wq, element.port_num,
        }),
        // The crate declares this structure by hand, most of it private.
        layout!(whole ibverbs_sys::ibv_wc as "ibv_wc" {
            imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }),
        layout!(whole ibverbs_sys::ibv_pd as "ibv_pd" {
            context, handle,
        }),
        layout!(whole ibverbs_sys::ibv_mr as "ibv_mr" {
            context, pd, addr, length, handle, lkey, rkey,
        }),
        layout!(whole ibverbs_sys::ibv_global_route as "ibv_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class,
        }),
        layout!(whole ibverbs_sys::ibv_ah_attr as "ibv_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
        }),
        layout!(whole ibverbs_sys::ibv_srq_attr as "ibv_srq_attr" {
            max_wr, max_sge, srq_limit,
        }),
        layout!(whole ibverbs_sys::ibv_srq_init_attr as "ibv_srq_init_attr" {
            srq_context, attr,
        }),
        layout!(whole ibverbs_sys::ibv_qp_cap as "ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }),
        layout!(whole ibverbs_sys::ibv_qp_init_attr as "ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        }),
        layout!(whole ibverbs_sys::ibv_qp_attr as "ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit, cap.max_inline_data, ah_attr.grh.dgid,
            ah_attr.grh.sgid_index, ah_attr.is_global, ah_attr.port_num,
        }),
        layout!(whole ibverbs_sys::ibv_sge as "ibv_sge" {
            addr, length, lkey,
        }),
        layout!(whole ibverbs_sys::ibv_mw_bind_info as "ibv_mw_bind_info" {
            mr, addr, length, mw_access_flags,
        }),
        layout!(whole ibverbs_sys::ibv_send_wr as "ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1.imm_data = "imm_data", wr,
            qp_type.xrc.remote_srqn, __bindgen_anon_2.bind_mw = "bind_mw", wr.rdma.remote_addr,
            wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey,
            wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey, __bindgen_anon_2.bind_mw.mw = "bind_mw.mw",
            __bindgen_anon_2.bind_mw.rkey = "bind_mw.rkey",
            __bindgen_anon_2.bind_mw.bind_info = "bind_mw.bind_info",
            __bindgen_anon_2.bind_mw.bind_info.mr = "bind_mw.bind_info.mr",
            __bindgen_anon_2.bind_mw.bind_info.addr = "bind_mw.bind_info.addr",
            __bindgen_anon_2.bind_mw.bind_info.length = "bind_mw.bind_info.length",
            __bindgen_anon_2.bind_mw.bind_info.mw_access_flags = "bind_mw.bind_info.mw_access_flags",
        }),
        layout!(whole ibverbs_sys::ibv_recv_wr as "ibv_recv_wr" {
            wr_id, next, sg_list, num_sge,
        }),
        layout!(whole ibverbs_sys::ibv_srq as "ibv_srq" {
            context, srq_context, pd, handle, mutex, cond, events_completed,
        }),
        layout!(whole ibverbs_sys::ibv_qp as "ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }),
        layout!(whole ibverbs_sys::ibv_cq as "ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed,
        }),
        layout!(whole ibverbs_sys::ibv_comp_channel as "ibv_comp_channel" {
            context, fd, refcnt,
        }),
    ]
}
