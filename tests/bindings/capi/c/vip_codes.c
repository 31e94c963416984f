/* Results of VIPL calls with impossible arguments: a code, and never a crash. */
#include <stddef.h>
#include <stdlib.h>

#include "vip_test.h"

static void never_vi(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d) {
    (void)c, (void)n, (void)v, (void)d;
    abort();
}

static void never_cq(VIP_PVOID c, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_BOOLEAN r) {
    (void)c, (void)n, (void)v, (void)r;
    abort();
}

/* Handles that are NULL, of another kind, or made up. */
static void no_handles(VIP_NIC_HANDLE nic, VIP_PROTECTION_HANDLE ptag) {
    VIP_PVOID bad[] = {NULL, ptag, (VIP_PVOID)(uintptr_t)0x12345, (VIP_PVOID)(~(uintptr_t)0), (VIP_PVOID)&nic};
    net_address address;
    own_address(nic, &address, "x");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        VIP_PVOID h = bad[i];
        VIP_NIC_ATTRIBUTES na;
        VIP_VI_ATTRIBUTES va = usual_attributes(ptag, 0);
        VIP_MEM_ATTRIBUTES ma = {ptag, 0, 0};
        VIP_VI_STATE state;
        VIP_BOOLEAN yes;
        VIP_PVOID out;
        VIP_MEM_HANDLE mem;
        VIP_DESCRIPTOR d, *dp;
        VIP_ULONG n = 8;
        char name[8];
        GIVES(VIP_INVALID_PARAMETER, VipCloseNic(h));
        GIVES(VIP_INVALID_PARAMETER, VipQueryNic(h, &na));
        GIVES(VIP_INVALID_PARAMETER, VipCreateVi(h, &va, NULL, NULL, &out));
        if (h != NULL) GIVES(VIP_INVALID_PARAMETER, VipCreateVi(nic, &va, h, NULL, &out));
        if (h != NULL) GIVES(VIP_INVALID_PARAMETER, VipCreateVi(nic, &va, NULL, h, &out));
        GIVES(VIP_INVALID_PARAMETER, VipDestroyVi(h));
        GIVES(VIP_INVALID_PARAMETER, VipSetViAttributes(h, &va));
        GIVES(VIP_INVALID_PARAMETER, VipQueryVi(h, &state, &va, &yes, &yes));
        GIVES(VIP_INVALID_PARAMETER, VipConnectWait(h, &address.address, 0, &address.address, &va, &out));
        GIVES(VIP_INVALID_PARAMETER, VipConnectAccept(h, h));
        GIVES(VIP_INVALID_PARAMETER, VipConnectReject(h));
        GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(h, &address.address, &address.address, 0, &va));
        GIVES(VIP_INVALID_PARAMETER, VipDisconnect(h));
        GIVES(VIP_INVALID_PARAMETER, VipConnectPeerRequest(h, &address.address, &address.address, 0));
        GIVES(VIP_INVALID_PARAMETER, VipConnectPeerDone(h, &va));
        GIVES(VIP_INVALID_PARAMETER, VipConnectPeerWait(h, &va));
        GIVES(VIP_INVALID_PARAMETER, VipCreatePtag(h, &out));
        GIVES(VIP_INVALID_PARAMETER, VipDestroyPtag(h, ptag));
        GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(h, &d, sizeof d, &ma, &mem));
        GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(h, &d, 1));
        GIVES(VIP_INVALID_PARAMETER, VipSetMemAttributes(h, &d, 1, &ma));
        GIVES(VIP_INVALID_PARAMETER, VipQueryMem(h, &d, 1, &ma));
        GIVES(VIP_INVALID_PARAMETER, VipPostSend(h, &d, 1));
        GIVES(VIP_INVALID_PARAMETER, VipPostRecv(h, &d, 1));
        GIVES(VIP_INVALID_PARAMETER, VipSendDone(h, &dp));
        GIVES(VIP_INVALID_PARAMETER, VipRecvDone(h, &dp));
        GIVES(VIP_INVALID_PARAMETER, VipSendWait(h, 0, &dp));
        GIVES(VIP_INVALID_PARAMETER, VipRecvWait(h, 0, &dp));
        GIVES(VIP_INVALID_PARAMETER, VipSendNotify(h, NULL, never_vi));
        GIVES(VIP_INVALID_PARAMETER, VipRecvNotify(h, NULL, never_vi));
        GIVES(VIP_INVALID_PARAMETER, VipCreateCQ(h, 1, &out));
        GIVES(VIP_INVALID_PARAMETER, VipDestroyCQ(h));
        GIVES(VIP_INVALID_PARAMETER, VipResizeCQ(h, 1));
        GIVES(VIP_INVALID_PARAMETER, VipCQDone(h, &out, &yes));
        GIVES(VIP_INVALID_PARAMETER, VipCQWait(h, 0, &out, &yes));
        GIVES(VIP_INVALID_PARAMETER, VipCQNotify(h, NULL, never_cq));
        GIVES(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(h, VIP_SMI_AUTODISCOVERY, &out));
        GIVES(VIP_INVALID_PARAMETER, VipErrorCallback(h, NULL, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipNSInit(h, NULL));
        GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByName(h, name, &address.address, 0));
        GIVES(VIP_INVALID_PARAMETER, VipNSGetHostByAddr(h, &address.address, name, &n));
        GIVES(VIP_INVALID_PARAMETER, VipNSShutdown(h));
    }
}

static void nics(VIP_NIC_HANDLE nic) {
    VIP_NIC_HANDLE other;
    VIP_NIC_ATTRIBUTES a;
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic("no such NIC", &other));
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic(NULL, &other));
    GIVES(VIP_INVALID_PARAMETER, VipOpenNic("VINIC0", NULL));
    GIVES(VIP_INVALID_PARAMETER, VipQueryNic(nic, NULL));
    OK(VipQueryNic(nic, &a));
    HOLDS(a.ThreadSafe && a.MaxDiscriminatorLen >= 16 && a.MaxTransferSize >= 32768 && a.NicAddressLen > 0);
    HOLDS((a.ReliabilityLevelSupport & VIP_SERVICE_RELIABLE_DELIVERY) != 0);
    HOLDS((a.RDMAReadSupport & VIP_SERVICE_RELIABLE_DELIVERY) != 0);
    OK(VipOpenNic("VINIC0", &other)); /* several at a time */
    OK(VipCloseNic(other));
    GIVES(VIP_INVALID_PARAMETER, VipCloseNic(other));
    GIVES(VIP_INVALID_PARAMETER, VipQueryNic(other, &a));
}

static void memories(VIP_NIC_HANDLE nic) {
    static unsigned char bytes[256];
    VIP_PROTECTION_HANDLE one, two;
    VIP_MEM_HANDLE handle, gone;
    OK(VipCreatePtag(nic, &one));
    OK(VipCreatePtag(nic, &two));
    VIP_MEM_ATTRIBUTES a = {one, VIP_TRUE, VIP_FALSE}, b = {two, VIP_FALSE, VIP_TRUE}, none = {NULL, 0, 0}, found;
    GIVES(VIP_INVALID_PTAG, VipRegisterMem(nic, bytes, sizeof bytes, &none, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(nic, NULL, 1, &a, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(nic, bytes, 0, &a, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(nic, bytes, ~(VIP_ULONG)0, &a, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(nic, bytes, sizeof bytes, NULL, &handle));
    GIVES(VIP_INVALID_PARAMETER, VipRegisterMem(nic, bytes, sizeof bytes, &a, NULL));
    OK(VipRegisterMem(nic, bytes, sizeof bytes, &a, &handle));
    OK(VipQueryMem(nic, bytes, handle, &found));
    HOLDS(found.Ptag == one && found.EnableRdmaWrite && !found.EnableRdmaRead);
    GIVES(VIP_INVALID_PARAMETER, VipQueryMem(nic, bytes + sizeof bytes, handle, &found));
    GIVES(VIP_INVALID_PARAMETER, VipQueryMem(nic, bytes, handle + 1, &found));
    GIVES(VIP_ERROR_RESOURCE, VipDestroyPtag(nic, one)); /* the memory carries it */
    GIVES(VIP_INVALID_PTAG, VipSetMemAttributes(nic, bytes, handle, &none));
    OK(VipSetMemAttributes(nic, bytes, handle, &b));
    OK(VipQueryMem(nic, bytes, handle, &found));
    HOLDS(found.Ptag == two && !found.EnableRdmaWrite && found.EnableRdmaRead);
    OK(VipDestroyPtag(nic, one));
    GIVES(VIP_INVALID_PTAG, VipDestroyPtag(nic, one));
    GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(nic, bytes + 1000, handle));
    OK(VipDeregisterMem(nic, bytes, handle));
    GIVES(VIP_INVALID_PARAMETER, VipDeregisterMem(nic, bytes, handle));
    gone = handle;
    OK(VipRegisterMem(nic, bytes, sizeof bytes, &b, &handle));
    HOLDS(handle != gone);
    OK(VipDeregisterMem(nic, bytes, handle));
    OK(VipDestroyPtag(nic, two));
}

static void vis(VIP_NIC_HANDLE nic) {
    VIP_PROTECTION_HANDLE ptag, other;
    VIP_VI_HANDLE vi;
    VIP_VI_STATE state;
    VIP_BOOLEAN send_empty, receive_empty;
    VIP_NIC_ATTRIBUTES limits;
    OK(VipQueryNic(nic, &limits));
    OK(VipCreatePtag(nic, &ptag));
    OK(VipCreatePtag(nic, &other));
    VIP_VI_ATTRIBUTES good = usual_attributes(ptag, 1), a;
    a = good, a.ReliabilityLevel = 3;
    GIVES(VIP_INVALID_RELIABILITY_LEVEL, VipCreateVi(nic, &a, NULL, NULL, &vi));
    a = good, a.MaxTransferSize = limits.MaxTransferSize + 1;
    GIVES(VIP_INVALID_MTU, VipCreateVi(nic, &a, NULL, NULL, &vi));
    a = good, a.Ptag = NULL;
    GIVES(VIP_INVALID_PTAG, VipCreateVi(nic, &a, NULL, NULL, &vi));
    a = good, a.QoS = (VIP_QOS)16;
    GIVES(VIP_INVALID_QOS, VipCreateVi(nic, &a, NULL, NULL, &vi));
    a = good, a.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    GIVES((limits.ReliabilityLevelSupport & VIP_SERVICE_UNRELIABLE) ? VIP_INVALID_RDMAREAD : VIP_INVALID_RELIABILITY_LEVEL,
          VipCreateVi(nic, &a, NULL, NULL, &vi));
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(nic, NULL, NULL, NULL, &vi));
    GIVES(VIP_INVALID_PARAMETER, VipCreateVi(nic, &good, NULL, NULL, NULL));
    OK(VipCreateVi(nic, &good, NULL, NULL, &vi));
    OK(VipQueryVi(vi, &state, &a, &send_empty, &receive_empty));
    HOLDS(state == VIP_STATE_IDLE && a.Ptag == ptag && send_empty && receive_empty);
    /* A service level, if there are levels. */
    VIP_QOS has = getenv("DECK_LEVELS") != NULL ? (VIP_QOS)5 : (VIP_QOS)0;
    a = good, a.QoS = (VIP_QOS)5;
    OK(VipSetViAttributes(vi, &a));
    OK(VipQueryVi(vi, &state, &a, &send_empty, &receive_empty));
    HOLDS(a.QoS == has);
    a = good, a.QoS = (VIP_QOS)(VIP_UINTPTR)~0UL;
    GIVES(VIP_INVALID_QOS, VipSetViAttributes(vi, &a));
    OK(VipSetViAttributes(vi, &good));
    GIVES(VIP_INVALID_PARAMETER, VipQueryVi(vi, NULL, &a, &send_empty, &receive_empty));
    state = VIP_STATE_ERROR;
    GIVES(VIP_INVALID_PARAMETER, VipQueryVi(vi, &state, &a, &send_empty, NULL));
    HOLDS(state == VIP_STATE_ERROR); /* a call that is refused writes nothing */
    a = good, a.Ptag = other;
    OK(VipSetViAttributes(vi, &a));
    GIVES(VIP_ERROR_RESOURCE, VipDestroyPtag(nic, other));

    block m = make_memory(nic, 4096, other, 0, 0), wrong = make_memory(nic, 4096, ptag, 0, 0);
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)m.bytes, *done;
    one_segment(d, m.bytes + 1024, 8, m.handle);
    GIVES(VIP_INVALID_STATE, VipPostSend(vi, d, m.handle)); /* not connected */
    GIVES(VIP_INVALID_PARAMETER, VipPostRecv(vi, NULL, m.handle));
    GIVES(VIP_DESCRIPTOR_ERROR, VipPostRecv(vi, (VIP_DESCRIPTOR *)(void *)(m.bytes + 8), m.handle));
    GIVES(VIP_DESCRIPTOR_ERROR, VipPostRecv(vi, (VIP_DESCRIPTOR *)(void *)wrong.bytes, wrong.handle)); /* another tag */
    GIVES(VIP_DESCRIPTOR_ERROR, VipPostRecv(vi, d, 0));
    GIVES(VIP_DESCRIPTOR_ERROR, VipPostRecv(vi, (VIP_DESCRIPTOR *)(void *)(m.bytes + 4096), m.handle));
    OK(VipPostRecv(vi, d, m.handle));
    GIVES(VIP_NOT_DONE, VipRecvDone(vi, &done));
    GIVES(VIP_NOT_DONE, VipSendDone(vi, &done));
    GIVES(VIP_INVALID_PARAMETER, VipRecvDone(vi, NULL));
    GIVES(VIP_TIMEOUT, VipRecvWait(vi, 1, &done));
    GIVES(VIP_TIMEOUT, VipSendWait(vi, 0, &done));
    GIVES(VIP_INVALID_PARAMETER, VipRecvNotify(vi, NULL, NULL));
    GIVES(VIP_ERROR_RESOURCE, VipSetViAttributes(vi, &good)); /* something is posted */
    GIVES(VIP_ERROR_RESOURCE, VipDestroyVi(vi));
    GIVES(VIP_INVALID_STATE, VipConnectPeerDone(vi, &a));
    OK(VipDisconnect(vi)); /* flushes */
    OK(VipRecvDone(vi, &done));
    HOLDS(done == d && (done->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0);
    OK(VipDestroyVi(vi));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyVi(vi));
    free_memory(nic, &m);
    free_memory(nic, &wrong);
    OK(VipDestroyPtag(nic, ptag));
    OK(VipDestroyPtag(nic, other));
}

static void connections(VIP_NIC_HANDLE nic) {
    pair p;
    net_address local, nobody;
    VIP_VI_ATTRIBUTES theirs;
    VIP_CONN_HANDLE request;
    VIP_VI_HANDLE other;
    pthread_t thread;
    p.nic = nic;
    OK(VipCreatePtag(nic, &p.ptag));
    make_end(&p, &p.a, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    make_end(&p, &p.b, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    own_address(nic, &local, "waits");
    own_address(nic, &nobody, "nobody");
    GIVES(VIP_TIMEOUT, VipConnectWait(nic, &local.address, 20, &nobody.address, &theirs, &request));
    own_address(nic, &nobody, "nobody");
    GIVES(VIP_INVALID_PARAMETER, VipConnectWait(nic, NULL, 20, &nobody.address, &theirs, &request));
    GIVES(VIP_NO_MATCH, VipConnectRequest(p.a.vi, &local.address, &nobody.address, 20, &theirs));
    HOLDS(state_of(p.a.vi) == VIP_STATE_IDLE);
    GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(p.a.vi, &local.address, NULL, 20, &theirs));
    nobody.address.HostAddressLen = 3;
    GIVES(VIP_INVALID_PARAMETER, VipConnectRequest(p.a.vi, &local.address, &nobody.address, 20, &theirs));

    asking a = {&p, p.a.vi, VIP_NOT_DONE, TIMEOUT, "rejects"};
    HOLDS(pthread_create(&thread, NULL, ask, &a) == 0);
    request = wait_for_request(nic, "rejects");
    GIVES(VIP_INVALID_STATE, VipConnectRequest(p.a.vi, &local.address, &local.address, 0, &theirs)); /* it asks already */
    OK(VipConnectReject(request));
    GIVES(VIP_INVALID_PARAMETER, VipConnectReject(request));
    GIVES(VIP_INVALID_PARAMETER, VipConnectAccept(request, p.b.vi));
    pthread_join(thread, NULL);
    GIVES(VIP_REJECT, a.result);

    /* A VI of another level cannot accept; a VI of the right level still can. */
    VIP_VI_ATTRIBUTES level = usual_attributes(p.ptag, 0);
    level.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
    OK(VipCreateVi(nic, &level, NULL, NULL, &other));
    HOLDS(pthread_create(&thread, NULL, ask, &a) == 0);
    request = wait_for_request(nic, "rejects");
    GIVES(VIP_INVALID_RELIABILITY_LEVEL, VipConnectAccept(request, other));
    OK(VipConnectAccept(request, p.b.vi));
    pthread_join(thread, NULL);
    OK(a.result);
    HOLDS(state_of(p.a.vi) == VIP_STATE_CONNECTED && state_of(p.b.vi) == VIP_STATE_CONNECTED);
    GIVES(VIP_INVALID_STATE, VipDestroyVi(p.a.vi));
    GIVES(VIP_INVALID_STATE, VipSetViAttributes(p.a.vi, &level));
    OK(VipDestroyVi(other));

    /* The end from one side puts the other side into the error state. */
    OK(VipDisconnect(p.a.vi));
    for (int i = 0; i < 6000 && state_of(p.b.vi) != VIP_STATE_ERROR; i++) {
        struct timespec a_while = {0, 10000000};
        nanosleep(&a_while, NULL);
    }
    HOLDS(state_of(p.b.vi) == VIP_STATE_ERROR);
    end_pair(&p);
}

static void peers(VIP_NIC_HANDLE nic) {
    pair p;
    net_address here, alone;
    VIP_VI_ATTRIBUTES theirs;
    p.nic = nic;
    OK(VipCreatePtag(nic, &p.ptag));
    make_end(&p, &p.a, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    make_end(&p, &p.b, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
    own_address(nic, &here, "equals");
    own_address(nic, &alone, "alone");
    OK(VipConnectPeerRequest(p.a.vi, &alone.address, &alone.address, 30));
    GIVES(VIP_INVALID_STATE, VipConnectPeerRequest(p.a.vi, &alone.address, &alone.address, 30));
    GIVES(VIP_TIMEOUT, VipConnectPeerWait(p.a.vi, &theirs));
    HOLDS(state_of(p.a.vi) == VIP_STATE_IDLE);
    OK(VipConnectPeerRequest(p.a.vi, &here.address, &here.address, TIMEOUT));
    GIVES(VIP_NOT_DONE, VipConnectPeerDone(p.a.vi, &theirs));
    HOLDS(state_of(p.a.vi) == VIP_STATE_CONNECT_PENDING);
    OK(VipConnectPeerRequest(p.b.vi, &here.address, &here.address, TIMEOUT));
    OK(VipConnectPeerWait(p.a.vi, &theirs));
    OK(VipConnectPeerWait(p.b.vi, &theirs));
    post_receive(&p.b, 0, 8);
    post_send(&p.a, 1, 8);
    sent(&p.a, 1, 0);
    received(&p.b, 0, 0);
    end_pair(&p);
}

static void cqs_and_names(VIP_NIC_HANDLE nic) {
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN receives;
    VIP_PROTECTION_HANDLE ptag;
    net_address address;
    char name[200];
    VIP_ULONG length = sizeof name;
    GIVES(VIP_INVALID_PARAMETER, VipCreateCQ(nic, 0, &cq));
    OK(VipCreateCQ(nic, 8, &cq));
    OK(VipResizeCQ(cq, 1000));
    GIVES(VIP_NOT_DONE, VipCQDone(cq, &vi, &receives));
    GIVES(VIP_TIMEOUT, VipCQWait(cq, 1, &vi, &receives));
    GIVES(VIP_INVALID_PARAMETER, VipCQNotify(cq, NULL, NULL));
    OK(VipCreatePtag(nic, &ptag));
    VIP_VI_ATTRIBUTES a = usual_attributes(ptag, 0);
    OK(VipCreateVi(nic, &a, NULL, cq, &vi));
    GIVES(VIP_ERROR_RESOURCE, VipRecvNotify(vi, NULL, never_vi)); /* its completions are the queue's */
    GIVES(VIP_ERROR_RESOURCE, VipDestroyCQ(cq));
    OK(VipDestroyVi(vi));
    OK(VipDestroyCQ(cq));
    GIVES(VIP_INVALID_PARAMETER, VipDestroyCQ(cq));
    OK(VipDestroyPtag(nic, ptag));

    OK(VipNSInit(nic, NULL));
    char host[] = "localhost", no[] = "no.such.host.invalid";
    /* A discriminator that is already in the memory belongs to the program. */
    address.address.DiscriminatorLen = 7;
    OK(VipNSGetHostByName(nic, host, &address.address, 0));
    HOLDS(address.address.HostAddressLen == 16 && address.address.DiscriminatorLen == 7);
    address.address.DiscriminatorLen = 0xffff;
    OK(VipNSGetHostByAddr(nic, &address.address, name, &length));
    HOLDS(strlen(name) + 1 == length);
    length = 1;
    GIVES(VIP_ERROR_RESOURCE, VipNSGetHostByAddr(nic, &address.address, name, &length));
    HOLDS(length == strlen(name) + 1);
    GIVES(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(nic, no, &address.address, 0));
    GIVES(VIP_ERROR_NAMESERVICE, VipNSGetHostByName(nic, host, &address.address, 1000));
    OK(VipNSShutdown(nic));
    VIP_AUTODISCOVERY_LIST list;
    GIVES(VIP_INVALID_PARAMETER, VipQuerySystemManagementInfo(nic, 77, &list));
    OK(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list));
    HOLDS(list.NumADAddrs >= 1 && list.ADAddrArray[0]->HostAddressLen > 0);
    free(list.ADAddrArray);
}

/* Sizes, offsets and values of the specification, with which programs are compiled. */
static void header(void) {
    HOLDS(sizeof(VIP_CONTROL_SEGMENT) == 32 && sizeof(VIP_DESCRIPTOR_SEGMENT) == 16 && sizeof(VIP_DESCRIPTOR) == 64);
    HOLDS(offsetof(VIP_CONTROL_SEGMENT, NextHandle) == 8 && offsetof(VIP_CONTROL_SEGMENT, SegCount) == 12);
    HOLDS(offsetof(VIP_CONTROL_SEGMENT, Control) == 14 && offsetof(VIP_CONTROL_SEGMENT, Reserved) == 16);
    HOLDS(offsetof(VIP_CONTROL_SEGMENT, ImmediateData) == 20 && offsetof(VIP_CONTROL_SEGMENT, Length) == 24);
    HOLDS(offsetof(VIP_CONTROL_SEGMENT, Status) == 28 && offsetof(VIP_NET_ADDRESS, HostAddress) == 4);
    HOLDS(sizeof(VIP_MEM_HANDLE) == 4 && sizeof(VIP_UINTPTR) == sizeof(void *) && VIP_INFINITE == ~0UL);
    HOLDS(VIP_SUCCESS == 0 && VIP_NOT_DONE == 1 && VIP_INVALID_PARAMETER == 2 && VIP_ERROR_RESOURCE == 3);
    HOLDS(VIP_TIMEOUT == 4 && VIP_REJECT == 5 && VIP_INVALID_RELIABILITY_LEVEL == 6 && VIP_INVALID_MTU == 7);
    HOLDS(VIP_INVALID_QOS == 8 && VIP_INVALID_PTAG == 9 && VIP_INVALID_RDMAREAD == 10 && VIP_DESCRIPTOR_ERROR == 11);
    HOLDS(VIP_INVALID_STATE == 12 && VIP_ERROR_NAMESERVICE == 13 && VIP_NO_MATCH == 14);
    HOLDS(VIP_NOT_REACHABLE == 15 && VIP_ERROR_NOT_SUPPORTED == 16 && (VIP_CQ_HANDLE)VIP_NULL == NULL);
    HOLDS(VIP_CONTROL_OP_SENDFRECV == VIP_CONTROL_OP_SENDRECV && VIP_CONTROL_OP_SENDRECV == 0);
    HOLDS(VIP_STATE_IDLE == 0 && VIP_STATE_CONNECTED == 1 && VIP_STATE_CONNECT_PENDING == 2 && VIP_STATE_ERROR == 3);
    HOLDS(VIP_ERROR_POST_DESC == 0 && VIP_ERROR_CATASTROPHIC == 10 && VIP_RESOURCE_NIC == 0 && VIP_RESOURCE_DESCRIPTOR == 3);
    HOLDS(VIP_STATUS_ERROR_MASK == (VIP_STATUS_FORMAT_ERROR | VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_LENGTH_ERROR |
                                    VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_TRANSPORT_ERROR |
                                    VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_REMOTE_DESC_ERROR));
}

/* A discriminator can be waited at again by a NIC that is opened later. */
static void opened_again(void) {
    for (int i = 0; i < 2; i++) {
        VIP_NIC_HANDLE nic;
        OK(VipOpenNic("VINIC0", &nic));
        pair p = connected(nic, VIP_SERVICE_RELIABLE_DELIVERY, 0, NULL);
        end_pair(&p);
        OK(VipCloseNic(nic));
    }
}

int main(void) {
    VIP_NIC_HANDLE nic;
    header();
    VIP_PROTECTION_HANDLE ptag;
    OK(VipOpenNic("VINIC0", &nic));
    OK(VipCreatePtag(nic, &ptag));
    no_handles(nic, ptag);
    OK(VipDestroyPtag(nic, ptag));
    nics(nic);
    memories(nic);
    vis(nic);
    connections(nic);
    peers(nic);
    cqs_and_names(nic);
    OK(VipCloseNic(nic));
    opened_again();
    printf("all codes are as they should be\n");
    return 0;
}
