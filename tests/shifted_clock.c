/* Shifts the wall clock of a process and its children: SHIFT_NS once, and SHIFT_PPM of the time since
 * the start of the machine. The monotonic clock stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    static long long shift, ppm, begun;
    struct timespec now;
    if (!real) {
        const char *text = getenv("SHIFT_NS"), *drift = getenv("SHIFT_PPM"), *base = getenv("SHIFT_FROM_NS");
        shift = text ? atoll(text) : 0;
        ppm = drift ? atoll(drift) : 0;
        begun = base ? atoll(base) : 0;
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int found = real(clock, at);
    if (found || clock != CLOCK_REALTIME) return found;
    real(CLOCK_MONOTONIC, &now);
    long long gone = now.tv_sec * 1000000000LL + now.tv_nsec - begun;
    long long all = at->tv_sec * 1000000000LL + at->tv_nsec + shift + gone / 1000000 * ppm;
    at->tv_sec = all / 1000000000LL;
    at->tv_nsec = all % 1000000000LL;
    return 0;
}
