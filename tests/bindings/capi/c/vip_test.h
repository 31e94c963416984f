/* Code that the tests of VIPL in C share: two connected VIs of one process. */
#ifndef VIP_TEST_H
#define VIP_TEST_H

#include <pthread.h>
#include <time.h>

#include "../../../../examples/c/vip_common.h"

/* Checks that the call has this result. */
#define GIVES(expected, call)                                                                              \
    do {                                                                                                   \
        int result_ = (int)(call);                                                                         \
        if (result_ != (int)(expected)) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %d, not %s\n", __FILE__, __LINE__, #call, result_, #expected);   \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define OK(call) GIVES(VIP_SUCCESS, call)
#define HOLDS(condition) EXPECT(condition)

enum { SLOTS = 64, SLOT = 4096 };

/* One end: a VI, and memory for descriptors and data. */
typedef struct {
    VIP_VI_HANDLE vi;
    block memory;
} end;

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    end a, b;
} pair;

static inline VIP_DESCRIPTOR *descriptor(end *e, int slot) {
    return (VIP_DESCRIPTOR *)(void *)(e->memory.bytes + (size_t)slot * SLOT);
}

/* Offset behind the descriptor, which has at most 4 segments. */
static inline unsigned char *data(end *e, int slot) { return e->memory.bytes + (size_t)slot * SLOT + 256; }

static inline void make_end(pair *p, end *e, VIP_RELIABILITY_LEVEL level, int rdma, VIP_CQ_HANDLE cq) {
    VIP_VI_ATTRIBUTES attributes = usual_attributes(p->ptag, rdma);
    attributes.ReliabilityLevel = level;
    if (level == VIP_SERVICE_UNRELIABLE) attributes.EnableRdmaRead = VIP_FALSE;
    e->memory = make_memory(p->nic, (size_t)SLOTS * SLOT, p->ptag, VIP_TRUE, VIP_TRUE);
    OK(VipCreateVi(p->nic, &attributes, cq, cq, &e->vi));
}

typedef struct {
    pair *p;
    VIP_VI_HANDLE vi;
    VIP_RETURN result;
    VIP_ULONG timeout;
    const char *name;
} asking;

static inline void *ask(void *argument) {
    asking *a = (asking *)argument;
    net_address local, remote;
    VIP_VI_ATTRIBUTES theirs;
    own_address(a->p->nic, &local, "");
    own_address(a->p->nic, &remote, a->name);
    a->result = VipConnectRequest(a->vi, &local.address, &remote.address, a->timeout, &theirs);
    return NULL;
}

static inline VIP_CONN_HANDLE wait_for_request(VIP_NIC_HANDLE nic, const char *name) {
    net_address local, remote;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE request;
    own_address(nic, &local, name);
    OK(VipConnectWait(nic, &local.address, TIMEOUT, &remote.address, &theirs, &request));
    HOLDS(remote.address.HostAddressLen == local.address.HostAddressLen);
    return request;
}

static inline void join(pair *p, VIP_VI_HANDLE asks, VIP_VI_HANDLE accepts) {
    pthread_t thread;
    asking a = {p, asks, VIP_NOT_DONE, TIMEOUT, "test"};
    HOLDS(pthread_create(&thread, NULL, ask, &a) == 0);
    OK(VipConnectAccept(wait_for_request(p->nic, "test"), accepts));
    pthread_join(thread, NULL);
    OK(a.result);
}

static inline pair connected(VIP_NIC_HANDLE nic, VIP_RELIABILITY_LEVEL level, int rdma, VIP_CQ_HANDLE cq) {
    pair p;
    p.nic = nic;
    OK(VipCreatePtag(nic, &p.ptag));
    make_end(&p, &p.a, level, rdma, cq);
    make_end(&p, &p.b, level, rdma, cq);
    join(&p, p.a.vi, p.b.vi);
    return p;
}

static inline VIP_VI_STATE state_of(VIP_VI_HANDLE vi) {
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attributes;
    VIP_BOOLEAN send_empty, receive_empty;
    OK(VipQueryVi(vi, &state, &attributes, &send_empty, &receive_empty));
    return state;
}

/* Returns both VIs to the Idle state, with empty queues and everything given back. */
static inline void end_pair(pair *p) {
    end *ends[2] = {&p->a, &p->b};
    for (int i = 0; i < 2; i++) {
        VIP_DESCRIPTOR *done;
        OK(VipDisconnect(ends[i]->vi));
        HOLDS(state_of(ends[i]->vi) == VIP_STATE_IDLE);
        while (VipSendDone(ends[i]->vi, &done) == VIP_SUCCESS) HOLDS((done->CS.Status & VIP_STATUS_DONE) != 0);
        while (VipRecvDone(ends[i]->vi, &done) == VIP_SUCCESS) HOLDS((done->CS.Status & VIP_STATUS_DONE) != 0);
        OK(VipDestroyVi(ends[i]->vi));
        free_memory(p->nic, &ends[i]->memory);
    }
    OK(VipDestroyPtag(p->nic, p->ptag));
}

static inline void post_receive(end *e, int slot, VIP_UINT32 length) {
    one_segment(descriptor(e, slot), data(e, slot), length, e->memory.handle);
    OK(VipPostRecv(e->vi, descriptor(e, slot), e->memory.handle));
}

static inline void post_send(end *e, int slot, VIP_UINT32 length) {
    one_segment(descriptor(e, slot), data(e, slot), length, e->memory.handle);
    OK(VipPostSend(e->vi, descriptor(e, slot), e->memory.handle));
}

/* The first segment is the peer's memory. */
static inline void post_rdma(end *e, int slot, VIP_UINT16 control, void *there, VIP_MEM_HANDLE handle, VIP_UINT32 length) {
    VIP_DESCRIPTOR *d = descriptor(e, slot);
    one_segment(d, NULL, length, 0);
    d->CS.Control = control;
    d->CS.SegCount = 2;
    d->DS[0].Remote.Data.AddressBits = (VIP_UINT64)(uintptr_t)there;
    d->DS[0].Remote.Handle = handle;
    d->DS[1].Local.Data.Address = data(e, slot);
    d->DS[1].Local.Handle = e->memory.handle;
    d->DS[1].Local.Length = length;
    OK(VipPostSend(e->vi, d, e->memory.handle));
}

/* Checks that the next finished send is that of the slot, with these error bits and this operation. */
static inline VIP_UINT32 sent(end *e, int slot, VIP_UINT32 errors) {
    VIP_DESCRIPTOR *done = NULL;
    OK(VipSendWait(e->vi, TIMEOUT, &done));
    HOLDS(done == descriptor(e, slot) && (done->CS.Status & VIP_STATUS_DONE) != 0);
    GIVES(errors, done->CS.Status & VIP_STATUS_ERROR_MASK);
    return done->CS.Status & VIP_STATUS_OP_MASK;
}

static inline VIP_UINT32 received(end *e, int slot, VIP_UINT32 errors) {
    VIP_DESCRIPTOR *done = NULL;
    OK(VipRecvWait(e->vi, TIMEOUT, &done));
    HOLDS(done == descriptor(e, slot) && (done->CS.Status & VIP_STATUS_DONE) != 0);
    GIVES(errors, done->CS.Status & VIP_STATUS_ERROR_MASK);
    return done->CS.Status & VIP_STATUS_OP_MASK;
}

/* Events that the error callback received. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
    VIP_ERROR_CODE codes[64];
    VIP_VI_HANDLE vis[64];
} told;

static inline void tell(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) {
    told *t = (told *)context;
    pthread_mutex_lock(&t->lock);
    if (t->count < 64) {
        t->codes[t->count] = error->ErrorCode;
        t->vis[t->count] = error->ViHandle;
        t->count++;
    }
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

/* Waits until the error of this VI was reported. */
static inline void was_told(told *t, VIP_VI_HANDLE vi, VIP_ERROR_CODE code) {
    struct timespec until;
    int found = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&t->lock);
    while (!found) {
        for (int i = 0; i < t->count; i++) found |= t->vis[i] == vi && t->codes[i] == code;
        if (!found && pthread_cond_timedwait(&t->changed, &t->lock, &until) != 0) {
            fprintf(stderr, "error %d was not told\n", (int)code);
            for (int i = 0; i < t->count; i++) fprintf(stderr, "  but %d\n", (int)t->codes[i]);
            exit(1);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

#endif
