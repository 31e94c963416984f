/* RDMA: the client writes into the server's memory and reads from it, and the server does nothing meanwhile.
 *
 *   vip_rdma server | vip_rdma client HOST | deckrun -n 2 -- vip_rdma
 *
 * The server tells where its memory is by a message: an address and a memory handle, by value. What was written is visible to it
 * after the completion of the write's immediate data, or of a later send. */
#include "vip_common.h"

enum { SIZE = 1 << 16, PIECES = 8, PIECE = SIZE / PIECES };

typedef struct {
    VIP_UINT64 address;
    VIP_UINT32 handle;
} told;

typedef struct {
    VIP_VI_HANDLE vi;
    block memory;
    VIP_DESCRIPTOR *send, *receive; /* two receives */
    told *place;
    unsigned char *data;
} end;

static void post_receive(end *e, int nth) {
    one_segment(e->receive + nth, e->place, sizeof(told), e->memory.handle);
    CHECK(VipPostRecv(e->vi, e->receive + nth, e->memory.handle));
}

static VIP_UINT32 receive(end *e, int nth) {
    VIP_DESCRIPTOR *done;
    CHECK(VipRecvWait(e->vi, TIMEOUT, &done));
    EXPECT(done == e->receive + nth && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    return done->CS.Status;
}

static void post_and_wait(end *e) {
    VIP_DESCRIPTOR *done;
    CHECK(VipPostSend(e->vi, e->send, e->memory.handle));
    CHECK(VipSendWait(e->vi, TIMEOUT, &done));
    EXPECT(done == e->send && (done->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
}

/* The first segment of an RDMA descriptor is the peer's address. */
static void rdma(end *e, int operation, VIP_UINT64 remote, VIP_UINT32 handle, void *local, VIP_UINT32 length) {
    one_segment(e->send, NULL, 0, 0);
    e->send->CS.Control = (VIP_UINT16)operation;
    e->send->CS.SegCount = 2;
    e->send->CS.Length = length;
    e->send->DS[0].Remote.Data.AddressBits = remote;
    e->send->DS[0].Remote.Handle = handle;
    e->send->DS[0].Remote.Reserved = 0;
    e->send->DS[1].Local.Data.Address = local;
    e->send->DS[1].Local.Handle = e->memory.handle;
    e->send->DS[1].Local.Length = length;
}

static void serve(end *e) {
    e->place->address = (VIP_UINT64)(uintptr_t)e->data;
    e->place->handle = e->memory.handle;
    one_segment(e->send, e->place, sizeof(told), e->memory.handle);
    post_and_wait(e);
    VIP_UINT32 status = receive(e, 0);
    EXPECT((status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
    EXPECT((status & VIP_STATUS_IMMEDIATE) != 0 && e->receive->CS.ImmediateData == PIECES);
    for (int i = 0; i < SIZE; i++) EXPECT(e->data[i] == i / PIECE + 1);
    receive(e, 1); /* the client has read */
    printf("server: %d pieces of %d bytes written, and read back\n", PIECES, PIECE);
}

static void ask(end *e) {
    receive(e, 0);
    told there = *e->place;
    for (int i = 0; i < PIECES; i++) {
        memset(e->data, i + 1, PIECE);
        rdma(e, VIP_CONTROL_OP_RDMAWRITE, there.address + (VIP_UINT64)(i * PIECE), there.handle, e->data, PIECE);
        if (i + 1 == PIECES) { /* the others arrive unnoticed */
            e->send->CS.Control |= VIP_CONTROL_IMMEDIATE;
            e->send->CS.ImmediateData = PIECES;
        }
        post_and_wait(e);
        EXPECT((e->send->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_WRITE);
    }
    memset(e->data, 0, SIZE);
    rdma(e, VIP_CONTROL_OP_RDMAREAD, there.address, there.handle, e->data, SIZE);
    post_and_wait(e);
    EXPECT((e->send->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_READ && e->send->CS.Length == SIZE);
    for (int i = 0; i < SIZE; i++) EXPECT(e->data[i] == i / PIECE + 1);
    one_segment(e->send, e->place, 1, e->memory.handle);
    post_and_wait(e);
    printf("client: %d pieces of %d bytes written, and read back\n", PIECES, PIECE);
}

int main(int argc, char **argv) {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    const char *host;
    end e;
    int serves = role(argc, argv, &host);
    CHECK(VipOpenNic("VINIC0", &nic));
    CHECK(VipCreatePtag(nic, &ptag));
    e.memory = make_memory(nic, 3 * sizeof(VIP_DESCRIPTOR) + 64 + SIZE, ptag, VIP_TRUE, VIP_TRUE);
    e.send = (VIP_DESCRIPTOR *)(void *)e.memory.bytes;
    e.receive = e.send + 1;
    e.place = (told *)(void *)(e.receive + 2);
    e.data = e.memory.bytes + 3 * sizeof(VIP_DESCRIPTOR) + 64;
    VIP_VI_ATTRIBUTES attributes = usual_attributes(ptag, VIP_TRUE);
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &e.vi));
    post_receive(&e, 0); /* all that will come, before it can: a message without a descriptor breaks the connection */
    post_receive(&e, 1);
    connect_pair(nic, e.vi, serves, host, "rdma");
    if (serves) serve(&e); else ask(&e);
    CHECK(VipDisconnect(e.vi));
    VIP_DESCRIPTOR *left; /* flushed: what was posted and not used is taken back */
    while (VipRecvDone(e.vi, &left) == VIP_SUCCESS) EXPECT((left->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0);
    CHECK(VipDestroyVi(e.vi));
    free_memory(nic, &e.memory);
    CHECK(VipDestroyPtag(nic, ptag));
    CHECK(VipCloseNic(nic));
    return 0;
}
