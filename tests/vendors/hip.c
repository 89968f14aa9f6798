/* A libamdhip64.so: AMD's devices as `libs/job/device/hip.py` and `libs/job/memory/hip_driver.py` use them. See physical.h and fake.h;
 * keys: count, memory_mib, granularity, apart, version (HIP's number; from 70100000 on a descriptor is imported by value). */
#define LIBRARY "hip"
#include "physical.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE, INVALID_CONTEXT = 201, UNSUPPORTED_LIMIT = 215,
       PEER_UNSUPPORTED = 217, PEER_ALREADY = 704, NOT_SUPPORTED = 801 };
typedef unsigned long long u64;
typedef struct { int type, id; } location;
typedef struct { int type, handles; location place; void *win32; unsigned char compression, rdma; unsigned short usage; } properties;
typedef struct { location place; int flags; } access_description;
static const struct { int code; const char *name, *text; } WORDS[] = {
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {215, "hipErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {217, "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
};
static const int CODES[] = {0, OUT_OF_MEMORY, INVALID_VALUE, INVALID_VALUE, INVALID_DEVICE, INVALID_VALUE, INVALID_VALUE};
typedef struct { int uses; size_t limits[3]; int peers[DEVICES]; } context;
static context contexts[DEVICES];
static __thread int current;

#define READY(device)                            \
    do {                                         \
        if (!is_ready()) return NOT_INITIALIZED; \
        CHECK(device);                           \
    } while (0)
#define DEVICE() \
    READY(device); \
    if (!is_device(device)) return INVALID_DEVICE

const char *hipGetErrorName(int code) {
    for (unsigned i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (WORDS[i].code == code) return WORDS[i].name;
    return "hipErrorUnknown";
}
const char *hipGetErrorString(int code) {
    for (unsigned i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (WORDS[i].code == code) return WORDS[i].text;
    return "unknown error";
}
int hipInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    CHECK(-1);
    if (!count()) return NO_DEVICE;
    initialised_by = getpid();
    return 0;
}
int hipRuntimeGetVersion(int *version) { READY(-1); *version = (int)number_of("version", -1, 70226015); return 0; }
int hipGetDeviceCount(int *found) { READY(-1); *found = count(); return 0; }
int hipDeviceGetName(char *name, int length, int device) { DEVICE(); snprintf(name, (size_t)length, "Fake MI300X"); return 0; }
int hipDeviceGetUuid(char *uuid, int device) { DEVICE(); memset(uuid, 'a' + device, 16); return 0; }
int hipDeviceGetPCIBusId(char *name, int length, int device) { DEVICE(); snprintf(name, (size_t)length, "0000:%02x:00.0", device + 5); return 0; }
int hipDeviceTotalMem(size_t *size, int device) { DEVICE(); *size = memory_bytes(device); return 0; }
int hipDeviceCanAccessPeer(int *value, int device, int peer) {
    DEVICE();
    if (!is_device(peer)) return INVALID_DEVICE;
    *value = device != peer && !number_of("apart", device, 0);
    return 0;
}
int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    READY(current);
    if (flags || !is_device(peer)) return INVALID_VALUE;
    if (number_of("apart", current, 0)) return PEER_UNSUPPORTED;
    if (contexts[current].peers[peer]) return PEER_ALREADY;
    contexts[current].peers[peer] = 1;
    return 0;
}
int hipDevicePrimaryCtxRetain(void **made, int device) {
    DEVICE();
    if (!contexts[device].uses++) contexts[device] = (context){.uses = 1, .limits = {1024, 1 << 20, 8 << 20}};
    *made = &contexts[device];
    return 0;
}
int hipDevicePrimaryCtxRelease(int device) {
    DEVICE();
    if (!contexts[device].uses) return INVALID_CONTEXT;
    contexts[device].uses--;
    return 0;
}
int fake_uses(int device) { return contexts[device].uses; }
int hipSetDevice(int device) { DEVICE(); current = device; return 0; }
int hipDeviceSetLimit(int limit, size_t value) {
    READY(current);
    if (limit != 0 && limit != 2) return UNSUPPORTED_LIMIT;
    contexts[current].limits[limit] = (value + 15) / 16 * 16;
    return 0;
}
int hipDeviceGetLimit(size_t *value, int limit) {
    READY(current);
    if (limit != 0 && limit != 2) return UNSUPPORTED_LIMIT;
    *value = contexts[current].limits[limit];
    return 0;
}
int hipDeviceSynchronize(void) { READY(current); return 0; }
int hipMemGetInfo(size_t *free_bytes, size_t *whole) {
    READY(current);
    *whole = memory_bytes(current);
    *free_bytes = *whole - used_bytes[current];
    return 0;
}
int hipMemcpyHtoD(void *to, const void *from, size_t size) { READY(current); memcpy(to, from, size); return 0; }
int hipMemcpyDtoH(void *to, const void *from, size_t size) { READY(current); memcpy(to, from, size); return 0; }
int hipMemcpyPeer(void *to, int device, const void *from, int source, size_t size) {
    DEVICE();
    if (!is_device(source)) return INVALID_DEVICE;
    memcpy(to, from, size);
    return 0;
}
/* clr: what is not pinned device memory with a descriptor is INVALID_VALUE or NOT_SUPPORTED, a device out of range too. */
static int wrong(const properties *wanted) {
    if (wanted->type != 1 || wanted->place.type != 1 || !is_device(wanted->place.id)) return INVALID_VALUE;
    return wanted->handles == 0 || wanted->handles == 1 ? 0 : NOT_SUPPORTED;
}
int hipMemGetAllocationGranularity(size_t *size, const properties *wanted, int option) {
    READY(wanted->place.id);
    if (wrong(wanted) || option > 1) return INVALID_VALUE;
    *size = granularity();
    return 0;
}
int hipMemCreate(void **handle, size_t size, const properties *wanted, u64 flags) {
    READY(wanted->place.id);
    if (flags || !size || wrong(wanted)) return INVALID_VALUE;
    return CODES[create(wanted->place.id, size, handle)];
}
int hipMemRelease(void *handle) { READY(-1); return CODES[release(handle)]; }
int hipMemExportToShareableHandle(void *shareable, void *handle, int type, u64 flags) {
    READY(-1);
    if (type != 1 || flags) return INVALID_VALUE;
    return CODES[export_to(handle, shareable)];
}
int hipMemImportFromShareableHandle(void **handle, void *descriptor, int type) {
    int fd;
    READY(current);
    if (type != 1 || !descriptor) return INVALID_VALUE;
    fd = number_of("version", -1, 70226015) >= 70100000 ? (int)(long)descriptor : *(int *)descriptor;
    return CODES[import_from(fd, handle)];
}
int hipMemAddressReserve(void **address, size_t size, size_t alignment, void *wanted, u64 flags) {
    READY(-1);
    if (wanted || flags || alignment & (alignment - 1)) return INVALID_VALUE;
    return CODES[reserve(size, alignment, address)];
}
int hipMemAddressFree(void *address, size_t size) { READY(-1); return CODES[unreserve(address, size)]; }
int hipMemMap(void *address, size_t size, size_t offset, void *handle, u64 flags) {
    READY(-1);
    if (!address || !handle || offset || flags) return INVALID_VALUE;
    return CODES[map_at(address, size, handle, PROT_NONE)];
}
int hipMemSetAccess(void *address, size_t size, const access_description *wanted, size_t number) {
    READY(wanted->place.id);
    if (number != 1 || wanted->flags != 3 || !is_device(wanted->place.id)) return INVALID_VALUE;
    return CODES[set_access(address, size, PROT_READ | PROT_WRITE)];
}
int hipMemUnmap(void *address, size_t size) { READY(-1); return CODES[unmap(address, size)]; }
