/*
 * deck.h: DECK, the Distributed Execution and Communication Kernel, by µDECK.
 *
 * A job is several processes (ranks, DECK's nodes), which `deckrun -n 4 -- ./program` starts. A program that is started alone is a
 * job of one rank. A rank creates named mailboxes, and only it retrieves from them. Any rank makes a clone of a mailbox and posts
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
 * Results. A call returns DECK_OK (0), or a negative code. A failed call has changed nothing, unless its comment says so.
 * deck_strerror() returns the code's text, deck_errmsg() the full text of this thread's last error: what was tried, with whom, and
 * what to do. Comments name the code for each case: "DECK_ENOENT: no such name" means that the call returns DECK_ENOENT then.
 *
 * Waiting. Calls that may wait say so. They wait at most the time in the environment variable DECK_DEADLINE (600 s unless set), or
 * the given number of microseconds, and return DECK_ETIMEDOUT then. The death of another rank is DECK_EPEERLOST, never a hang.
 *
 * Threads. All calls may be made from several threads. Several threads may retrieve from one mailbox at the same time, each with its
 * own time limit; posts through one clone are made one after the other. Several threads may use a deck_semaph_t or a deck_shmem_t at
 * the same time. A deck_msg_t, or any other structure except a deck_mbox_t, must be used by one call at a time. No structure may be
 * created or ended while another call uses it. The program must ensure both. A thread must not be cancelled (pthread_cancel) in a
 * call, and a signal handler must neither leave a call by longjmp nor call DECK itself.
 *
 * Structures. The program declares deck_msg_t, deck_mbox_t and the others, and passes pointers to them. They are made by a create,
 * clone, alloc or retrv_view, and ended once. A structure that was not made, or has been ended, is DECK_EINVAL. The fields named
 * deck_... belong to the library. A copy of a structure refers to the same object.
 *
 * C99 or later, and C++. Link with `deckcc`, or with the flags that `pkg-config --cflags --libs udeck` prints.
 */
#ifndef DECK_H
#define DECK_H

/* DECK programs in the literature expect strcpy and similar functions from this header. */
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------------ results */

#define DECK_OK 0
#define DECK_EINVAL (-1)      /* invalid argument: NULL, out of range, not created, destroyed; a message without enough room */
#define DECK_ENOMEM (-2)      /* no memory */
#define DECK_ETIMEDOUT (-3)   /* the time limit ended; deck_errmsg() says which rank was waited for */
#define DECK_EAGAIN (-4)      /* a `try` call: nothing is available now, or the call would have to wait */
#define DECK_EPEERLOST (-5)   /* another rank is lost */
#define DECK_EGONE (-6)       /* the mailbox was destroyed, or no rank is left that could answer */
#define DECK_ENOENT (-7)      /* no such name */
#define DECK_EEXIST (-8)      /* the name is taken */
#define DECK_ESTATE (-9)      /* called before deck_init or after deck_done, or one of these two was called twice */
#define DECK_ENOTSUP (-10)    /* not possible here, or no transport reaches that rank */
#define DECK_EMISMATCH (-11)  /* ranks disagree: on a mailbox's type, or on a collective call */
#define DECK_EOWNERDEAD (-12) /* the lock's holder died: the data may be half written */
#define DECK_EUNDELIVERED (-13) /* messages that were posted earlier were not delivered */
#define DECK_EIO (-14)        /* failure of the launcher, the network or the system */
#define DECK_EINTERNAL (-15)  /* a defect of the library */

/* Returns the constant text of a code; never NULL. */
const char *deck_strerror(int code);

/* Returns the text of this thread's last error; "" if there was none, or the thread is about to end (in functions of atexit). Valid
 * until the next error of this thread. */
const char *deck_errmsg(void);

/* ------------------------------------------------------------------------------------------------------------- the job */

/*
 * Joins the job: this process is a rank from now on. Once per process. `argc` and `argv` may be NULL; they are not changed. Waits for
 * the launcher. A forked child is not a rank: calls in the child that concern the job are DECK_EIO.
 */
int deck_init(int *argc, char ***argv);

/*
 * Ends this rank: delivers posted messages, for which their receivers may have to retrieve, and tells the launcher. All structures
 * end with it, except messages (deck_msg_t), which stay until they are destroyed, and threads, which can be joined. A process that
 * ends without this call is lost to the other ranks. DECK_EUNDELIVERED, DECK_ETIMEDOUT: this rank has ended, and deck_errmsg() says
 * which messages that still waited here were lost. If an owner ends with other messages unread, only deck_mbox_flush reports it.
 * Waiting calls of other threads end with DECK_ESTATE. If one does not end within 5 s, deck_done returns DECK_ESTATE, and can be
 * called again.
 */
int deck_done(void);

/* Returns this rank's number, from 0; all bits set if there is no job. */
unsigned long deck_node(void);

/* Returns the number of ranks of the job; 0 if there is no job. */
unsigned long deck_numnodes(void);

/* Waits until all ranks have entered this barrier. After DECK_ETIMEDOUT the next call waits further at the same barrier. */
int deck_barrier(void);
int deck_barrier_timeout(unsigned long microseconds);

/* Ends the whole job, with this exit code (1 to 255; others count as 1), and this process. The other ranks are told `why`, which
 * may be NULL. Returns on errors only. */
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
    char *cursor;          /* next byte to unpack, between buf and buf + datalen; the program may move it */
    unsigned long source;  /* the rank that posted it, after a retrieve */
    unsigned int tag;      /* a number that travels with the message; 0 in a new message */
    unsigned long long deck_number;
} deck_msg_t;

/* Makes an empty message with `size` bytes of zeroed memory. DECK_ENOMEM: the system has none. */
int deck_msg_create(deck_msg_t *msg, unsigned long size);

/* Frees the message's memory. It may also be called after deck_done. */
int deck_msg_destroy(deck_msg_t *msg);

/*
 * Appends `n` elements of `type` behind the packed bytes (at buf + datalen). The elements keep C's representation, without headers
 * and gaps, so a message needs exactly the bytes of its elements. Type DECK_MSG: `n` messages, each with 8 bytes of length before it.
 * DECK_EINVAL: there is no room, and nothing is packed.
 */
int deck_msg_pack(deck_msg_t *msg, int type, const void *datum, unsigned long n);

/*
 * Takes the next `n` elements, from cursor on, in the order and with the types of packing. Type DECK_MSG: into `n` created messages;
 * if one has too little room, the call is DECK_EINVAL, and the cursor stays before it. DECK_EINVAL: fewer elements are left.
 */
int deck_msg_unpack(deck_msg_t *msg, int type, void *datum, unsigned long n);

/* Empties the message: datalen becomes 0, and the cursor goes to the start. */
int deck_msg_clear(deck_msg_t *msg);

/* Moves the cursor to the start, to unpack again. */
int deck_msg_reset(deck_msg_t *msg);

/* ----------------------------------------------------------------------------------------------------------- mailboxes */

/* Name of a mailbox, with the type that the literature gives it. */
typedef const char *deck_name_t;

/* A mailbox of this rank, or a clone of a mailbox. */
typedef struct deck_mbox {
    unsigned long long deck_number;
} deck_mbox_t;

/*
 * Creates a mailbox, from which this rank retrieves. Names have 1 to 200 bytes of UTF-8 without control characters, and are unique
 * in the job. DECK_EEXIST: the name is taken, and deck_errmsg() says by which rank. In Rust it is a mailbox of u8.
 */
int deck_mbox_create(deck_mbox_t *mbox, deck_name_t name);

/*
 * Makes a clone of the mailbox of that name, to post to it. Waits until the mailbox exists, at most DECK_SETUP_TIMEOUT (30 s unless
 * set), and returns DECK_ENOENT then. DECK_EPEERLOST or DECK_EGONE: the rank that made the mailbox has ended; the call does not wait.
 * A mailbox may have several clones, also by its owner; it is best if each thread that posts has its own.
 */
int deck_mbox_clone(deck_mbox_t *mbox, deck_name_t name);
int deck_mbox_clone_timeout(deck_mbox_t *mbox, deck_name_t name, unsigned long microseconds);

/* Destroys a mailbox or a clone. After a mailbox's end, posts through its clones are DECK_EGONE as soon as they learn of it, and other
 * threads that wait at it get DECK_EINVAL. Messages posted through a clone still arrive after its end. The call waits for a post of
 * another thread through the clone, at most 700 s. */
int deck_mbox_destroy(deck_mbox_t *mbox);

/*
 * Posts the first datalen bytes of the message, and its tag. When the call returns, the message may be changed, posted again or
 * destroyed, whatever its length. The call waits for the receiver only if too many bytes are under way (4 MiB, DECK_QUEUE). Messages
 * of one clone arrive in order. DECK_EGONE, DECK_EPEERLOST, DECK_ETIMEDOUT: the message was not posted. DECK_EUNDELIVERED: earlier
 * messages were not delivered.
 */
int deck_mbox_post(deck_mbox_t *mbox, deck_msg_t *msg);
int deck_mbox_post_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds);
/* Does not wait: returns DECK_EAGAIN instead. */
int deck_mbox_trypost(deck_mbox_t *mbox, deck_msg_t *msg);

/*
 * Waits until the owner has read all messages that were posted through this clone. DECK_EGONE, DECK_EPEERLOST: the owner ended with
 * messages unread. DECK_EUNDELIVERED: it ended while messages still waited here; deck_errmsg() says how many. DECK_ETIMEDOUT.
 */
int deck_mbox_flush(deck_mbox_t *mbox);

/*
 * Retrieves the next message into `msg`: sets datalen, source and tag, and the cursor to the start. Waits for it. Clones are polled
 * fairly. DECK_EINVAL: the message is longer than msg->size. Nothing is lost: it stays the next message for any further retrieve, and
 * deck_mbox_length() stores its length. DECK_EPEERLOST: once for each lost rank that had a clone; the mailbox stays usable.
 */
int deck_mbox_retrv(deck_mbox_t *mbox, deck_msg_t *msg);
int deck_mbox_retrv_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds);
/* Does not wait: returns DECK_EAGAIN instead. */
int deck_mbox_tryretrv(deck_mbox_t *mbox, deck_msg_t *msg);

/* Stores the length in bytes of the next message, which stays. Does not wait: DECK_EAGAIN if there is none. */
int deck_mbox_length(deck_mbox_t *mbox, unsigned long *len);

/* ------------------------------------------------------------------------------------------------- messages without a copy */

/* A message in memory of the library. Posting it gives the memory away. */
typedef struct deck_buf {
    char *data;         /* `size` bytes, aligned to 64; NULL after the buffer was posted or freed */
    unsigned long size; /* bytes; all of them are posted */
    unsigned int tag;
    unsigned long long deck_number;
} deck_buf_t;

/* An arrived message in place: on one host, in its sender's memory. */
typedef struct deck_view {
    const char *data;     /* read-only; aligned to 8 bytes */
    unsigned long size;   /* bytes */
    unsigned long source; /* the rank that posted it */
    unsigned int tag;
    unsigned long long deck_number;
} deck_view_t;

/* Allocates zeroed memory for a message (DECK_ARENA bytes in all). May wait for receivers to give memory back. DECK_ENOMEM. */
int deck_buf_alloc(deck_buf_t *buf, unsigned long size);

/* Frees the buffer without posting it. */
int deck_buf_free(deck_buf_t *buf);

/* Posts the buffer and ends it: `data` becomes NULL. If the post fails, the buffer stays, unless deck_errmsg() says that it is
 * gone. */
int deck_mbox_post_buf(deck_mbox_t *mbox, deck_buf_t *buf);
int deck_mbox_post_buf_timeout(deck_mbox_t *mbox, deck_buf_t *buf, unsigned long microseconds);

/* Retrieves the next message as a view, however it was posted. Waits for it. Releasing the view returns the memory to the sender. */
int deck_mbox_retrv_view(deck_mbox_t *mbox, deck_view_t *view);
int deck_mbox_retrv_view_timeout(deck_mbox_t *mbox, deck_view_t *view, unsigned long microseconds);

/* Ends a view, on any thread. */
int deck_view_release(deck_view_t *view);

/* -------------------------------------------------------------------------------------------------------- naming service */

/* Binds `len` bytes (64 KiB at most) to a name of 1 to 250 bytes, for all ranks. If a name is bound again, the last value counts. */
int deck_naming_bind(const char *name, const void *value, unsigned long len);

/*
 * Fetches the value that is bound to a name: `*len` is the room at `value` before the call, and the value's length after it. Waits
 * until a value is bound, at most DECK_SETUP_TIMEOUT, and returns DECK_ENOENT then. DECK_EINVAL: the room is too small; *len is the
 * length that is needed.
 */
int deck_naming_fetch(const char *name, void *value, unsigned long *len);
/* Does not wait: returns DECK_ENOENT instead. */
int deck_naming_tryfetch(const char *name, void *value, unsigned long *len);

/* -------------------------------------------------------------------------------------------------------------- threads */

/* A POSIX thread of this rank, as made by pthread_create. */
typedef struct deck_thread {
    unsigned long long deck_number;
} deck_thread_t;

/* Starts a thread that runs body(arg). DECK_EIO: the system cannot start one. */
int deck_thread_create(deck_thread_t *thread, void *(*body)(void *), void *arg);

/* Waits, without a deadline, until the thread has ended, and stores the value that its body returned, unless `result` is NULL. A
 * thread is joined once, and cannot join itself. */
int deck_thread_join(deck_thread_t *thread, void **result);

/* ----------------------------------------------------------------------------------------------------------- semaphores */

/* A counting semaphore that the ranks of this host, and all their threads, share. */
typedef struct deck_semaph {
    unsigned long long deck_number;
} deck_semaph_t;

/*
 * Makes a semaphore with this value, at most 1048576. Collective among the ranks of this host: waits until all have called it with the
 * same name and value. DECK_EMISMATCH: they differ. The n-th call with a name on one rank meets the n-th call of the others.
 */
int deck_semaph_create(deck_semaph_t *semaph, const char *name, unsigned long value);

/* Ends this rank's use of the semaphore, which ends with its last user. */
int deck_semaph_destroy(deck_semaph_t *semaph);

/* Waits until the value is above 0, and decrements it (DECK's P). If this rank dies, its decrements remain. */
int deck_semaph_wait(deck_semaph_t *semaph);
int deck_semaph_wait_timeout(deck_semaph_t *semaph, unsigned long microseconds);
/* Does not wait: returns DECK_EAGAIN instead. */
int deck_semaph_trywait(deck_semaph_t *semaph);

/* Increments the value (DECK's V). */
int deck_semaph_post(deck_semaph_t *semaph);

/* -------------------------------------------------------------------------------------------------------- shared memory */

/* Memory that the ranks of this host share. Only the thread that holds its lock may use it. */
typedef struct deck_shmem {
    void *addr;         /* `size` bytes, aligned to 8, while this rank holds the lock; otherwise NULL. May differ after each lock */
    unsigned long size; /* bytes */
    unsigned long long deck_number;
} deck_shmem_t;

/* Makes zeroed shared memory. Collective among the ranks of this host, as deck_semaph_create, with the same name and size. DECK_EIO:
 * the system has no memory. */
int deck_shmem_create(deck_shmem_t *shmem, const char *name, unsigned long size);

/* Ends this rank's use of the memory, and releases its lock. The memory is freed with its last user. */
int deck_shmem_destroy(deck_shmem_t *shmem);

/*
 * Takes the lock, and sets addr. One thread of all ranks holds it at a time. Waits for it. DECK_ETIMEDOUT: also if the same thread
 * already holds it. DECK_EOWNERDEAD: the lock's holder died, and the data may be half written. deck_shmem_recover() takes the lock
 * nevertheless, and after its unlock the data count as whole.
 */
int deck_shmem_lock(deck_shmem_t *shmem);
int deck_shmem_lock_timeout(deck_shmem_t *shmem, unsigned long microseconds);
int deck_shmem_recover(deck_shmem_t *shmem);
/* Does not wait: returns DECK_EAGAIN instead. */
int deck_shmem_trylock(deck_shmem_t *shmem);

/* Releases the lock, on any thread of this rank; addr becomes NULL. */
int deck_shmem_unlock(deck_shmem_t *shmem);

/* Waits until all ranks that share the memory have called it. One thread of a rank may wait at a time. */
int deck_shmem_barrier(deck_shmem_t *shmem);

/* --------------------------------------------------------------------------------------------------------------- groups */

/*
 * Ranks that make collective calls together: some of the job's, or all. Members are numbered from 0. All members make each call, in the
 * same order, with the same root, type and `n`; otherwise this call or a later one is DECK_EMISMATCH, and names the member and both
 * calls. (The root, the operator, the type, and the elements' size in bytes are compared.) A call waits for the members that it needs.
 * DECK_EPEERLOST: a member is lost. After an error other than DECK_EINVAL the group is unusable: each further call returns this code
 * again, or DECK_EIO. (After DECK_ETIMEDOUT a barrier can be called again.) The remaining members can make a new group.
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

/* Makes the group of all ranks. Collective among all ranks. */
int deck_group_all(deck_group_t *group);

/* Makes a group of `n` ranks, in the order of the list. Collective among these ranks, with the same name and list. */
int deck_group_create(deck_group_t *group, const char *name, const unsigned long *ranks, unsigned long n);

/* Splits a group: members of the same colour form the group `part`, in the order of their keys. With a negative colour, `part` is not
 * made. */
int deck_group_split(deck_group_t *group, long colour, long key, deck_group_t *part);

/* After the death of a rank: makes a group of all ranks that have not ended. All of them make the call, and get the same group, whoever
 * dies meanwhile. If a member dies afterwards, the group's calls return DECK_EPEERLOST at all members, which destroy the group and call
 * this again. DECK_ETIMEDOUT names the ranks that have not come; call again. */
int deck_group_survivors(deck_group_t *group);

/* Clears in `flags` the bits that are not set at all ranks that have not ended, and stores the number of these ranks. All of them make
 * the call, and get the same. A collective call in which a rank dies may succeed at some members only: this call, with 1 or 0 for a step's
 * success, tells whether all can go on. Errors: as deck_group_survivors, and `flags` are unchanged. */
int deck_agree(unsigned long long *flags, unsigned long *numnodes);

/* Ends this rank's use of the group. Not collective. */
int deck_group_destroy(deck_group_t *group);

/* Sets the time limit of this group's calls, instead of DECK_DEADLINE. Not collective. */
int deck_group_timeout(deck_group_t *group, unsigned long microseconds);

/* Store this rank's number in the group, and the number of members. Not collective. */
int deck_group_node(deck_group_t *group, unsigned long *node);
int deck_group_numnodes(deck_group_t *group, unsigned long *numnodes);

/* Waits until all members have entered this barrier. */
int deck_group_barrier(deck_group_t *group);

/* Copies the root's `n` elements to all members. */
int deck_group_broadcast(deck_group_t *group, unsigned long root, int type, void *data, unsigned long n);

/* Collects the `n` elements of every member in `all` at the root, in the order of the members. At other members `all` is not used, and
 * may be NULL. Memory that is read and memory that is written must not overlap, here and below. */
int deck_group_gather(deck_group_t *group, unsigned long root, int type, const void *mine, unsigned long n, void *all);

/* Gives each member its `n` elements of the root's `all`. At other members `all` is not used, and may be NULL. */
int deck_group_scatter(deck_group_t *group, unsigned long root, int type, const void *all, void *mine, unsigned long n);

/* Collects the `n` elements of every member at every member, in the order of the members. */
int deck_group_allgather(deck_group_t *group, int type, const void *mine, unsigned long n, void *all);

/* Gives member k the k-th `n` elements of every member's `from`, in the order of the members. */
int deck_group_alltoall(deck_group_t *group, int type, const void *from, void *to, unsigned long n);

/* Combines the elements at the same index of all members. The result replaces the root's `data`; the others' stay as they are. */
int deck_group_reduce(deck_group_t *group, unsigned long root, int type, int op, void *data, unsigned long n);

/* As deck_group_reduce, but the result replaces every member's `data`. */
int deck_group_allreduce(deck_group_t *group, int type, int op, void *data, unsigned long n);

/* As deck_group_allreduce, but member k gets the combination of members 0 to k. */
int deck_group_scan(deck_group_t *group, int type, int op, void *data, unsigned long n);

/* --------------------------------------------------------------------------------------------------------------- traces */

/*
 * Begins a span of the program's own, which a trace of the job (DECK_TRACE) shows beside the messages of this thread. Spans may lie
 * inside each other, and each thread has its own. Of a name, the trace shows the first 128 bytes, and a replacement for bytes that are
 * no UTF-8; for an empty one "unnamed span"; beyond 1024 names of a process "other spans". More than 64 spans inside each other are
 * counted, but not shown. Without a trace the calls do nothing else.
 */
int deck_span_begin(const char *name);

/* Ends the span that this thread began last and has not ended. DECK_EINVAL: there is none. A span that is never ended is not shown. */
int deck_span_end(void);

#ifdef __cplusplus
}
#endif

#endif
