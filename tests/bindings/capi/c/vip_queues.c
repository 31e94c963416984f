/* Ends of descriptors: order, errors, flushes, completion queues, handlers, RDMA. */
#include "vip_test.h"

static VIP_UINT16 levels_of(VIP_NIC_HANDLE nic) {
    VIP_NIC_ATTRIBUTES a;
    OK(VipQueryNic(nic, &a));
    return a.ReliabilityLevelSupport;
}

/* Messages of several segments and lengths arrive whole and in order, with their immediate data. */
static void messages(VIP_NIC_HANDLE nic, VIP_RELIABILITY_LEVEL level) {
    static const VIP_UINT32 lengths[] = {0, 1, 24, 39, 40, 41, 100, 3000};
    pair p = connected(nic, level, 0, NULL);
    for (int i = 0; i < 8; i++) {
        VIP_DESCRIPTOR *r = descriptor(&p.b, i), *s = descriptor(&p.a, i);
        VIP_UINT32 first = lengths[i] / 3, rest = lengths[i] - first;
        one_segment(r, data(&p.b, i), 7, p.b.memory.handle);
        r->CS.SegCount = 2;
        r->DS[1].Local.Data.Address = data(&p.b, i) + 7;
        r->DS[1].Local.Handle = p.b.memory.handle;
        r->DS[1].Local.Length = 3000 - 7;
        OK(VipPostRecv(p.b.vi, r, p.b.memory.handle));
        for (VIP_UINT32 k = 0; k < lengths[i]; k++) data(&p.a, i)[k] = (unsigned char)(k + (VIP_UINT32)i);
        one_segment(s, data(&p.a, i), first, p.a.memory.handle);
        s->CS.SegCount = 2;
        s->CS.Control |= VIP_CONTROL_IMMEDIATE;
        s->CS.ImmediateData = 0xabc0U + (VIP_UINT32)i;
        s->DS[1].Local.Data.Address = data(&p.a, i) + first;
        s->DS[1].Local.Handle = p.a.memory.handle;
        s->DS[1].Local.Length = rest;
    }
    for (int i = 0; i < 8; i++) OK(VipPostSend(p.a.vi, descriptor(&p.a, i), p.a.memory.handle));
    for (int i = 0; i < 8; i++) {
        VIP_DESCRIPTOR *r = descriptor(&p.b, i);
        HOLDS(received(&p.b, i, 0) == VIP_STATUS_OP_RECEIVE);
        HOLDS((r->CS.Status & VIP_STATUS_IMMEDIATE) != 0 && r->CS.ImmediateData == 0xabc0U + (VIP_UINT32)i);
        HOLDS(r->CS.Length == lengths[i]);
        for (VIP_UINT32 k = 0; k < lengths[i]; k++) HOLDS(data(&p.b, i)[k] == (unsigned char)(k + (VIP_UINT32)i));
        HOLDS(sent(&p.a, i, 0) == VIP_STATUS_OP_SEND);
        HOLDS(descriptor(&p.a, i)->CS.Length == lengths[i]);
    }
    end_pair(&p);
}

/* More messages than any ring holds: a post is never refused, and all arrive in order. */
static void floods(VIP_NIC_HANDLE nic, VIP_RELIABILITY_LEVEL level, VIP_UINT32 length) {
    enum { COUNT = 2000 };
    pair p = connected(nic, level, 0, NULL);
    block many = make_memory(nic, 2 * COUNT * sizeof(VIP_DESCRIPTOR), p.ptag, 0, 0);
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)many.bytes, *done;
    for (int i = 0; i < COUNT; i++) {
        one_segment(d + i, data(&p.b, 0), length, p.b.memory.handle);
        OK(VipPostRecv(p.b.vi, d + i, many.handle));
    }
    for (int i = 0; i < COUNT; i++) {
        one_segment(d + COUNT + i, data(&p.a, 0), length, p.a.memory.handle);
        d[COUNT + i].CS.Control |= VIP_CONTROL_IMMEDIATE;
        d[COUNT + i].CS.ImmediateData = (VIP_UINT32)i;
        OK(VipPostSend(p.a.vi, d + COUNT + i, many.handle));
    }
    for (int i = 0; i < COUNT; i++) {
        OK(VipRecvWait(p.b.vi, TIMEOUT, &done));
        HOLDS(done == d + i && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0 && done->CS.ImmediateData == (VIP_UINT32)i);
    }
    for (int i = 0; i < COUNT; i++) {
        OK(VipSendWait(p.a.vi, TIMEOUT, &done));
        HOLDS(done == d + COUNT + i && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    }
    free_memory(nic, &many);
    end_pair(&p);
}

/* A wrong send ends with its own error, and ends a reliable connection; descriptors behind it are flushed. */
static void wrong_sends(VIP_NIC_HANDLE nic, told *t) {
    static const VIP_UINT32 errors[] = {VIP_STATUS_FORMAT_ERROR, VIP_STATUS_FORMAT_ERROR, VIP_STATUS_PROTECTION_ERROR,
                                        VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_LENGTH_ERROR};
    for (int wrong = 0; wrong < 5; wrong++) {
        pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
        VIP_DESCRIPTOR *d = descriptor(&p.a, 0);
        post_receive(&p.b, 0, 8);
        one_segment(d, data(&p.a, 0), 8, p.a.memory.handle);
        switch (wrong) {
        case 0: d->CS.Control = 3; break;                                              /* no operation */
        case 1: d->CS.SegCount = 1000; break;
        case 2: d->DS[0].Local.Handle ^= 0x10000; break;                               /* no such memory */
        case 3: d->DS[0].Local.Data.Address = p.a.memory.bytes + SLOTS * SLOT - 4; break; /* beyond its end */
        default: d->DS[0].Local.Length = (1 << 20) + 1; break;                         /* more than MaxTransferSize */
        }
        OK(VipPostSend(p.a.vi, d, p.a.memory.handle));
        sent(&p.a, 0, errors[wrong]);
        HOLDS(state_of(p.a.vi) == VIP_STATE_ERROR);
        was_told(t, p.a.vi, VIP_ERROR_POST_DESC);
        post_send(&p.a, 1, 8);
        sent(&p.a, 1, VIP_STATUS_DESC_FLUSHED_ERROR);
        post_receive(&p.a, 2, 8);
        received(&p.a, 2, VIP_STATUS_DESC_FLUSHED_ERROR);
        received(&p.b, 0, VIP_STATUS_DESC_FLUSHED_ERROR);
        was_told(t, p.b.vi, VIP_ERROR_CONN_LOST);
        end_pair(&p);
    }
}

/* The peer sends as soon as it is connected, before this side has learned of the connection and can post. It sends a message, or a
 * write with immediate data, and then perhaps ends the connection. */
static void early(VIP_NIC_HANDLE nic, VIP_RELIABILITY_LEVEL level, int kind) {
    pair p;
    net_address of_a, of_b;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CQ_HANDLE cq = VIP_NULL;
    int with_queue = kind & 1, rdma = kind & 2, ends = kind & 4;
    p.nic = nic;
    OK(VipCreatePtag(nic, &p.ptag));
    if (with_queue) OK(VipCreateCQ(nic, 64, &cq));
    make_end(&p, &p.a, level, rdma, NULL);
    make_end(&p, &p.b, level, rdma, cq);
    own_address(nic, &of_a, "early a");
    own_address(nic, &of_b, "early b");
    OK(VipConnectPeerRequest(p.a.vi, &of_a.address, &of_b.address, TIMEOUT));
    OK(VipConnectPeerRequest(p.b.vi, &of_b.address, &of_a.address, TIMEOUT));
    OK(VipConnectPeerWait(p.a.vi, &theirs));
    memcpy(data(&p.a, 1), "early...", 8);
    if (rdma) {
        post_rdma(&p.a, 1, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, data(&p.b, 0), p.b.memory.handle, 8);
    } else {
        post_send(&p.a, 1, 8);
    }
    if (level != VIP_SERVICE_RELIABLE_RECEPTION) sent(&p.a, 1, 0);
    post_send(&p.a, 2, 8);
    if (ends && level != VIP_SERVICE_RELIABLE_RECEPTION) OK(VipDisconnect(p.a.vi));
    OK(VipConnectPeerWait(p.b.vi, &theirs));
    HOLDS(state_of(p.b.vi) == VIP_STATE_CONNECTED);
    post_receive(&p.b, 0, 8);
    post_receive(&p.b, 3, 8);
    if (with_queue) {
        for (int i = 0; i < 2; i++) {
            VIP_VI_HANDLE of;
            VIP_BOOLEAN receives;
            OK(VipCQWait(cq, TIMEOUT, &of, &receives));
            HOLDS(of == p.b.vi && receives);
        }
    }
    GIVES(rdma ? VIP_STATUS_OP_REMOTE_RDMA_WRITE : VIP_STATUS_OP_RECEIVE, received(&p.b, 0, 0));
    HOLDS(memcmp(data(&p.b, 0), "early...", 8) == 0);
    received(&p.b, 3, 0);
    end_pair(&p);
    if (with_queue) OK(VipDestroyCQ(cq));
}

/* Messages without a descriptor delay neither the answer to a read nor the end of a send. */
static void answers_pass(VIP_NIC_HANDLE nic, VIP_RELIABILITY_LEVEL level) {
    enum { MESSAGES = 10, READ = 20, SEND = 21 };
    pair p = connected(nic, level, 1, NULL);
    post_receive(&p.b, 0, 8);
    for (int i = 1; i <= MESSAGES; i++) post_send(&p.b, i, 8);
    memcpy(data(&p.b, READ), "answer", 7);
    post_rdma(&p.a, READ, VIP_CONTROL_OP_RDMAREAD, data(&p.b, READ), p.b.memory.handle, 7);
    post_send(&p.a, SEND, 8);
    HOLDS(sent(&p.a, READ, 0) == VIP_STATUS_OP_RDMA_READ);
    HOLDS(memcmp(data(&p.a, READ), "answer", 7) == 0);
    HOLDS(sent(&p.a, SEND, 0) == VIP_STATUS_OP_SEND);
    for (int i = 1; i <= MESSAGES; i++) post_receive(&p.a, i, 8);
    for (int i = 1; i <= MESSAGES; i++) received(&p.a, i, 0);
    received(&p.b, 0, 0);
    end_pair(&p);
}

/* A message that finds no descriptor, or none that can take it. */
static void no_place(VIP_NIC_HANDLE nic, told *t, VIP_RELIABILITY_LEVEL level) {
    for (int wrong = 0; wrong < 3; wrong++) {
        pair p = connected(nic, level, 0, NULL);
        VIP_DESCRIPTOR *none;
        if (wrong == 1) post_receive(&p.b, 0, 7);
        if (wrong == 2) {
            /* The memory is freed while it is posted. */
            block gone = make_memory(nic, SLOT, p.ptag, 0, 0);
            one_segment(descriptor(&p.b, 0), gone.bytes, 8, gone.handle);
            OK(VipPostRecv(p.b.vi, descriptor(&p.b, 0), p.b.memory.handle));
            free_memory(nic, &gone);
        }
        post_send(&p.a, 1, 8);
        if (wrong == 0) GIVES(VIP_TIMEOUT, VipRecvWait(p.b.vi, 200, &none));
        else received(&p.b, 0, wrong == 1 ? VIP_STATUS_LENGTH_ERROR : VIP_STATUS_PROTECTION_ERROR);
        if (level == VIP_SERVICE_UNRELIABLE) {
            sent(&p.a, 1, 0);
            HOLDS(state_of(p.b.vi) == VIP_STATE_CONNECTED);
        } else {
            sent(&p.a, 1, level == VIP_SERVICE_RELIABLE_RECEPTION ? VIP_STATUS_REMOTE_DESC_ERROR : 0);
            HOLDS(state_of(p.b.vi) == VIP_STATE_ERROR);
            was_told(t, p.b.vi, VIP_ERROR_RECVQ_EMPTY);
            GIVES(VIP_TIMEOUT, VipRecvWait(p.a.vi, 100, &none)); /* The wait takes the peer's messages. */
            was_told(t, p.a.vi, VIP_ERROR_CONN_LOST);
        }
        end_pair(&p);
    }
}

static void rdma(VIP_NIC_HANDLE nic, told *t, VIP_RELIABILITY_LEVEL level) {
    pair p = connected(nic, level, 1, NULL);
    /* When the message behind the write has arrived, the bytes of the write are in place. */
    for (int round = 0; round < 3; round++) {
        VIP_UINT32 length = round == 0 ? 16 : round == 1 ? 25 : 3000;
        post_receive(&p.b, 0, 8);
        memset(data(&p.b, 5), 0, 3000);
        memset(data(&p.a, 1), 0x40 + round, length);
        post_rdma(&p.a, 1, VIP_CONTROL_OP_RDMAWRITE, data(&p.b, 5), p.b.memory.handle, length);
        post_send(&p.a, 2, 8);
        received(&p.b, 0, 0);
        for (VIP_UINT32 i = 0; i < length; i++) HOLDS(data(&p.b, 5)[i] == 0x40 + round);
        HOLDS(data(&p.b, 5)[length] == 0);
        HOLDS(sent(&p.a, 1, 0) == VIP_STATUS_OP_RDMA_WRITE);
        HOLDS(sent(&p.a, 2, 0) == VIP_STATUS_OP_SEND);
        /* A write with immediate data takes a descriptor. */
        post_receive(&p.b, 0, 8);
        post_rdma(&p.a, 1, VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE, data(&p.b, 6), p.b.memory.handle, length);
        HOLDS(received(&p.b, 0, 0) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
        HOLDS(descriptor(&p.b, 0)->CS.Length == length && data(&p.b, 6)[length - 1] == 0x40 + round);
        HOLDS(sent(&p.a, 1, 0) == VIP_STATUS_OP_RDMA_WRITE);
    }
    if (level != VIP_SERVICE_UNRELIABLE) {
        /* Nothing polls b: the library's thread answers. Fenced descriptors come behind. */
        memset(data(&p.b, 7), 0x77, 3000);
        memset(data(&p.a, 3), 0, 3000);
        post_receive(&p.b, 0, 8);
        post_rdma(&p.a, 3, VIP_CONTROL_OP_RDMAREAD, data(&p.b, 7), p.b.memory.handle, 3000);
        one_segment(descriptor(&p.a, 4), data(&p.a, 4), 8, p.a.memory.handle);
        descriptor(&p.a, 4)->CS.Control |= VIP_CONTROL_QFENCE;
        OK(VipPostSend(p.a.vi, descriptor(&p.a, 4), p.a.memory.handle));
        HOLDS(sent(&p.a, 3, 0) == VIP_STATUS_OP_RDMA_READ);
        for (int i = 0; i < 3000; i++) HOLDS(data(&p.a, 3)[i] == 0x77);
        sent(&p.a, 4, 0);
        received(&p.b, 0, 0);
    }
    end_pair(&p);

    for (int wrong = 0; wrong < 4; wrong++) {
        p = connected(nic, level, 1, NULL);
        static unsigned char theirs[64];
        VIP_MEM_ATTRIBUTES closed = {p.ptag, VIP_FALSE, VIP_FALSE};
        VIP_MEM_HANDLE handle;
        OK(VipRegisterMem(nic, theirs, sizeof theirs, &closed, &handle));
        VIP_UINT16 operation = wrong < 3 ? VIP_CONTROL_OP_RDMAWRITE : VIP_CONTROL_OP_RDMAREAD;
        memset(data(&p.a, 1), 0xee, 64);
        if (wrong == 1) post_rdma(&p.a, 1, operation, p.b.memory.bytes + SLOTS * SLOT - 4, p.b.memory.handle, 8);
        else if (wrong == 2) post_rdma(&p.a, 1, operation, theirs, handle ^ 0x5550000, 8);
        else if (wrong == 3 && level == VIP_SERVICE_UNRELIABLE) post_send(&p.a, 1, 8); /* The level has no reads. */
        else post_rdma(&p.a, 1, operation, theirs, handle, 8);
        VIP_UINT32 status;
        VIP_DESCRIPTOR *done;
        OK(VipSendWait(p.a.vi, TIMEOUT, &done));
        status = done->CS.Status & VIP_STATUS_ERROR_MASK;
        if (level == VIP_SERVICE_UNRELIABLE) {
            HOLDS(status == 0 && state_of(p.a.vi) == VIP_STATE_CONNECTED);
        } else {
            /* With reliable delivery a write is done when it has left. */
            HOLDS(status == (wrong == 3 || level == VIP_SERVICE_RELIABLE_RECEPTION ? VIP_STATUS_RDMA_PROT_ERROR : 0U));
            was_told(t, p.b.vi, wrong == 3 ? VIP_ERROR_RDMAR_PROT : VIP_ERROR_RDMAW_PROT);
        }
        for (int i = 0; i < 64; i++) HOLDS(theirs[i] == 0);
        OK(VipDeregisterMem(nic, theirs, handle));
        end_pair(&p);
    }
}

/* Each completed descriptor makes an entry, in order. */
static void completion_queue(VIP_NIC_HANDLE nic) {
    VIP_CQ_HANDLE cq;
    OK(VipCreateCQ(nic, 64, &cq));
    pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, cq);
    int sends = 0, receives = 0;
    for (int i = 0; i < 10; i++) post_receive(&p.b, i, 8);
    for (int i = 0; i < 10; i++) post_send(&p.a, i, 8);
    for (int i = 0; i < 20; i++) {
        VIP_VI_HANDLE vi;
        VIP_BOOLEAN is_receive;
        VIP_DESCRIPTOR *done;
        OK(VipCQWait(cq, TIMEOUT, &vi, &is_receive));
        if (is_receive) {
            HOLDS(vi == p.b.vi);
            OK(VipRecvDone(vi, &done));
            HOLDS(done == descriptor(&p.b, receives++));
        } else {
            HOLDS(vi == p.a.vi);
            OK(VipSendDone(vi, &done));
            HOLDS(done == descriptor(&p.a, sends++));
        }
    }
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN is_receive;
    GIVES(VIP_NOT_DONE, VipCQDone(cq, &vi, &is_receive));
    end_pair(&p);
    OK(VipDestroyCQ(cq));
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    int receives, calls;
} called;

static void note(called *c, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor, int receives) {
    pthread_mutex_lock(&c->lock);
    c->vi = vi;
    c->descriptor = descriptor;
    c->receives = receives;
    c->calls++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void on_queue(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *descriptor) {
    (void)nic;
    note((called *)context, vi, descriptor, -1);
}

static void on_cq(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN receives) {
    (void)nic;
    note((called *)context, vi, NULL, receives);
}

static void was_called(called *c, int calls) {
    pthread_mutex_lock(&c->lock);
    while (c->calls < calls) pthread_cond_wait(&c->changed, &c->lock);
    HOLDS(c->calls == calls);
    pthread_mutex_unlock(&c->lock);
}

static void handlers(VIP_NIC_HANDLE nic) {
    called c;
    memset(&c, 0, sizeof c);
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.changed, NULL);
    pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    post_receive(&p.b, 0, 8);
    post_receive(&p.b, 1, 8);
    OK(VipRecvNotify(p.b.vi, &c, on_queue));
    GIVES(VIP_ERROR_RESOURCE, VipRecvNotify(p.b.vi, &c, on_queue)); /* Only one notification at a time is allowed. */
    post_send(&p.a, 2, 8);
    was_called(&c, 1);
    HOLDS(c.vi == p.b.vi && c.descriptor == descriptor(&p.b, 0));
    post_send(&p.a, 3, 8);
    received(&p.b, 1, 0); /* The handler is called once. */
    OK(VipSendNotify(p.a.vi, &c, on_queue)); /* There are two completions already. */
    was_called(&c, 2);
    HOLDS(c.vi == p.a.vi && c.descriptor == descriptor(&p.a, 2));
    sent(&p.a, 3, 0);
    end_pair(&p);

    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *done;
    OK(VipCreateCQ(nic, 8, &cq));
    p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, cq);
    post_receive(&p.b, 0, 8);
    OK(VipCQNotify(cq, &c, on_cq));
    GIVES(VIP_ERROR_RESOURCE, VipCQNotify(cq, &c, on_cq));
    post_send(&p.a, 1, 8);
    was_called(&c, 3);
    /* The completions of two VIs have no order. Nothing polls: the library's thread takes the message. */
    const VIP_BOOLEAN first = c.receives;
    HOLDS(first == VIP_TRUE ? c.vi == p.b.vi : first == VIP_FALSE && c.vi == p.a.vi);
    OK(VipCQNotify(cq, &c, on_cq));
    was_called(&c, 4);
    HOLDS(first == VIP_TRUE ? c.vi == p.a.vi && c.receives == VIP_FALSE : c.vi == p.b.vi && c.receives == VIP_TRUE);
    OK(VipRecvDone(p.b.vi, &done));
    end_pair(&p);
    OK(VipDestroyCQ(cq));
}

/* A VI that has met an error can be connected again. */
static void again(VIP_NIC_HANDLE nic) {
    pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    VIP_DESCRIPTOR *done;
    for (int round = 0; round < 3; round++) {
        post_receive(&p.b, 0, 8);
        post_receive(&p.b, 1, 8);
        post_send(&p.a, 2, 8);
        received(&p.b, 0, 0);
        sent(&p.a, 2, 0);
        OK(VipDisconnect(p.a.vi));
        OK(VipRecvWait(p.b.vi, TIMEOUT, &done));
        HOLDS((done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0);
        OK(VipDisconnect(p.b.vi));
        join(&p, p.a.vi, p.b.vi);
    }
    end_pair(&p);
}

int main(void) {
    VIP_NIC_HANDLE nic;
    told t;
    memset(&t, 0, sizeof t);
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    OK(VipOpenNic("VINIC0", &nic));
    OK(VipErrorCallback(nic, &t, tell));
    for (int bit = 0; bit < 3; bit++) {
        VIP_RELIABILITY_LEVEL level = (VIP_RELIABILITY_LEVEL)(1 << bit);
        if ((levels_of(nic) & level) == 0) continue;
        messages(nic, level);
        t.count = 0;
        for (int kind = 0; kind < 8; kind++) early(nic, level, kind);
        no_place(nic, &t, level);
        t.count = 0;
        rdma(nic, &t, level);
        if (level != VIP_SERVICE_UNRELIABLE) {
            answers_pass(nic, level);
            floods(nic, level, 8);
            floods(nic, level, 2000);
        }
    }
    t.count = 0;
    wrong_sends(nic, &t);
    completion_queue(nic);
    handlers(nic);
    again(nic);
    OK(VipCloseNic(nic));
    printf("all descriptors end as they should\n");
    return 0;
}
