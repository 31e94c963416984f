/* A peer is stopped while its request is being answered: other connections of the same dispatcher are made meanwhile. */

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

/* The peer: another process, which connects and is then stopped. */
static void ask(int told) {
    DAT_CONN_QUAL whom;
    if (read(told, &whom, sizeof whom) != sizeof whom) _exit(0);
    open_all();
    make_ep(A);
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, whom, 60 * SECOND, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    pause();
}

static DAT_EVD_HANDLE both;

/* Accepts the next request, and waits for its connection. */
static DAT_EP_HANDLE accept_next(pid_t stop) {
    DAT_CR_HANDLE cr = NEXT(both, DAT_CONNECTION_REQUEST_EVENT).event_data.cr_arrival_event_data.cr_handle;
    DAT_EP_HANDLE handle;
    DAT_EVENT event;
    int status;
    if (stop != 0) {
        CHECK(kill(stop, SIGSTOP) == 0);
        CHECK(waitpid(stop, &status, WUNTRACED) == stop && WIFSTOPPED(status));
    }
    OK(dat_ep_create(ia, pz, recv_evd[B], request_evd[B], both, NULL, &handle));
    OK(dat_cr_accept(cr, handle, 0, NULL));
    event = NEXT(both, DAT_CONNECTION_EVENT_ESTABLISHED);
    CHECK(event.event_data.connect_event_data.ep_handle == handle);
    return handle;
}

int main(void) {
    DAT_LMR_TRIPLET from, into;
    DAT_CONN_QUAL whom;
    DAT_PSP_HANDLE service;
    int told[2], status;
    pid_t peer;
    CHECK(pipe(told) == 0);
    peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) {
        close(told[1]);
        ask(told[0]);
    }
    close(told[0]);
    /* This process opens first: the first one serves the table of names, and must not be the stopped one. */
    open_all();
    OK(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG, &both));
    OK(dat_psp_create_any(ia, &whom, both, DAT_PSP_CONSUMER_FLAG, &service));
    CHECK(write(told[1], &whom, sizeof whom) == sizeof whom);
    accept_next(peer);
    make_ep(A);
    OK(dat_ep_connect(ep[A], ia_attr.ia_address_ptr, whom, 20 * SECOND, 0, NULL, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
    ep[B] = accept_next(0);
    NEXT(connect_evd[A], DAT_CONNECTION_EVENT_ESTABLISHED);
    into = piece(B, 0, 8);
    from = piece(A, 0, 8);
    OK(dat_ep_post_recv(ep[B], 1, &into, cookie(1), 0));
    OK(dat_ep_post_send(ep[A], 1, &from, cookie(2), DAT_COMPLETION_DEFAULT_FLAG));
    DONE(recv_evd[B], 1, DAT_DTO_SUCCESS);
    CHECK(kill(peer, SIGKILL) == 0);
    CHECK(waitpid(peer, &status, 0) == peer);
    close_all();
    return 0;
}
