/*
 * deck.h: DECK, the Distributed Execution and Communication Kernel, by µDECK.
 *
 * A job is several processes (ranks, DECK's nodes), which `deckrun -n 4 -- ./program` starts. A program that is started alone is a
 * job of one. A rank creates named mailboxes, and only it retrieves from them. Any rank makes a clone of a mailbox and posts
 * messages to it.
 *
 *     deck_init(&argc, &argv);
 *     deck_msg_t m;                                  deck_msg_create(&m, 1024);
 *     deck_mbox_t box;
 *     if (deck_node() == 0) {
 *         deck_mbox_create(&box, "numbers");
 *         deck_mbox_retrv(&box, &m);                 deck_msg_unpack(&m, DECK_INT, &number, 1);
 *     } else {
 *         deck_mbox_clone(&box, "numbers");          (waits until it exists)
 *         deck_msg_pack(&m, DECK_INT, &number, 1);   deck_mbox_post(&box, &m);
 *     }
 *     deck_mbox_destroy(&box);                       deck_msg_destroy(&m);
 *     deck_done();
 *
 * Results. A call returns DECK_OK (0), or a negative code, and has changed nothing then unless it says so. deck_strerror() has the
 * code's text, deck_errmsg() the full words of this thread's last error: what was tried, with whom, and what to do.
 *
 * Waiting. Calls that may wait say so. They wait at most the time in the environment variable DECK_DEADLINE (600 s unless set), or
 * what they are told in microseconds, and are DECK_ETIMEDOUT then. That another rank dies is DECK_EPEERLOST, never a hang.
 *
 * Threads. All calls may be made from several threads. Several may retrieve from one mailbox at the same time, each for as long as it
 * says; posts through one clone go one after the other. A deck_semaph_t and a deck_shmem_t may be used by several at once. A deck_msg_t,
 * or any other structure but a deck_mbox_t, is used by one call at a time, and none is created or ended while another call uses it; to
 * see to that is the program's part. A thread is not cancelled (pthread_cancel) in a call, and no signal handler leaves one by longjmp,
 * nor calls DECK itself.
 *
 * Structures. The program declares deck_msg_t, deck_mbox_t and the others, and passes pointers to them. They are made by a create,
 * clone, alloc or retrv_view, and ended once. One that was not made, or has been ended, is DECK_EINVAL. The fields named deck_... are
 * the library's. A copy of a structure stands for the same object.
 *
 * C99 or later, and C++. Link with `deckcc`, or by what `pkg-config --cflags --libs udeck` says.
 */
#ifndef DECK_H
#define DECK_H

/* Programs of the literature expect strcpy and its kind from here. */
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------------ results */

#define DECK_OK 0
#define DECK_EINVAL (-1)      /* an argument: NULL, out of range, not created, destroyed; a message without enough room */
#define DECK_ENOMEM (-2)      /* no memory */
#define DECK_ETIMEDOUT (-3)   /* nothing within the time; deck_errmsg() says who was waited for */
#define DECK_EAGAIN (-4)      /* a `try` call: nothing is there now, or it would have to wait */
#define DECK_EPEERLOST (-5)   /* another rank is lost */
#define DECK_EGONE (-6)       /* the mailbox was destroyed, or nobody is left who could answer */
#define DECK_ENOENT (-7)      /* nothing of that name */
#define DECK_EEXIST (-8)      /* the name is taken */
#define DECK_ESTATE (-9)      /* before deck_init, after deck_done, or either of them twice */
#define DECK_ENOTSUP (-10)    /* not possible here, or no way to that rank */
#define DECK_EMISMATCH (-11)  /* ranks do not agree: on a mailbox's kind, on a collective call */
#define DECK_EOWNERDEAD (-12) /* whoever held the lock died: the data may be half written */
#define DECK_EUNDELIVERED (-13) /* messages that were posted earlier were not delivered */
#define DECK_EIO (-14)        /* the launcher, the network or the system */
#define DECK_EINTERNAL (-15)  /* a defect of the library */

/* The constant text of a code; never NULL. */
const char *deck_strerror(int code);

/* The words of this thread's last error; "" if there was none, or the thread is about to end (in atexit's functions). Valid until the
 * next error of this thread. */
const char *deck_errmsg(void);

/* ------------------------------------------------------------------------------------------------------------- the job */

/*
 * Begins: this process is a rank from now on. Once per process. `argc` and `argv` may be NULL; they are not changed. Waits for the
 * launcher. A child that it forks is no rank: calls there that would do anything for the job are DECK_EIO.
 */
int deck_init(int *argc, char ***argv);

/*
 * Ends: delivers what was posted, which may take that its receivers retrieve, and says goodbye to the launcher. All structures are
 * gone afterwards but messages (deck_msg_t), which stay until they are destroyed, and threads, which can be joined. A process that ends
 * without it is lost to the other ranks. DECK_EUNDELIVERED, DECK_ETIMEDOUT: this rank has ended, and deck_errmsg() says what was lost
 * of the messages that still waited here. If an owner ends with others unread, only deck_mbox_flush says so.
 * Calls of other threads that wait end by DECK_ESTATE. If one does not within 5 s, this call is DECK_ESTATE: it can be called again.
 */
int deck_done(void);

/* This rank's number, from 0; all bits set where there is no job. */
unsigned long deck_node(void);

/* How many ranks the job has; 0 where there is no job. */
unsigned long deck_numnodes(void);

/* Waits until all ranks have come here. After DECK_ETIMEDOUT the next call goes on waiting at the same barrier. */
int deck_barrier(void);
int deck_barrier_timeout(unsigned long microseconds);

/* Ends the whole job, with this exit code (1 to 255; others count as 1), and this process. `why` is told to the other ranks; may be
 * NULL. Returns on errors only. */
int deck_abort(int code, const char *why);

/* ------------------------------------------------------------------------------------------------------------ messages */

/* Types of elements. */
#define DECK_CHAR 1
#define DECK_UCHAR 2
#define DECK_SHORT 3
#define DECK_USHORT 4
#define DECK_INT 5
#define DECK_UINT 6
#define DECK_LONG 7
#define DECK_ULONG 8
#define DECK_LONGLONG 9
#define DECK_ULONGLONG 10
#define DECK_FLOAT 11
#define DECK_DOUBLE 12
#define DECK_MSG 13 /* whole messages: `datum` points to deck_msg_t */

/* A message: memory of `size` bytes, of which the first `datalen` are posted. */
typedef struct deck_msg {
    char *buf;             /* the memory, aligned to 64 bytes; the program may read and write it, but not change the pointer */
    unsigned long size;    /* bytes of the memory */
    unsigned long datalen; /* bytes in use. A retrieve and a pack set it; a program that writes to buf itself sets it, too */
    char *cursor;          /* where unpacking goes on, between buf and buf + datalen; the program may move it */
    unsigned long source;  /* the rank that posted it, after a retrieve */
    unsigned int tag;      /* a number that travels with it; 0 in a new one */
    unsigned long long deck_number;
} deck_msg_t;

/* Makes a message with `size` bytes of zeroed memory, empty. DECK_ENOMEM. */
int deck_msg_create(deck_msg_t *msg, unsigned long size);

/* Frees its memory. Also after deck_done. */
int deck_msg_destroy(deck_msg_t *msg);

/*
 * Appends `n` elements of `type` behind what is packed (buf + datalen). They lie as C has them, without headers and without gaps, so
 * that a message needs as many bytes as its elements have. DECK_MSG: `n` messages, each with 8 bytes of length before it.
 * DECK_EINVAL: no room, nothing is packed.
 */
int deck_msg_pack(deck_msg_t *msg, int type, const void *datum, unsigned long n);

/*
 * Takes the next `n` elements, from cursor on, in the order and with the types of packing. DECK_MSG: into `n` messages that were
 * created; one without enough room is DECK_EINVAL, and the cursor stays before it. DECK_EINVAL: so many are not left.
 */
int deck_msg_unpack(deck_msg_t *msg, int type, void *datum, unsigned long n);

/* Empties it: datalen is 0, the cursor at the start. */
int deck_msg_clear(deck_msg_t *msg);

/* Unpacks from the start again. */
int deck_msg_reset(deck_msg_t *msg);

/* ----------------------------------------------------------------------------------------------------------- mailboxes */

/* A mailbox's name, as the literature declares it. */
typedef const char *deck_name_t;

/* A mailbox of this rank's, or a clone of one. */
typedef struct deck_mbox {
    unsigned long long deck_number;
} deck_mbox_t;

/*
 * Creates a mailbox, from which this rank retrieves. Names have 1 to 200 bytes of UTF-8 without control characters, and are unique
 * in the job: DECK_EEXIST, and deck_errmsg() says who has it. To Rust it is a mailbox of u8.
 */
int deck_mbox_create(deck_mbox_t *mbox, deck_name_t name);

/*
 * Makes a clone of the mailbox of that name, to post to it. Waits until the mailbox exists, at most DECK_SETUP_TIMEOUT (30 s unless
 * set): DECK_ENOENT then. DECK_EPEERLOST or DECK_EGONE at once when the rank that made it has ended. Several clones, and one by the
 * owner itself, are possible; each thread that posts has its own with advantage.
 */
int deck_mbox_clone(deck_mbox_t *mbox, deck_name_t name);
int deck_mbox_clone_timeout(deck_mbox_t *mbox, deck_name_t name, unsigned long microseconds);

/* Destroys a mailbox: clones of it are DECK_EGONE as soon as they hear of it, and other threads that wait at it get DECK_EINVAL. Destroys
 * a clone: what was posted through it arrives. A post of another thread by it is waited for, at most 700 s. */
int deck_mbox_destroy(deck_mbox_t *mbox);

/*
 * Posts the first datalen bytes of the message, and its tag. When it returns, the message may be changed, posted again or destroyed,
 * however long it is. It does not wait for the receiver unless much is under way (4 MiB, DECK_QUEUE). Messages of one clone arrive in
 * their order. DECK_EGONE, DECK_EPEERLOST, DECK_ETIMEDOUT: it was not posted; DECK_EUNDELIVERED tells of earlier ones.
 */
int deck_mbox_post(deck_mbox_t *mbox, deck_msg_t *msg);
int deck_mbox_post_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds);
/* Does not wait: DECK_EAGAIN. */
int deck_mbox_trypost(deck_mbox_t *mbox, deck_msg_t *msg);

/*
 * Waits until the owner has read what was posted through this clone. DECK_EGONE, DECK_EPEERLOST: it ended with messages unread.
 * DECK_EUNDELIVERED: with messages that still waited here; deck_errmsg() says how many. DECK_ETIMEDOUT.
 */
int deck_mbox_flush(deck_mbox_t *mbox);

/*
 * Retrieves the next message into `msg`: sets datalen, source and tag, and the cursor to the start. Waits for it. Clones are heard
 * fairly. DECK_EINVAL: the message is longer than msg->size. Nothing is lost: it is the next one for any further retrieve, and
 * deck_mbox_length() says how long it is. DECK_EPEERLOST once for each rank that is lost and had a clone; the mailbox can be used on.
 */
int deck_mbox_retrv(deck_mbox_t *mbox, deck_msg_t *msg);
int deck_mbox_retrv_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds);
/* Does not wait: DECK_EAGAIN. */
int deck_mbox_tryretrv(deck_mbox_t *mbox, deck_msg_t *msg);

/* Stores the length in bytes of the next message, which stays. Does not wait: DECK_EAGAIN if there is none. */
int deck_mbox_length(deck_mbox_t *mbox, unsigned long *len);

/* ------------------------------------------------------------------------------------------------- messages without a copy */

/* A message in memory of the library's, which its post gives away. */
typedef struct deck_buf {
    char *data;         /* `size` bytes, aligned to 64; NULL once it was given away or freed */
    unsigned long size; /* all of them are posted */
    unsigned int tag;
    unsigned long long deck_number;
} deck_buf_t;

/* A message that arrived, where it lies: on one host in its sender's memory. */
typedef struct deck_view {
    const char *data;     /* read-only; aligned to 8 bytes */
    unsigned long size;   /* bytes */
    unsigned long source; /* the rank that posted it */
    unsigned int tag;
    unsigned long long deck_number;
} deck_view_t;

/* Takes zeroed memory for a message (of DECK_ARENA bytes in all). May wait for receivers to give some back. DECK_ENOMEM. */
int deck_buf_alloc(deck_buf_t *buf, unsigned long size);

/* Gives it back without posting it. */
int deck_buf_free(deck_buf_t *buf);

/* Posts the buffer. It is gone then: `data` is NULL. If the post fails, the buffer is still there, unless deck_errmsg() says that it
 * is gone. */
int deck_mbox_post_buf(deck_mbox_t *mbox, deck_buf_t *buf);
int deck_mbox_post_buf_timeout(deck_mbox_t *mbox, deck_buf_t *buf, unsigned long microseconds);

/* Retrieves the next message as a view, however it was posted. Waits for it. Its memory is the sender's again when it is released. */
int deck_mbox_retrv_view(deck_mbox_t *mbox, deck_view_t *view);
int deck_mbox_retrv_view_timeout(deck_mbox_t *mbox, deck_view_t *view, unsigned long microseconds);

/* Ends a view, on any thread. */
int deck_view_release(deck_view_t *view);

/* -------------------------------------------------------------------------------------------------------- naming service */

/* Makes `len` bytes (64 KiB at most) known under a name, of 1 to 250 bytes, to all ranks. Bound again, the last one counts. */
int deck_naming_bind(const char *name, const void *value, unsigned long len);

/*
 * Fetches what is bound to a name: `*len` is the room at `value` before, the length of what is bound after. Waits until something is
 * bound, at most DECK_SETUP_TIMEOUT: DECK_ENOENT then. DECK_EINVAL: there is not enough room; *len says how much is needed.
 */
int deck_naming_fetch(const char *name, void *value, unsigned long *len);
/* Does not wait: DECK_ENOENT. */
int deck_naming_tryfetch(const char *name, void *value, unsigned long *len);

/* -------------------------------------------------------------------------------------------------------------- threads */

/* A thread of this rank: POSIX's, as pthread_create makes it. */
typedef struct deck_thread {
    unsigned long long deck_number;
} deck_thread_t;

/* Starts a thread that runs body(arg). DECK_EIO: the system starts none. */
int deck_thread_create(deck_thread_t *thread, void *(*body)(void *), void *arg);

/* Waits, without a deadline, until the thread has ended; stores what its body returned, unless `result` is NULL. Each thread is joined
 * once, and not by itself. */
int deck_thread_join(deck_thread_t *thread, void **result);

/* ----------------------------------------------------------------------------------------------------------- semaphores */

/* A counting semaphore that the ranks of this host, and all their threads, share. */
typedef struct deck_semaph {
    unsigned long long deck_number;
} deck_semaph_t;

/*
 * Makes it with this value, at most 1048576. Collective among the ranks of this host: waits until all have called it, with the same
 * name and value: DECK_EMISMATCH. The n-th call by a name on one rank meets the n-th of the others.
 */
int deck_semaph_create(deck_semaph_t *semaph, const char *name, unsigned long value);

/* This rank uses it no more. It is gone with its last user. */
int deck_semaph_destroy(deck_semaph_t *semaph);

/* Waits until the value is not 0, and takes one: DECK's P. If this rank dies, what it took stays taken. */
int deck_semaph_wait(deck_semaph_t *semaph);
int deck_semaph_wait_timeout(deck_semaph_t *semaph, unsigned long microseconds);
/* Does not wait: DECK_EAGAIN. */
int deck_semaph_trywait(deck_semaph_t *semaph);

/* Adds one: DECK's V. */
int deck_semaph_post(deck_semaph_t *semaph);

/* -------------------------------------------------------------------------------------------------------- shared memory */

/* Memory that the ranks of this host share. A thread that has its lock uses it; nobody else may. */
typedef struct deck_shmem {
    void *addr;         /* `size` bytes, aligned to 8, while this rank has the lock; NULL otherwise. May change from lock to lock */
    unsigned long size; /* bytes */
    unsigned long long deck_number;
} deck_shmem_t;

/* Makes it, zeroed. Collective among the ranks of this host, as deck_semaph_create, with the same size. DECK_EIO: the system has no
 * memory. */
int deck_shmem_create(deck_shmem_t *shmem, const char *name, unsigned long size);

/* This rank uses it no more; a lock that it has is given up. The memory is gone with its last user. */
int deck_shmem_destroy(deck_shmem_t *shmem);

/*
 * Takes the lock, and sets addr. One thread of all ranks has it at a time. Waits for it; DECK_ETIMEDOUT also where the same thread has
 * it already. DECK_EOWNERDEAD: whoever had it died, and the data may be half written; deck_shmem_recover() takes it all the same, and
 * after the unlock they count as whole.
 */
int deck_shmem_lock(deck_shmem_t *shmem);
int deck_shmem_lock_timeout(deck_shmem_t *shmem, unsigned long microseconds);
int deck_shmem_recover(deck_shmem_t *shmem);
/* Does not wait: DECK_EAGAIN. */
int deck_shmem_trylock(deck_shmem_t *shmem);

/* Gives the lock up, on any thread of this rank; addr is NULL then. */
int deck_shmem_unlock(deck_shmem_t *shmem);

/* Waits until all that share it have come here. One thread of a rank at a time. */
int deck_shmem_barrier(deck_shmem_t *shmem);

/* --------------------------------------------------------------------------------------------------------------- groups */

/*
 * Some ranks, or all, that do something together. Members are numbered from 0. Each call is collective: all members make it, in the
 * same order, with the same root, type and `n`; otherwise this call or a later one is DECK_EMISMATCH, and names the member and both calls.
 * (Compared are root, operator, type, and how many bytes the elements have.) A call
 * waits for the members that it needs. DECK_EPEERLOST: a member is lost. After an error that is no DECK_EINVAL the group cannot be used
 * any more (a barrier can be called again after DECK_ETIMEDOUT): each call of it has that code again, or DECK_EIO. The members that are
 * left make a new one.
 */
typedef struct deck_group {
    unsigned long long deck_number;
} deck_group_t;

/* Operators of reductions. Integers wrap around; floating-point numbers have the first four, and the minimum or maximum of NaN is NaN. */
#define DECK_SUM 1
#define DECK_PROD 2
#define DECK_MIN 3
#define DECK_MAX 4
#define DECK_BAND 5
#define DECK_BOR 6
#define DECK_BXOR 7

/* Makes the group of all ranks. Collective among all. */
int deck_group_all(deck_group_t *group);

/* Makes a group of these `n` ranks, in this order. Collective among them, with the same name and list. */
int deck_group_create(deck_group_t *group, const char *name, const unsigned long *ranks, unsigned long n);

/* Parts a group: members of the same colour are together in `part`, in the order of their keys. A negative colour: none, and `part` is
 * not made. */
int deck_group_split(deck_group_t *group, long colour, long key, deck_group_t *part);

int deck_group_destroy(deck_group_t *group);

/* How long this group's calls wait, instead of DECK_DEADLINE. Not collective. */
int deck_group_timeout(deck_group_t *group, unsigned long microseconds);

/* This rank's number in the group, and how many members it has. Not collective. */
int deck_group_node(deck_group_t *group, unsigned long *node);
int deck_group_numnodes(deck_group_t *group, unsigned long *numnodes);

/* Waits until all members have come here. */
int deck_group_barrier(deck_group_t *group);

/* All get the root's `n` elements. */
int deck_group_broadcast(deck_group_t *group, unsigned long root, int type, void *data, unsigned long n);

/* The root gets everybody's `n` elements in `all`, in the order of the members. `all` is not used elsewhere, and may be NULL. What is read
 * and what is written do not overlap, here and below. */
int deck_group_gather(deck_group_t *group, unsigned long root, int type, const void *mine, unsigned long n, void *all);

/* Each member gets its `n` elements of the root's `all`. `all` is not used elsewhere, and may be NULL. */
int deck_group_scatter(deck_group_t *group, unsigned long root, int type, const void *all, void *mine, unsigned long n);

/* Everybody gets everybody's `n` elements, in the order of the members. */
int deck_group_allgather(deck_group_t *group, int type, const void *mine, unsigned long n, void *all);

/* Member k gets the k-th `n` elements of everybody's `from`, in the order of the members. */
int deck_group_alltoall(deck_group_t *group, int type, const void *from, void *to, unsigned long n);

/* Combines the elements at the same places of all members. The root's `data` become the result; the others' stay. */
int deck_group_reduce(deck_group_t *group, unsigned long root, int type, int op, void *data, unsigned long n);

/* The same, and everybody's `data` become the result. */
int deck_group_allreduce(deck_group_t *group, int type, int op, void *data, unsigned long n);

/* The same, of members 0 to k at member k. */
int deck_group_scan(deck_group_t *group, int type, int op, void *data, unsigned long n);

#ifdef __cplusplus
}
#endif

#endif
