//! Structures and constants of the library's stand-in.

use crate::{Layout, constants_of, layout};
use udeck_mock_verbs::abi::*;

/// Layouts of all structures that a program uses.
pub fn layouts() -> Vec<Layout> {
    vec![
        layout!(whole ibv_gid as "ibv_gid" {
            raw,
        }),
        layout!(whole ibv_gid_entry as "ibv_gid_entry" {
            gid, gid_index, port_num, gid_type, ndev_ifindex,
        }),
        layout!(whole ibv_device as "ibv_device" {
            _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path,
        }),
        layout!(whole ibv_context_ops as "ibv_context_ops" {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd, _compat_reg_mr,
            _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw, _compat_create_cq, poll_cq,
            req_notify_cq, _compat_cq_event, _compat_resize_cq, _compat_destroy_cq, _compat_create_srq,
            _compat_modify_srq, _compat_query_srq, _compat_destroy_srq, post_srq_recv, _compat_create_qp,
            _compat_query_qp, _compat_modify_qp, _compat_destroy_qp, post_send, post_recv,
            _compat_create_ah, _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast,
            _compat_async_event,
        }),
        layout!(whole ibv_context as "ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat, ops.poll_cq,
            ops.req_notify_cq, ops.post_srq_recv, ops.post_send, ops.post_recv,
        }),
        layout!(whole ibv_device_attr as "ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
            hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
            max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
            max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
            max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }),
        // The structure grew by `active_speed_ex` in rdma-core 55; the exported `ibv_query_port` still fills only
        // the earlier fields.
        layout!(front ibv_port_attr as "ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }),
        layout!(whole ibv_async_event as "ibv_async_event" {
            element, event_type, element.cq, element.qp, element.srq, element.wq, element.port_num,
        }),
        layout!(whole ibv_wc as "ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
            slid, sl, dlid_path_bits,
        }),
        layout!(whole ibv_pd as "ibv_pd" {
            context, handle,
        }),
        layout!(whole ibv_mr as "ibv_mr" {
            context, pd, addr, length, handle, lkey, rkey,
        }),
        layout!(whole ibv_global_route as "ibv_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class,
        }),
        layout!(whole ibv_ah_attr as "ibv_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
        }),
        layout!(whole ibv_srq_attr as "ibv_srq_attr" {
            max_wr, max_sge, srq_limit,
        }),
        layout!(whole ibv_srq_init_attr as "ibv_srq_init_attr" {
            srq_context, attr,
        }),
        layout!(whole ibv_qp_cap as "ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }),
        layout!(whole ibv_qp_init_attr as "ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
        }),
        layout!(whole ibv_qp_attr as "ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
            sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
            rnr_retry, alt_port_num, alt_timeout, rate_limit, cap.max_inline_data, ah_attr.grh.dgid,
            ah_attr.grh.sgid_index, ah_attr.is_global, ah_attr.port_num,
        }),
        layout!(whole ibv_sge as "ibv_sge" {
            addr, length, lkey,
        }),
        layout!(whole ibv_mw_bind_info as "ibv_mw_bind_info" {
            mr, addr, length, mw_access_flags,
        }),
        layout!(whole ibv_send_wr as "ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            remote_srqn = "qp_type.xrc.remote_srqn", bind_mw, wr.rdma.remote_addr, wr.rdma.rkey,
            wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah,
            wr.ud.remote_qpn, wr.ud.remote_qkey, bind_mw.mw, bind_mw.rkey, bind_mw.bind_info,
            bind_mw.bind_info.mr, bind_mw.bind_info.addr, bind_mw.bind_info.length,
            bind_mw.bind_info.mw_access_flags,
        }),
        layout!(whole ibv_recv_wr as "ibv_recv_wr" {
            wr_id, next, sg_list, num_sge,
        }),
        layout!(whole ibv_srq as "ibv_srq" {
            context, srq_context, pd, handle, mutex, cond, events_completed,
        }),
        layout!(whole ibv_qp as "ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }),
        layout!(whole ibv_cq as "ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed,
        }),
        layout!(whole ibv_comp_channel as "ibv_comp_channel" {
            context, fd, refcnt,
        }),
        layout!(whole rdma_event_channel as "rdma_event_channel" {
            fd,
        }),
        layout!(whole rdma_ib_addr as "rdma_ib_addr" {
            sgid, dgid, pkey,
        }),
        layout!(whole rdma_addr as "rdma_addr" {
            src_storage, dst_storage, ibaddr = "addr.ibaddr",
        }),
        layout!(whole rdma_route as "rdma_route" {
            addr, path_rec, num_paths,
        }),
        layout!(whole rdma_cm_id as "rdma_cm_id" {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type,
        }),
        layout!(whole rdma_conn_param as "rdma_conn_param" {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }),
        layout!(whole rdma_ud_param as "rdma_ud_param" {
            private_data, private_data_len, ah_attr, qp_num, qkey,
        }),
        layout!(whole rdma_cm_event as "rdma_cm_event" {
            id, listen_id, event, status, param, param.conn, param.ud,
        }),
    ]
}

/// Constants of the header, and the stand-in's expressions for them.
pub fn constants() -> Vec<(String, String)> {
    let texts: [&str; 2] =
        [include_str!("../../../tests/mock-verbs/abi/constants.rs"), include_str!("../../../tests/mock-verbs/abi/cm.rs")];
    texts.into_iter().flat_map(|text| constants_of(text, |_| None)).collect()
}
