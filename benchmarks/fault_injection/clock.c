/* A time of day that can be set for some processes alone: LD_PRELOAD=clock.so CLOCK_FILE=FILE command.
 * FILE holds the ns by which it is set forward, as 8 bytes in the machine's order; all processes see a change at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *shift = &none;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CLOCK_FILE");
  int handle = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *place = handle < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, handle, 0);
  if (place != MAP_FAILED) shift = place;
  if (handle >= 0) close(handle);
}

static void add(struct timespec *at, int64_t ns) {
  int64_t all = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + ns;
  at->tv_sec = all / 1000000000;
  at->tv_nsec = all % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = (int)syscall(SYS_clock_gettime, clock, at);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) add(at, *shift);
  return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

typedef int timed_wait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

/* The kernel waits by the clock of the machine. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static timed_wait *next;
  struct timespec at = *until;
  if (!next) next = (timed_wait *)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!next) next = (timed_wait *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  add(&at, -*shift);
  return next(condition, mutex, &at);
}
