/* A ping-pong over one VI: with its work queues, then with a completion queue.
 *
 *   vip_pingpong server              on one host
 *   vip_pingpong client HOST         on another, or the same
 *   deckrun -n 2 -- vip_pingpong     both, started by a launcher
 */
#include <time.h>

#include <sys/time.h>

#include "vip_common.h"

enum { TURNS = 1000, SIZE = 4096 };

typedef struct {
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq; /* NULL: work queues */
    block memory;
    VIP_DESCRIPTOR *send, *receive;
    unsigned char *out, *in;
} end;

static VIP_DESCRIPTOR *completed(end *e, int receives) {
    VIP_DESCRIPTOR *done = NULL;
    if (e->cq != NULL) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN is_receive;
        CHECK(VipCQWait(e->cq, TIMEOUT, &vi, &is_receive));
        EXPECT(vi == e->vi && is_receive == receives);
        CHECK(receives ? VipRecvDone(vi, &done) : VipSendDone(vi, &done));
    } else {
        CHECK(receives ? VipRecvWait(e->vi, TIMEOUT, &done) : VipSendWait(e->vi, TIMEOUT, &done));
    }
    EXPECT((done->CS.Status & VIP_STATUS_DONE) != 0 && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    return done;
}

static void post_receive(end *e) {
    one_segment(e->receive, e->in, SIZE, e->memory.handle);
    CHECK(VipPostRecv(e->vi, e->receive, e->memory.handle));
}

static void send(end *e, unsigned turn, VIP_UINT32 length) {
    memset(e->out, (int)(turn & 0xff), length);
    one_segment(e->send, e->out, length, e->memory.handle);
    e->send->CS.Control |= VIP_CONTROL_IMMEDIATE;
    e->send->CS.ImmediateData = turn;
    CHECK(VipPostSend(e->vi, e->send, e->memory.handle));
    EXPECT(completed(e, VIP_FALSE) == e->send);
    EXPECT(e->send->CS.Length == length);
}

static void receive(end *e, unsigned turn, VIP_UINT32 length) {
    EXPECT(completed(e, VIP_TRUE) == e->receive);
    EXPECT((e->receive->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE);
    EXPECT((e->receive->CS.Status & VIP_STATUS_IMMEDIATE) != 0 && e->receive->CS.ImmediateData == turn);
    EXPECT(e->receive->CS.Length == length);
    for (VIP_UINT32 i = 0; i < length; i++) EXPECT(e->in[i] == (turn & 0xff));
    post_receive(e);
}

static void play(end *e, int serves, VIP_UINT32 length) {
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (serves) {
            receive(e, turn, length);
            send(e, turn, length);
        } else {
            send(e, turn, length);
            receive(e, turn, length);
        }
    }
}

static void run(VIP_NIC_HANDLE nic, int serves, const char *host, int with_cq) {
    end e;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_ATTRIBUTES attributes;
    memset(&e, 0, sizeof e);
    CHECK(VipCreatePtag(nic, &ptag));
    e.memory = make_memory(nic, 2 * sizeof(VIP_DESCRIPTOR) + 2 * SIZE, ptag, VIP_FALSE, VIP_FALSE);
    e.send = (VIP_DESCRIPTOR *)(void *)e.memory.bytes;
    e.receive = e.send + 1;
    e.out = (unsigned char *)(e.receive + 1);
    e.in = e.out + SIZE;
    if (with_cq) CHECK(VipCreateCQ(nic, 64, &e.cq));
    attributes = usual_attributes(ptag, VIP_FALSE);
    CHECK(VipCreateVi(nic, &attributes, e.cq, e.cq, &e.vi));
    post_receive(&e); /* before the peer can send: a message without a descriptor breaks the connection */
    connect_pair(nic, e.vi, serves, host, with_cq ? "pingpong cq" : "pingpong");

    static const VIP_UINT32 lengths[] = {0, 8, 40, 41, SIZE};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct timeval from, to;
        gettimeofday(&from, NULL);
        play(&e, serves, lengths[i]);
        gettimeofday(&to, NULL);
        if (!serves) {
            double us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_usec - from.tv_usec);
            printf("%s, %u bytes: %.2f us one way\n", with_cq ? "completion queue" : "work queues",
                   (unsigned)lengths[i], us / (2 * TURNS));
        }
    }

    /* Who leaves first flushes the other's last receive. */
    VIP_DESCRIPTOR *left;
    CHECK(VipDisconnect(e.vi));
    CHECK(VipRecvDone(e.vi, &left));
    EXPECT(left == e.receive && (left->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0);
    CHECK(VipDestroyVi(e.vi));
    if (with_cq) CHECK(VipDestroyCQ(e.cq));
    free_memory(nic, &e.memory);
    CHECK(VipDestroyPtag(nic, ptag));
}

int main(int argc, char **argv) {
    VIP_NIC_HANDLE nic;
    const char *host;
    int serves = role(argc, argv, &host);
    CHECK(VipOpenNic("VINIC0", &nic));
    run(nic, serves, host, 0);
    run(nic, serves, host, 1);
    CHECK(VipCloseNic(nic));
    return 0;
}
