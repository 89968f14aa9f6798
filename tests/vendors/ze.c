/* A libze_loader.so.1: Intel's devices as `libs/job/device/level_zero.py` and `libs/job/memory/level_zero_driver.py` use them, at Level
 * Zero 1.15. See physical.h and fake.h; keys: count, memory_mib, granularity, apart. Driver and device handles are addresses here. */
#define LIBRARY "level_zero"
#include "physical.h"

enum { UNINITIALIZED = 0x78000001, UNSUPPORTED_VERSION, UNSUPPORTED_FEATURE, INVALID_ARGUMENT, NULL_HANDLE, IN_USE, NULL_POINTER,
       UNSUPPORTED_SIZE = 0x78000009, UNSUPPORTED_ENUMERATION = 0x7800000d, NO_DEVICE_MEMORY = 0x70000003 };
typedef struct { unsigned stype; void *next; } head;
typedef struct {
    unsigned stype; void *next;
    unsigned type, vendor, id, flags, subdevice, clock;
    uint64_t allocation;
    unsigned counts[7];
    uint64_t timer;
    unsigned bits, kernel_bits;
    unsigned char uuid[16];
    char name[256];
} device_properties;
typedef struct { unsigned stype; void *next; unsigned flags, clock, width; uint64_t size; char name[256]; } memory_properties;
typedef struct { unsigned stype; void *next; unsigned domain, bus, device, function; int generation, width; int64_t bandwidth; } pci_properties;
typedef struct { unsigned stype; void *next; unsigned ordinal, index, flags, mode, priority; } queue_desc;
typedef struct { unsigned stype; void *next; unsigned flags; int fd; } external;
typedef struct { unsigned stype; void *next; unsigned flags; size_t size; } physical_desc;
typedef struct { unsigned stype; void *next; uint64_t id, size; } physical_properties;
static const int CODES[] = {0, NO_DEVICE_MEMORY, INVALID_ARGUMENT, INVALID_ARGUMENT, NULL_HANDLE, IN_USE, INVALID_ARGUMENT};
static char driver, the_context, devices[DEVICES], lists[DEVICES];
static int list_uses[DEVICES];
static __thread const char *last = "";

#define READY(device)                          \
    do {                                       \
        if (!is_ready()) return UNINITIALIZED; \
        CHECK(device);                         \
    } while (0)
#define DEVICE()                                                              \
    READY((char *)device - devices);                                          \
    if (!is_device((int)((char *)device - devices))) return NULL_HANDLE
#define CONTEXT(device)                                   \
    READY(device);                                        \
    if (context != &the_context) return NULL_HANDLE

static int told(int code) {
    last = code == NO_MEMORY ? "the device has no memory left" : code ? "a fake refused this" : "";
    return CODES[code];
}
int zeInit(unsigned flags) {
    if (flags != 1) return INVALID_ARGUMENT;
    CHECK(-1);
    initialised_by = getpid();
    return 0;
}
int zeDriverGet(unsigned *number, void **found) {
    READY(-1);
    if (*number && found) found[0] = &driver;
    *number = 1;
    return 0;
}
int zeDriverGetLastErrorDescription(void *of_driver, const char **text) { *text = of_driver == &driver ? last : ""; return 0; }
int zeDeviceGet(void *of_driver, unsigned *number, void **found) {
    READY(-1);
    if (of_driver != &driver) return NULL_HANDLE;
    for (unsigned i = 0; found && i < *number; i++) found[i] = &devices[i];
    *number = (unsigned)count();
    return 0;
}
int zeDeviceGetProperties(void *device, device_properties *found) {
    DEVICE();
    if (found->stype != 3) return INVALID_ARGUMENT;
    found->type = 1;
    memset(found->uuid, (int)((char *)device - devices) + 1, 16);
    snprintf(found->name, sizeof found->name, "Fake Max 1550");
    return 0;
}
int zeDeviceGetMemoryProperties(void *device, unsigned *number, memory_properties *found) {
    DEVICE();
    for (unsigned i = 0; found && i < *number; i++) {
        if (found[i].stype != 7) return INVALID_ARGUMENT;
        found[i].size = memory_bytes((int)((char *)device - devices)) / 2;
    }
    *number = 2; /* two stacks */
    return 0;
}
int zeDevicePciGetPropertiesExt(void *device, pci_properties *found) {
    DEVICE();
    if (found->stype != 0x10008) return INVALID_ARGUMENT;
    found->bus = (unsigned)((char *)device - devices) + 0x4d;
    return 0;
}
int zeDeviceCanAccessPeer(void *device, void *peer, unsigned char *value) {
    DEVICE();
    *value = device != peer && !number_of("apart", (int)((char *)device - devices), 0);
    return 0;
}
int zeContextCreate(void *of_driver, const head *desc, void **made) {
    READY(-1);
    if (of_driver != &driver) return NULL_HANDLE;
    if (desc->stype != 0xd) return INVALID_ARGUMENT;
    *made = &the_context;
    return 0;
}
int zeCommandListCreateImmediate(void *context, void *device, const queue_desc *desc, void **made) {
    CONTEXT((char *)device - devices);
    if (desc->stype != 0xe || desc->mode != 1) return INVALID_ARGUMENT;
    list_uses[(char *)device - devices]++;
    *made = &lists[(char *)device - devices];
    return 0;
}
int zeCommandListDestroy(void *list) { READY((char *)list - lists); list_uses[(char *)list - lists]--; return 0; }
int fake_uses(int device) { return list_uses[device]; }
int zeCommandListAppendMemoryCopy(void *list, void *to, const void *from, size_t size, void *signal, unsigned waits, void **events) {
    READY((char *)list - lists);
    if (signal || waits || events || !list_uses[(char *)list - lists]) return INVALID_ARGUMENT;
    memcpy(to, from, size);
    return 0;
}
int zeVirtualMemQueryPageSize(void *context, void *device, size_t size, size_t *found) {
    CONTEXT((char *)device - devices);
    *found = size >= granularity() ? granularity() : 65536;
    return 0;
}
int zeVirtualMemReserve(void *context, const void *start, size_t size, void **made) {
    CONTEXT(-1);
    return start ? INVALID_ARGUMENT : told(reserve(size, 0, made));
}
int zeVirtualMemFree(void *context, void *address, size_t size) { CONTEXT(-1); return told(unreserve(address, size)); }
int zePhysicalMemCreate(void *context, void *device, const physical_desc *desc, void **made) {
    const external *more = desc->next;
    CONTEXT((char *)device - devices);
    if (desc->stype != 0x20 || desc->flags) return INVALID_ARGUMENT;
    if (desc->size % granularity()) return UNSUPPORTED_SIZE;
    if (more && (more->flags & 3) == 0) return UNSUPPORTED_ENUMERATION;
    if (more && more->stype == 0x19) return told(import_from(more->fd, made));
    if (more && more->stype != 0x18) return UNSUPPORTED_ENUMERATION;
    return told(create((int)((char *)device - devices), desc->size, made));
}
int zePhysicalMemGetProperties(void *context, void *handle, physical_properties *found) {
    external *more = found->next;
    CONTEXT(-1);
    if (!of(handle) || found->stype != 0x20040) return INVALID_ARGUMENT;
    found->size = of(handle)->size;
    if (!more) return 0;
    return more->stype == 0x1a ? told(export_to(handle, &more->fd)) : UNSUPPORTED_ENUMERATION;
}
/* compute-runtime frees it at once; memory that is still mapped would be gone under the mapping. */
int zePhysicalMemDestroy(void *context, void *handle) {
    CONTEXT(-1);
    if (of(handle) && of(handle)->mappings) {
        fputs("ze.c: physical memory was destroyed while it was mapped\n", stderr);
        abort();
    }
    return told(release(handle));
}
int zeVirtualMemMap(void *context, void *address, size_t size, void *handle, size_t offset, unsigned access) {
    CONTEXT(-1);
    if (offset || access != 1) return INVALID_ARGUMENT;
    return told(map_at(address, size, handle, PROT_READ | PROT_WRITE));
}
int zeVirtualMemUnmap(void *context, void *address, size_t size) { CONTEXT(-1); return told(unmap(address, size)); }
