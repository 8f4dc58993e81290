/* Manages the turns of each GPU, with or without an arbiter. The keeper never calls the driver. */
#define _GNU_SOURCE
#include "timeslice/keeper.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "base/fork_handlers.h"
#include "timeslice/account.h"
#include "timeslice/arbiter_link.h"
#include "timeslice/captures.h"
#include "timeslice/drainer.h"
#include "timeslice/gpu.h"
#include "timeslice/share_file.h"
#include "timeslice/threadless.h"
#include "timeslice/threads.h"

#define CONNECT_EVERY    (250 * TIMESLICE_MS)
#define ANSWER_WITHIN    (1000 * TIMESLICE_MS) /* an arbiter that does not answer for this time counts as ended */
#define ASK_AGAIN        (250 * TIMESLICE_MS)
#define GIVE_BACK_IDLE   (1 * TIMESLICE_MS)
#define LOOK_EVERY       (2 * TIMESLICE_MS) /* used if the program has closed the sockets that wake the keeper */
#define GIVE_UP_DRAINING (2000 * TIMESLICE_MS)
#define NEVER            UINT64_MAX

static struct arbiter_link arbiter = {.socket = GPUTILE_GUARDED_FD_NONE};
static uint64_t connect_at;
static bool alone; /* the last attempt to connect found no arbiter */

static uint64_t share_of(const struct timeslice_gpu *gpu) { return __atomic_load_n(&gpu->share, __ATOMIC_RELAXED); }
static unsigned number_of(const struct timeslice_gpu *gpu) { return (unsigned)(gpu - timeslice_process.gpu); }
static bool wanted(struct timeslice_gpu *gpu) { return __atomic_load_n(&gpu->waiting, __ATOMIC_SEQ_CST) > 0; }

static uint64_t idle_for(struct timeslice_gpu *gpu, uint64_t now) {
    uint64_t since = __atomic_load_n(&gpu->idle_since, __ATOMIC_ACQUIRE);
    return since && since < now ? now - since : 0;
}

/* -- turns */

static void begin(struct timeslice_gpu *gpu, uint64_t length, uint64_t now) {
    gpu->state = TIMESLICE_HELD, gpu->since = now;
    __atomic_store_n(&gpu->idle, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->idle_since, length ? now : 0, __ATOMIC_RELEASE);
    if (!timeslice_watch(gpu, length != 0)) timeslice_process.threadless = true;
    timeslice_set_gate(gpu, length ? TIMESLICE_METERED : TIMESLICE_WIDE, now + length);
}

/* Set or change the end of a turn. */
static void limit(struct timeslice_gpu *gpu, uint64_t end) {
    if (!timeslice_watch(gpu, true)) timeslice_process.threadless = true;
    timeslice_set_gate(gpu, TIMESLICE_METERED, end);
}

static void shut(struct timeslice_gpu *gpu, uint64_t now) {
    timeslice_set_gate(gpu, TIMESLICE_SHUT, 0);
    gpu->state = TIMESLICE_ENDING, gpu->due = gpu->ending_since = now;
}

/* The arbiter has received that this process wants the GPU, and must answer soon. */
static uint64_t ask(struct timeslice_gpu *gpu, uint64_t now) {
    arbiter.heard = now;
    gpu->state = TIMESLICE_ASKED;
    return gpu->due = now + ASK_AGAIN;
}

static void finish(struct timeslice_gpu *gpu, uint64_t now) {
    uint64_t spent = now - gpu->since, idle = __atomic_load_n(&gpu->idle, __ATOMIC_RELAXED) + idle_for(gpu, now);
    bool again = wanted(gpu);
    spent -= idle < spent ? idle : spent;
    timeslice_watch(gpu, false);
    gpu->state = TIMESLICE_NONE;
    if (!gpu->local) {
        timeslice_account_note(gpu, spent, now);
        arbiter_link_send(&arbiter, ARBITER_DONE, number_of(gpu), gpu->number, spent, again);
        if (again) ask(gpu, now);
        return;
    }
    gpu->local = false;
    if (gpu->paid) timeslice_account_correct(gpu, spent, &gpu->paid);
    gpu->paid = 0;
}

/* Without an arbiter, begin a turn when the container's account permits one. */
static void begin_alone(struct timeslice_gpu *gpu, uint64_t now) {
    uint64_t at, length = share_of(gpu) < TIMESLICE_WHOLE ? timeslice_quantum() : 0;
    if (length && !timeslice_account_begin(gpu, length, now, &gpu->paid, &at)) {
        gpu->state = TIMESLICE_PAUSE, gpu->due = at;
        return;
    }
    gpu->local = true;
    begin(gpu, length, now);
}

/* Charge a turn that lasts longer than estimated while it continues. */
static void pay_on(struct timeslice_gpu *gpu, uint64_t now) {
    uint64_t spent = now - gpu->since + timeslice_quantum() / 2, before = gpu->paid;
    if (!gpu->local || !before) return;
    if (spent * TIMESLICE_WHOLE / share_of(gpu) > before) timeslice_account_correct(gpu, spent, &gpu->paid);
}

static bool is_done(struct timeslice_gpu *gpu, uint64_t now) {
    if (timeslice_drained(gpu) || now - gpu->ending_since >= GIVE_UP_DRAINING) return true;
    /* During a capture this is unknown. The work that was submitted before lasts for at most a part of a quantum. */
    return timeslice_capturing() && now - gpu->ending_since >= timeslice_quantum() / 4;
}

/* Process a GPU. Returns when to process the GPU again. */
static uint64_t step(struct timeslice_gpu *gpu, uint64_t now) {
    uint64_t end;
    switch (gpu->state) {
    case TIMESLICE_PAUSE:
        if (now < gpu->due && !arbiter.agreed) return gpu->due;
        gpu->state = TIMESLICE_NONE;
        return now;
    case TIMESLICE_NONE:
        if (!wanted(gpu) || (!alone && !arbiter.agreed)) return NEVER;
        if (arbiter.agreed) {
            arbiter_link_send(&arbiter, ARBITER_WANT, number_of(gpu), 0, 0, 0);
            return ask(gpu, now);
        }
        begin_alone(gpu, now);
        return now;
    case TIMESLICE_ASKED:
        if (now < gpu->due) return gpu->due;
        arbiter_link_send(&arbiter, ARBITER_WANT, number_of(gpu), 0, 0, 0);
        return gpu->due = now + ASK_AGAIN;
    case TIMESLICE_HELD:
        if (__atomic_load_n(&gpu->gate, __ATOMIC_RELAXED) == TIMESLICE_WIDE) return NEVER;
        end = __atomic_load_n(&gpu->end, __ATOMIC_RELAXED);
        if (now < end && (wanted(gpu) || idle_for(gpu, now) < GIVE_BACK_IDLE))
            return now + GIVE_BACK_IDLE < end ? now + GIVE_BACK_IDLE : end;
        shut(gpu, now);
        return now;
    case TIMESLICE_ENDING:
        if (is_done(gpu, now)) return finish(gpu, now), now;
        if (now < gpu->due) return gpu->due;
        pay_on(gpu, now);
        if (!gpu->local) arbiter_link_send(&arbiter, ARBITER_BUSY, number_of(gpu), gpu->number, 0, 0);
        return gpu->due = now + timeslice_quantum() / 2;
    }
    return NEVER;
}

/* -- the arbiter */

static void read_shares(void) {
    uint64_t shares[GPUTILE_MOST_GPUS], found;
    timeslice_share_read(timeslice_process.socket_path, timeslice_process.count, timeslice_process.uuids, shares,
                         &found);
    for (unsigned i = 0; i < timeslice_process.count; i++)
        __atomic_store_n(&timeslice_process.gpu[i].share, shares[i], __ATOMIC_RELAXED);
    __atomic_store_n(&timeslice_process.quantum, found, __ATOMIC_RELAXED);
}

/* The arbiter has started or ended. End the turns that began under the other rule. */
static void change_rule(uint64_t now) {
    for (unsigned i = 0; i < timeslice_process.count; i++) {
        struct timeslice_gpu *gpu = &timeslice_process.gpu[i];
        bool wide = __atomic_load_n(&gpu->gate, __ATOMIC_RELAXED) == TIMESLICE_WIDE;
        if (gpu->state == TIMESLICE_ASKED) gpu->state = TIMESLICE_NONE;
        if (gpu->state == TIMESLICE_HELD || gpu->state == TIMESLICE_ENDING) {
            /* Do not charge the time before, because a turn without end may have lasted for hours. */
            if (!gpu->local) gpu->since = now, __atomic_store_n(&gpu->idle, 0, __ATOMIC_RELAXED);
            gpu->local = true;
        }
        if (gpu->state == TIMESLICE_HELD && wide && (arbiter.agreed || share_of(gpu) < TIMESLICE_WHOLE))
            limit(gpu, now + (arbiter.agreed ? 0 : timeslice_quantum()));
    }
}

static void hang_up(uint64_t now) {
    arbiter_link_close(&arbiter);
    alone = true;
    connect_at = now + CONNECT_EVERY;
    read_shares();
    change_rule(now);
}

static void take(const struct arbiter_message *message, uint64_t now) {
    struct timeslice_gpu *gpu = message->gpu < timeslice_process.count ? &timeslice_process.gpu[message->gpu] : NULL;
    if (message->kind == ARBITER_WELCOME && !arbiter.agreed) {
        if (message->a != 1) return hang_up(now);
        arbiter.agreed = true, alone = false;
        if (message->b) __atomic_store_n(&timeslice_process.quantum, message->b, __ATOMIC_RELAXED);
        for (unsigned i = 0; i < timeslice_process.count; i++)
            arbiter_link_gpu(&arbiter, i, timeslice_process.uuids[i]);
        change_rule(now);
    } else if (message->kind == ARBITER_TURN && gpu && gpu->state == TIMESLICE_ASKED) {
        gpu->number = message->turn, gpu->local = false;
        begin(gpu, message->a, now);
    } else if (message->kind == ARBITER_LIMIT && gpu && gpu->state == TIMESLICE_HELD && !gpu->local &&
               gpu->number == message->turn) {
        limit(gpu, now + message->a);
    } else if (!arbiter.agreed) {
        hang_up(now);
    }
}

static void attend(uint64_t now) {
    struct arbiter_message message;
    bool asked = false;
    if (arbiter.socket.fd < 0 && now >= connect_at) {
        if (arbiter_link_open(&arbiter, timeslice_process.socket_path)) return;
        hang_up(now);
    }
    bool had = arbiter.socket.fd >= 0;
    while (arbiter_link_receive(&arbiter, &message)) take(&message, now);
    for (unsigned i = 0; i < timeslice_process.count; i++)
        asked = asked || timeslice_process.gpu[i].state == TIMESLICE_ASKED;
    if (arbiter.socket.fd >= 0 && (asked || !arbiter.agreed) && now > arbiter.heard + ANSWER_WITHIN)
        arbiter_link_close(&arbiter);
    if (had && arbiter.socket.fd < 0) hang_up(now);
}

/* Without a drainer, the GPU's progress is unknown, so submitting threads must wait themselves (threadless.h). */
static void end_without_drainer(void) {
    arbiter_link_close(&arbiter);
    timeslice_threads_failed();
    for (unsigned i = 0; i < timeslice_process.count; i++) {
        struct timeslice_gpu *gpu = &timeslice_process.gpu[i];
        timeslice_watch(gpu, false);
        gpu->state = TIMESLICE_NONE, gpu->local = false, gpu->paid = 0;
        timeslice_set_gate(gpu, TIMESLICE_SHUT, 0);
    }
    __atomic_store_n(&timeslice_process.running, false, __ATOMIC_SEQ_CST);
}

static void *keeper(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&timeslice_process.ended, __ATOMIC_SEQ_CST)) {
        uint64_t now = timeslice_now(), next;
        char woken[64];
        attend(now);
        next = arbiter.socket.fd < 0 ? connect_at : now + ASK_AGAIN;
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            uint64_t at = step(&timeslice_process.gpu[i], now);
            if (at < next) next = at;
        }
        if (timeslice_process.threadless) return end_without_drainer(), NULL;
        bool wakeable = gputile_guarded_fd_is_ours(&timeslice_process.woken);
        if (!wakeable && now + LOOK_EVERY < next) next = now + LOOK_EVERY;
        struct pollfd waits[2] = {{.fd = wakeable ? timeslice_process.woken.fd : -1, .events = POLLIN},
                                  {.fd = arbiter.socket.fd, .events = POLLIN}};
        now = timeslice_now();
        struct timespec pause = {.tv_nsec = next > now ? (long)((next - now) % 1000000000) : 0};
        pause.tv_sec = next > now ? (time_t)((next - now) / 1000000000) : 0;
        ppoll(waits, 2, &pause, NULL);
        if (gputile_guarded_fd_is_ours(&timeslice_process.woken) &&
            recv(timeslice_process.woken.fd, woken, sizeof woken, MSG_DONTWAIT) < 0)
            continue; /* a message has arrived, or it is time */
    }
    return NULL;
}

bool timeslice_keeper_start(void) {
    arbiter = (struct arbiter_link){.socket = GPUTILE_GUARDED_FD_NONE};
    connect_at = 0, alone = false;
    read_shares();
    if (timeslice_process.threadless)
        for (unsigned i = 0; i < timeslice_process.count; i++) {
            if (!timeslice_watch(&timeslice_process.gpu[i], true)) return false;
            timeslice_watch(&timeslice_process.gpu[i], false);
        }
    timeslice_process.threadless = false;
    return timeslice_start_thread(keeper, NULL);
}

static void in_child(void) { arbiter_link_close(&arbiter); }

static const struct gputile_fork_handlers handlers = {.order = GPUTILE_FORK_KEEPER, .in_child = in_child};
static const struct gputile_fork_handlers *const registered GPUTILE_FORK_HANDLERS = &handlers;
