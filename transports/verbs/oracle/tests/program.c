/* Two queue pairs of one process: a send, an RDMA write, an RDMA write that is refused. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(what)                                                      \
	do {                                                           \
		if (!(what)) {                                         \
			fprintf(stderr, "line %d: " #what "\n", __LINE__); \
			exit(1);                                       \
		}                                                      \
	} while (0)

static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int polled;
	do
		polled = ibv_poll_cq(cq, 1, &wc);
	while (polled == 0);
	TRY(polled == 1);
	return wc;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	TRY(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = 3, .hop_limit = 1 } },
	};
	TRY(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	TRY(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	TRY(list && count == 1);
	struct ibv_context *context = ibv_open_device(list[0]);
	TRY(context);
	printf("device %s", ibv_get_device_name(list[0]));
	ibv_free_device_list(list);
	struct ibv_port_attr port;
	TRY(ibv_query_port(context, 1, &port) == 0 && port.port_cap_flags2 == 0);
	printf(", port %s", ibv_port_state_str(port.state));
	struct ibv_gid_entry entry;
	TRY(ibv_query_gid_ex(context, 1, 3, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq[2] = { ibv_create_cq(context, 8, NULL, channel, 0), ibv_create_cq(context, 8, NULL, NULL, 0) };
	TRY(pd && channel && cq[0] && cq[1]);
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq[i], .recv_cq = cq[i], .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
			.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		TRY(qp[i] = ibv_create_qp(pd, &init));
	}
	connect_to(qp[0], qp[1], &entry.gid);
	connect_to(qp[1], qp[0], &entry.gid);

	static char from[16] = "hello", to[16], target[16];
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_mr *mr[3] = { ibv_reg_mr(pd, from, 16, 0), ibv_reg_mr(pd, to, 16, IBV_ACCESS_LOCAL_WRITE),
				 ibv_reg_mr(pd, target, 16, access) };
	TRY(mr[0] && mr[1] && mr[2]);

	struct ibv_sge place = { (uintptr_t)to, 16, mr[1]->lkey }, piece = { (uintptr_t)from, 6, mr[0]->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &place, .num_sge = 1 }, *bad_recv;
	TRY(ibv_req_notify_cq(cq[0], 0) == 0 && ibv_post_recv(qp[1], &recv, &bad_recv) == 0);
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	TRY(ibv_post_send(qp[0], &send, &bad) == 0);
	struct ibv_cq *told;
	void *none;
	TRY(ibv_get_cq_event(channel, &told, &none) == 0 && told == cq[0]);
	ibv_ack_cq_events(told, 1);
	TRY(wait_for(cq[0]).status == IBV_WC_SUCCESS && wait_for(cq[1]).byte_len == 6);
	printf(", sent %s", to);

	struct ibv_send_wr write = send;
	write.opcode = IBV_WR_RDMA_WRITE;
	write.wr.rdma.remote_addr = (uintptr_t)target;
	write.wr.rdma.rkey = mr[2]->rkey;
	TRY(ibv_post_send(qp[0], &write, &bad) == 0 && wait_for(cq[0]).opcode == IBV_WC_RDMA_WRITE);
	printf(", wrote %s", target);
	write.wr.rdma.remote_addr += 11;
	TRY(ibv_post_send(qp[0], &write, &bad) == 0);
	printf(", error %s\n", ibv_wc_status_str(wait_for(cq[0]).status));

	struct ibv_async_event event;
	TRY(ibv_get_async_event(context, &event) == 0);
	TRY(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == qp[1]);
	ibv_ack_async_event(&event);
	for (int i = 0; i < 2; i++)
		TRY(ibv_destroy_qp(qp[i]) == 0 && ibv_destroy_cq(cq[i]) == 0);
	for (int i = 0; i < 3; i++)
		TRY(ibv_dereg_mr(mr[i]) == 0);
	TRY(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
