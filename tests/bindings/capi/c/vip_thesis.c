/* One message to and from each named host, by the calls of the program in the appendix of the thesis on DECK over VIA: the same
 * names, constants and order. The program runs on each of these hosts at once. */
#include <vipl.h>
#include <vipl_priv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The limit is that of the thesis, a second; here it only ends a hang. */
#define TIMEOUT 60 * 1000
#define OK(call) done(call, #call)

static void done(VIP_RETURN got, const char *what) {
    if (got != VIP_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, (int)got);
        exit(1);
    }
}

/* Returns the first address in this memory at which descriptors may lie. */
#define ALIGNED(pointer) (void *)(((VIP_UINTPTR)(pointer) + 0x3F) & ~((VIP_UINTPTR)0x3F))

int main(int argc, char **argv) {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES of_nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_PVOID send_memory, receive_memory, sent_memory, received_memory;
    VIP_DESCRIPTOR *send, *receive, *sent, *received;
    VIP_MEM_HANDLE send_handle, receive_handle, sent_handle, received_handle;
    VIP_MEM_ATTRIBUTES of_memory;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES ours, theirs;
    VIP_NET_ADDRESS *local, *remote;
    VIP_CHAR name[16], text[64];
    VIP_UCHAR *out, *in;
    char own[32];
    int at;

    gethostname(own, sizeof own - 1);
    own[sizeof own - 1] = 0;
    OK(VipOpenNic("VINIC0", &nic));
    OK(VipQueryNic(nic, &of_nic));
    OK(VipNSInit(nic, NULL));
    OK(VipCreatePtag(nic, &ptag));

    ours.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    ours.QoS = NULL;
    ours.Ptag = ptag;
    ours.EnableRdmaWrite = VIP_FALSE;
    ours.EnableRdmaRead = VIP_FALSE;
    ours.MaxTransferSize = sizeof text;
    of_memory.Ptag = ptag;
    of_memory.EnableRdmaWrite = VIP_FALSE;
    of_memory.EnableRdmaRead = VIP_FALSE;

    local = (VIP_NET_ADDRESS *)calloc(1, sizeof *local + of_nic.NicAddressLen + of_nic.MaxDiscriminatorLen);
    remote = (VIP_NET_ADDRESS *)calloc(1, sizeof *remote + of_nic.NicAddressLen + of_nic.MaxDiscriminatorLen);
    local->HostAddressLen = of_nic.NicAddressLen;
    local->DiscriminatorLen = 1;
    memcpy(local->HostAddress, of_nic.LocalNicAddress, of_nic.NicAddressLen);
    local->HostAddress[local->HostAddressLen] = 'Z';
    /* The lengths are set before the host is known, and never again. */
    remote->HostAddressLen = of_nic.NicAddressLen;
    remote->DiscriminatorLen = 1;

    OK(VipCreateVi(nic, &ours, (VIP_CQ_HANDLE)NULL, VIP_NULL, &vi));
    send_memory = malloc(sizeof(VIP_DESCRIPTOR) + 64);
    send = (VIP_DESCRIPTOR *)ALIGNED(send_memory);
    OK(VipRegisterMem(nic, send_memory, sizeof(VIP_DESCRIPTOR) + 64, &of_memory, &send_handle));
    receive_memory = malloc(sizeof(VIP_DESCRIPTOR) + 64);
    receive = (VIP_DESCRIPTOR *)ALIGNED(receive_memory);
    OK(VipRegisterMem(nic, receive_memory, sizeof(VIP_DESCRIPTOR) + 64, &of_memory, &receive_handle));
    sent_memory = malloc(sizeof text + 64);
    out = (VIP_UCHAR *)ALIGNED(sent_memory);
    OK(VipRegisterMem(nic, sent_memory, sizeof text + 64, &of_memory, &sent_handle));
    received_memory = malloc(sizeof text + 64);
    in = (VIP_UCHAR *)ALIGNED(received_memory);
    OK(VipRegisterMem(nic, received_memory, sizeof text + 64, &of_memory, &received_handle));

    send->CS.SegCount = 1;
    send->CS.Control = VIP_CONTROL_OP_SENDFRECV;
    send->CS.Reserved = 0;
    send->CS.Length = sizeof text;
    send->CS.Status = 0;
    send->DS[0].Local.Data.Address = out;
    send->DS[0].Local.Handle = sent_handle;
    send->DS[0].Local.Length = sizeof text;
    receive->CS.SegCount = 1;
    receive->CS.Control = VIP_CONTROL_OP_SENDFRECV;
    receive->CS.Reserved = 0;
    receive->CS.Length = sizeof text;
    receive->CS.Status = 0;
    receive->DS[0].Local.Data.Address = in;
    receive->DS[0].Local.Handle = received_handle;
    receive->DS[0].Local.Length = sizeof text;

    for (at = 1; at < argc; at++) {
        strncpy(name, argv[at], sizeof name - 1);
        name[sizeof name - 1] = 0;
        OK(VipNSGetHostByName(nic, name, remote, 0));
        remote->HostAddress[remote->HostAddressLen] = 'Z';
        OK(VipConnectPeerRequest(vi, local, remote, TIMEOUT));
        OK(VipConnectPeerWait(vi, &theirs));
        /* The receive follows the connection: the peer may have sent already. */
        OK(VipPostRecv(vi, receive, receive_handle));
        memset(out, 0, sizeof text);
        snprintf((char *)out, sizeof text, "a message to %s", name);
        OK(VipPostSend(vi, send, send_handle));
        OK(VipSendWait(vi, TIMEOUT, &sent));
        OK(VipRecvWait(vi, TIMEOUT, &received));
        if (sent != send || received != receive || (received->CS.Status & VIP_STATUS_ERROR_MASK) != 0) {
            fprintf(stderr, "status %#x\n", (unsigned)received->CS.Status);
            return 1;
        }
        printf("%s with %s: %s\n", own, name, (char *)in);
        OK(VipDisconnect(vi));
    }

    OK(VipDeregisterMem(nic, send_memory, send_handle));
    OK(VipDeregisterMem(nic, receive_memory, receive_handle));
    OK(VipDeregisterMem(nic, sent_memory, sent_handle));
    OK(VipDeregisterMem(nic, received_memory, received_handle));
    free(send_memory);
    free(receive_memory);
    free(sent_memory);
    free(received_memory);
    free(local);
    free(remote);
    OK(VipDestroyVi(vi));
    OK(VipNSShutdown(nic));
    OK(VipCloseNic(nic));
    return 0;
}
