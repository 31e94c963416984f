/* Event dispatchers, software events, thresholds, and consumer notification objects. */

#include <pthread.h>
#include <unistd.h>

#include "test.h"

static DAT_EVENT software(int number) {
    DAT_EVENT event;
    memset(&event, 0, sizeof event);
    event.event_number = DAT_SOFTWARE_EVENT;
    event.event_data.software_event_data.pointer = (void *)(uintptr_t)number;
    return event;
}

static void post(DAT_EVD_HANDLE evd, int number) {
    DAT_EVENT event = software(number);
    OK(dat_evd_post_se(evd, &event));
}

static void *post_later(void *evd) {
    usleep(50000);
    post(evd, 3);
    return NULL;
}

static void counts(DAT_EVD_HANDLE evd) {
    DAT_EVENT event;
    DAT_COUNT more;
    pthread_t thread;
    FAILS(dat_evd_wait(evd, 1000, 1, &event, &more), DAT_TIMEOUT_EXPIRED, 0);
    FAILS(dat_evd_wait(evd, 1000, 0, &event, &more), DAT_INVALID_PARAMETER, DAT_INVALID_ARG3);
    post(evd, 1);
    post(evd, 2);
    FAILS(dat_evd_wait(evd, 1000, 3, &event, &more), DAT_TIMEOUT_EXPIRED, 0);
    CHECK(more == 2);
    pthread_create(&thread, NULL, post_later, evd);
    OK(dat_evd_wait(evd, 20 * SECOND, 3, &event, &more));
    CHECK(event.event_data.software_event_data.pointer == (void *)1 && more == 2);
    pthread_join(thread, NULL);
    CHECK(NEXT(evd, DAT_SOFTWARE_EVENT).event_data.software_event_data.pointer == (void *)2);
    CHECK(NEXT(evd, DAT_SOFTWARE_EVENT).event_data.software_event_data.pointer == (void *)3);
    NOTHING(evd);
}

static void *set_unwaitable_later(void *evd) {
    usleep(50000);
    OK(dat_evd_set_unwaitable(evd));
    return NULL;
}

static void ends_waits(DAT_EVD_HANDLE evd) {
    DAT_EVENT event;
    DAT_COUNT more;
    pthread_t thread;
    pthread_create(&thread, NULL, set_unwaitable_later, evd);
    FAILS(dat_evd_wait(evd, 20 * SECOND, 1, &event, &more), DAT_ABORT, 0);
    pthread_join(thread, NULL);
    FAILS(dat_evd_wait(evd, SECOND, 1, &event, &more), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE);
    OK(dat_evd_clear_unwaitable(evd));
}

static void notifies(DAT_EVD_HANDLE evd) {
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE told;
    OK(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
    FAILS(dat_cno_wait(cno, 1000, &told), DAT_TIMEOUT_EXPIRED, 0);
    OK(dat_evd_modify_cno(evd, cno));
    FAILS(dat_cno_free(cno), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE);
    post(evd, 4);
    OK(dat_cno_wait(cno, 20 * SECOND, &told));
    CHECK(told == evd);
    OK(dat_evd_disable(evd));
    post(evd, 5);
    FAILS(dat_cno_wait(cno, 1000, &told), DAT_TIMEOUT_EXPIRED, 0);
    OK(dat_evd_enable(evd));
    OK(dat_cno_wait(cno, 20 * SECOND, &told));
    NEXT(evd, DAT_SOFTWARE_EVENT);
    NEXT(evd, DAT_SOFTWARE_EVENT);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

static void is_readable(DAT_EVD_HANDLE evd) {
    DAT_CNO_HANDLE cno;
    DAT_EVD_HANDLE told;
    DAT_FD fd;
    struct pollfd poll_fd;
    OK(DAT_CNO_FD_CREATE(inner, &fd, &cno));
    OK(dat_evd_modify_cno(evd, cno));
    poll_fd.fd = fd;
    poll_fd.events = POLLIN;
    CHECK(poll(&poll_fd, 1, 0) == 0);
    post(evd, 6);
    CHECK(poll(&poll_fd, 1, 20000) == 1);
    OK(DAT_CNO_TRIGGER(cno, &told));
    CHECK(told == evd && poll(&poll_fd, 1, 0) == 0);
    NEXT(evd, DAT_SOFTWARE_EVENT);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

static DAT_EVD_HANDLE agent_was_told;

static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd) {
    __atomic_store_n((DAT_EVD_HANDLE *)data, evd, __ATOMIC_RELEASE);
}

static void calls_an_agent(DAT_EVD_HANDLE evd) {
    DAT_CNO_HANDLE cno;
    DAT_OS_WAIT_PROXY_AGENT proxy = {&agent_was_told, agent};
    int looks;
    OK(dat_cno_create(ia, proxy, &cno));
    OK(dat_evd_modify_cno(evd, cno));
    post(evd, 7);
    for (looks = 0; looks < 20000 && !__atomic_load_n(&agent_was_told, __ATOMIC_ACQUIRE); looks++) usleep(1000);
    CHECK(agent_was_told == evd);
    NEXT(evd, DAT_SOFTWARE_EVENT);
    OK(dat_evd_modify_cno(evd, DAT_HANDLE_NULL));
    OK(dat_cno_free(cno));
}

static void overflows(void) {
    DAT_EVD_HANDLE evd;
    DAT_EVD_PARAM param;
    DAT_EVENT event = software(8);
    DAT_COUNT posted = 0;
    OK(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    OK(dat_evd_query(evd, DAT_EVD_FIELD_ALL, &param));
    CHECK(param.evd_qlen >= 4);
    while (dat_evd_post_se(evd, &event) == DAT_SUCCESS) posted++;
    CHECK(posted == param.evd_qlen);
    FAILS(dat_evd_post_se(evd, &event), DAT_QUEUE_FULL, 0);
    OK(dat_evd_free(evd));
}

int main(void) {
    DAT_EVD_HANDLE evd;
    open_all();
    OK(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd));
    counts(evd);
    ends_waits(evd);
    notifies(evd);
    is_readable(evd);
    calls_an_agent(evd);
    overflows();
    OK(dat_evd_free(evd));
    close_all();
    return 0;
}
