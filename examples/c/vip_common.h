/* What the VIPL examples have in common: checks, memory, and a pair of descriptors. */
#ifndef VIP_COMMON_H
#define VIP_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vipl.h>

#define TIMEOUT ((VIP_ULONG)60000) /* milliseconds */

#define CHECK(call)                                                                       \
    do {                                                                                  \
        VIP_RETURN check_ = (call);                                                       \
        if (check_ != VIP_SUCCESS) {                                                      \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)check_);   \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define EXPECT(condition)                                                                 \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* The rank that a launcher has given to this process; -1 without one. */
static inline int rank_of_launcher(void) {
    static const char *const names[] = {"DECK_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL && rank[0] != '\0') return atoi(rank);
    }
    return -1;
}

/* An address with room for a host and a discriminator. */
typedef union {
    VIP_NET_ADDRESS address;
    unsigned char room[4 + 64 + 64];
} net_address;

static inline void set_discriminator(net_address *to, const char *name) {
    to->address.DiscriminatorLen = (VIP_UINT16)strlen(name);
    memcpy(to->address.HostAddress + to->address.HostAddressLen, name, strlen(name));
}

/* This host's address, with a discriminator. */
static inline void own_address(VIP_NIC_HANDLE nic, net_address *to, const char *name) {
    VIP_NIC_ATTRIBUTES attributes;
    CHECK(VipQueryNic(nic, &attributes));
    to->address.HostAddressLen = attributes.NicAddressLen;
    memcpy(to->address.HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
    set_discriminator(to, name);
}

static inline void host_address(VIP_NIC_HANDLE nic, net_address *to, const char *host, const char *name) {
    char copy[256];
    snprintf(copy, sizeof copy, "%s", host);
    CHECK(VipNSGetHostByName(nic, copy, &to->address, 0));
    set_discriminator(to, name);
}

/* Memory for descriptors and data: `size` bytes, registered. */
typedef struct {
    void *allocated;
    unsigned char *bytes; /* at a multiple of VIP_DESCRIPTOR_ALIGNMENT */
    VIP_MEM_HANDLE handle;
} block;

static inline block make_memory(VIP_NIC_HANDLE nic, size_t size, VIP_PROTECTION_HANDLE ptag, int write, int read) {
    block made;
    VIP_MEM_ATTRIBUTES attributes;
    made.allocated = calloc(1, size + VIP_DESCRIPTOR_ALIGNMENT);
    EXPECT(made.allocated != NULL);
    made.bytes = (unsigned char *)(((uintptr_t)made.allocated + VIP_DESCRIPTOR_ALIGNMENT - 1) /
                                   VIP_DESCRIPTOR_ALIGNMENT * VIP_DESCRIPTOR_ALIGNMENT);
    attributes.Ptag = ptag;
    attributes.EnableRdmaWrite = write;
    attributes.EnableRdmaRead = read;
    CHECK(VipRegisterMem(nic, made.bytes, size, &attributes, &made.handle));
    return made;
}

static inline void free_memory(VIP_NIC_HANDLE nic, block *gone) {
    CHECK(VipDeregisterMem(nic, gone->bytes, gone->handle));
    free(gone->allocated);
}

/* Fills in a send or receive of one segment. */
static inline void one_segment(VIP_DESCRIPTOR *descriptor, void *data, VIP_UINT32 length, VIP_MEM_HANDLE handle) {
    memset(descriptor, 0, sizeof *descriptor);
    descriptor->CS.SegCount = 1;
    descriptor->CS.Control = VIP_CONTROL_OP_SENDRECV;
    descriptor->CS.Length = length;
    descriptor->DS[0].Local.Data.Address = data;
    descriptor->DS[0].Local.Handle = handle;
    descriptor->DS[0].Local.Length = length;
}

/* Reliable delivery, everything that the NIC can send, RDMA as said. */
static inline VIP_VI_ATTRIBUTES usual_attributes(VIP_PROTECTION_HANDLE ptag, int rdma) {
    VIP_VI_ATTRIBUTES attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = 1 << 20;
    attributes.Ptag = ptag;
    attributes.EnableRdmaWrite = rdma;
    attributes.EnableRdmaRead = rdma;
    return attributes;
}

/* Connects as the literature has it: rank 0, or `server`, waits; the other one asks `host`. */
static inline void connect_pair(VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, int serves, const char *host, const char *name) {
    net_address local, remote;
    VIP_VI_ATTRIBUTES theirs;
    memset(&remote, 0, sizeof remote);
    own_address(nic, &local, name);
    if (serves) {
        VIP_CONN_HANDLE request;
        CHECK(VipConnectWait(nic, &local.address, TIMEOUT, &remote.address, &theirs, &request));
        CHECK(VipConnectAccept(request, vi));
    } else {
        host_address(nic, &remote, host, name);
        CHECK(VipConnectRequest(vi, &local.address, &remote.address, TIMEOUT, &theirs));
    }
    EXPECT(theirs.ReliabilityLevel == VIP_SERVICE_RELIABLE_DELIVERY);
}

/* The role: an argument (`server`, or `client HOST`), or the rank. */
static inline int role(int argc, char **argv, const char **host) {
    int rank = rank_of_launcher();
    *host = argc > 2 ? argv[2] : rank >= 0 ? "rank0" : "localhost";
    if (argc > 1) return strcmp(argv[1], "server") == 0;
    if (rank < 0) {
        fprintf(stderr, "usage: %s server | %s client HOST, or two processes under a launcher\n", argv[0], argv[0]);
        exit(2);
    }
    return rank == 0;
}

#endif
