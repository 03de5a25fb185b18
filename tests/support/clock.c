/* Give a process a monotonic clock that drifts: LD_PRELOAD this, with CLOCK_DRIFT seconds per second since the start.
   If CLOCK_TURN is set, drift changes its sign whenever so many seconds are over. Python, compiled code and MPI read
   this clock, and Python's waits end by it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>

#define SECOND 1000000000LL

static int (*get_time)(clockid_t, struct timespec *);
static int (*sleep_until)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*wait_until)(sem_t *, clockid_t, const struct timespec *);
static double drift;
static long long first, turn;

__attribute__((constructor)) static void begin(void)
{
    struct timespec now;
    const char *text;
    get_time = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    sleep_until = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))dlsym(RTLD_NEXT, "clock_nanosleep");
    wait_until = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    drift = (text = getenv("CLOCK_DRIFT")) ? atof(text) : 0;
    turn = (text = getenv("CLOCK_TURN")) ? atof(text) * SECOND : 0;
    get_time(CLOCK_MONOTONIC, &now);
    first = now.tv_sec * SECOND + now.tv_nsec;
}

/* Return how far this clock is ahead of the system's at a time of the system's, in nanoseconds. */
static long long ahead(const struct timespec *at)
{
    long long since = at->tv_sec * SECOND + at->tv_nsec - first;
    if (turn)
        since = since / turn % 2 ? turn - since % turn : since % turn;
    return (long long)(drift * since);
}

static struct timespec later(const struct timespec *at, long long nanoseconds)
{
    long long shown = at->tv_sec * SECOND + at->tv_nsec + nanoseconds;
    return (struct timespec){shown / SECOND, shown % SECOND};
}

static struct timespec of_system(const struct timespec *at)
{
    struct timespec now;
    get_time(CLOCK_MONOTONIC, &now);
    return later(at, -ahead(&now));
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    if (!get_time)
        begin();
    int status = get_time(id, at);
    if (id == CLOCK_MONOTONIC && !status)
        *at = later(at, ahead(at));
    return status;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *rest)
{
    struct timespec end = id == CLOCK_MONOTONIC && flags ? of_system(until) : *until;
    return sleep_until(id, flags, &end, rest);
}

int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *until)
{
    struct timespec end = id == CLOCK_MONOTONIC ? of_system(until) : *until;
    return wait_until(semaphore, id, &end);
}
