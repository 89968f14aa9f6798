/* Device memory for libraries that stand in for the vendors': what libcuda, libamdhip64 and libze_loader of the tests share.
 *
 * Physical memory is a memfd, so that bytes are real, an exported descriptor works in another process, and the kernel frees it with its
 * last holder. A reservation is a PROT_NONE mapping, a mapping is mmap MAP_FIXED | MAP_SHARED, access is mprotect: memory that is used
 * before access was set ends the process, as on a device. The functions return one of the codes below; each library has its own numbers
 * for them. fake.h of tests/drivers says how a test tells a library what to answer. Keys: count, memory_mib (of one device), granularity,
 * and those of each library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include "fake.h"

#define PIECES 8192
#define DEVICES 8
enum { FINE, NO_MEMORY, BAD_VALUE, BAD_HANDLE, BAD_DEVICE, MAPPED_ALREADY, NOT_THERE };
typedef struct { int used, device, fd, released, mappings, imported; size_t size; } piece;
typedef struct { char *begin; size_t size; piece *of; } span;
static piece pieces[PIECES];
static span ranges[PIECES], mappings[PIECES];
static size_t used_bytes[DEVICES];

HERE int count(void) { return (int)number_of("count", -1, 2); }
HERE int is_device(int device) { return device >= 0 && device < count(); }
HERE size_t granularity(void) { return (size_t)number_of("granularity", -1, 2 << 20); }
HERE size_t memory_bytes(int device) { return (size_t)number_of("memory_mib", device, 64) << 20; }
/* Handles are addresses of pieces. A real driver may die of a wrong one; this one says so. */
HERE piece *of(void *handle) {
    piece *found = handle;
    return found >= pieces && found < pieces + PIECES && found->used && !found->released ? found : NULL;
}
HERE int add(int device, size_t size, int fd, int imported, void **made) {
    for (int i = 0; i < PIECES; i++)
        if (!pieces[i].used) {
            pieces[i] = (piece){.used = 1, .device = device, .fd = fd, .imported = imported, .size = size};
            *made = &pieces[i];
            return FINE;
        }
    abort();
}
HERE void settle(piece *one) {
    if (!one->released || one->mappings) return;
    close(one->fd);
    if (!one->imported) used_bytes[one->device] -= one->size;
    one->used = 0;
}
HERE int create(int device, size_t size, void **made) {
    char name[64];
    int fd;
    if (!is_device(device)) return BAD_DEVICE;
    if (!size || size % granularity()) return BAD_VALUE;
    if (used_bytes[device] + size > memory_bytes(device)) return NO_MEMORY;
    snprintf(name, sizeof name, LIBRARY "-%d", device);
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size)) abort();
    used_bytes[device] += size;
    return add(device, size, fd, 0, made);
}
HERE int export_to(void *handle, int *fd) {
    piece *one = of(handle);
    if (!one) return BAD_HANDLE;
    *fd = fcntl(one->fd, F_DUPFD_CLOEXEC, 3);
    return *fd < 0 ? NO_MEMORY : FINE;
}
/* Only memory of the same vendor is adopted: its memfd has the library's name. */
HERE int import_from(int fd, void **made) {
    char path[64], name[256], wanted[64];
    struct stat file;
    ssize_t length;
    int device;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    length = readlink(path, name, sizeof name - 1);
    if (length < 0) return BAD_VALUE;
    name[length] = 0;
    snprintf(wanted, sizeof wanted, "/memfd:" LIBRARY "-");
    if (strncmp(name, wanted, strlen(wanted)) || fstat(fd, &file)) return BAD_VALUE;
    device = atoi(name + strlen(wanted));
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return add(device, (size_t)file.st_size, fd, 1, made);
}
HERE int release(void *handle) {
    piece *one = of(handle);
    if (!one) return BAD_HANDLE;
    one->released = 1;
    settle(one);
    return FINE;
}
HERE int reserve(size_t size, size_t alignment, void **made) {
    size_t unit = alignment > granularity() ? alignment : granularity();
    char *found, *begin;
    if (!size || size % granularity()) return BAD_VALUE;
    found = mmap(NULL, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return NO_MEMORY;
    begin = (char *)(((uintptr_t)found + unit - 1) / unit * unit);
    if (begin > found) munmap(found, (size_t)(begin - found));
    if (found + unit > begin) munmap(begin + size, (size_t)(found + unit - begin));
    for (int i = 0; i < PIECES; i++)
        if (!ranges[i].begin) {
            ranges[i] = (span){begin, size, NULL};
            *made = begin;
            return FINE;
        }
    abort();
}
HERE span *at(span *table, void *address, size_t size) {
    for (int i = 0; i < PIECES; i++)
        if (table[i].begin == (char *)address && table[i].size == size) return &table[i];
    return NULL;
}
HERE span *touching(char *begin, size_t size) {
    for (int i = 0; i < PIECES; i++)
        if (mappings[i].begin && mappings[i].begin < begin + size && begin < mappings[i].begin + mappings[i].size) return &mappings[i];
    return NULL;
}
HERE int unreserve(void *address, size_t size) {
    span *range = address ? at(ranges, address, size) : NULL;
    if (!range) return BAD_VALUE;
    if (touching(address, size)) return MAPPED_ALREADY;
    munmap(address, size);
    range->begin = NULL;
    return FINE;
}
HERE int map_at(void *address, size_t size, void *handle, int access) {
    piece *one = of(handle);
    char *begin = address;
    int inside = 0;
    if (!one) return BAD_HANDLE;
    for (int i = 0; i < PIECES; i++)
        inside |= ranges[i].begin && ranges[i].begin <= begin && begin + size <= ranges[i].begin + ranges[i].size;
    if (!inside || size != one->size) return BAD_VALUE;
    if (touching(begin, size)) return MAPPED_ALREADY;
    if (mmap(begin, size, access, MAP_FIXED | MAP_SHARED, one->fd, 0) == MAP_FAILED) return NO_MEMORY;
    one->mappings++;
    for (int i = 0; i < PIECES; i++)
        if (!mappings[i].begin) {
            mappings[i] = (span){begin, size, one};
            return FINE;
        }
    abort();
}
HERE int set_access(void *address, size_t size, int access) {
    if (!at(mappings, address, size)) return NOT_THERE;
    return mprotect(address, size, access) ? BAD_VALUE : FINE;
}
HERE int unmap(void *address, size_t size) {
    span *found = address ? at(mappings, address, size) : NULL;
    if (!found) return NOT_THERE;
    if (mmap(address, size, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) abort();
    found->of->mappings--;
    settle(found->of);
    found->begin = NULL;
    return FINE;
}
/* A driver that was initialised before a fork is not initialised after it. */
static pid_t initialised_by;
HERE int is_ready(void) { return initialised_by == getpid(); }
