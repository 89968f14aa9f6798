/* A libcuda.so.1: NVIDIA's devices as `libs/job/device/cuda.py` and `libs/job/memory/cuda_driver.py` use them. See physical.h and fake.h;
 * keys: count, memory_mib, granularity, no_vmm (a device without virtual memory), apart (devices that do not reach each other). */
#define LIBRARY "cuda"
#include "physical.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 100, INVALID_DEVICE, INVALID_CONTEXT = 201, PEER_ALREADY = 704,
       UNSUPPORTED_LIMIT = 215, PEER_UNSUPPORTED = 217, NOT_SUPPORTED = 801 };
typedef unsigned long long u64;
typedef struct { int type, id; } location;
typedef struct { int type, handles; location place; void *win32; unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } properties;
typedef struct { location place; int flags; } access_description;
static const struct { int code; const char *name, *text; } WORDS[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};
/* libcuda answers a wrong handle with INVALID_VALUE. */
static const int CODES[] = {0, OUT_OF_MEMORY, INVALID_VALUE, INVALID_VALUE, INVALID_DEVICE, INVALID_VALUE, INVALID_VALUE};
typedef struct { int uses; size_t limits[3]; int peers[DEVICES]; } context;
static context contexts[DEVICES];
static __thread context *current;

#define READY(device)                            \
    do {                                         \
        if (!is_ready()) return NOT_INITIALIZED; \
        CHECK(device);                           \
    } while (0)
#define NEED_CONTEXT()                                         \
    do {                                                       \
        READY(current ? current - contexts : -1);              \
        if (!current || !current->uses) return INVALID_CONTEXT; \
    } while (0)

int cuGetErrorName(int code, const char **text) {
    *text = NULL;
    for (unsigned i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (WORDS[i].code == code) *text = WORDS[i].name;
    return *text ? 0 : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
    *text = NULL;
    for (unsigned i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (WORDS[i].code == code) *text = WORDS[i].text;
    return *text ? 0 : INVALID_VALUE;
}
int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    CHECK(-1);
    if (!count()) return NO_DEVICE;
    initialised_by = getpid();
    return 0;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *found) { READY(-1); *found = count(); return 0; }
int cuDeviceGet(int *device, int ordinal) {
    READY(ordinal);
    if (!is_device(ordinal)) return INVALID_DEVICE;
    *device = ordinal + 100; /* a CUdevice is not an ordinal */
    return 0;
}
#define DEVICE()                                   \
    READY(device - 100);                           \
    if (!is_device(device - 100)) return INVALID_DEVICE
int cuDeviceGetName(char *name, int length, int device) { DEVICE(); snprintf(name, (size_t)length, "Fake H200"); return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { DEVICE(); memset(uuid, device - 99, 16); return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { DEVICE(); memset(uuid, device - 99, 16); return 0; }
int cuDeviceGetPCIBusId(char *name, int length, int device) { DEVICE(); snprintf(name, (size_t)length, "0000:%02X:00.0", device - 83); return 0; }
int cuDeviceTotalMem_v2(size_t *size, int device) { DEVICE(); *size = memory_bytes(device - 100); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    DEVICE();
    *value = attribute == 102 || attribute == 103 ? !number_of("no_vmm", device - 100, 0) : attribute == 110;
    return 0;
}
int cuDeviceCanAccessPeer(int *value, int device, int peer) {
    DEVICE();
    if (!is_device(peer - 100)) return INVALID_DEVICE;
    *value = device != peer && !number_of("apart", device - 100, 0);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **made, int device) {
    DEVICE();
    if (!contexts[device - 100].uses++) contexts[device - 100] = (context){.uses = 1, .limits = {1024, 1 << 20, 8 << 20}};
    *made = &contexts[device - 100];
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    DEVICE();
    if (!contexts[device - 100].uses) return INVALID_CONTEXT;
    contexts[device - 100].uses--;
    return 0;
}
/* For tests: how often the process uses a device's context. */
int fake_uses(int device) { return contexts[device].uses; }
int cuCtxSetCurrent(void *one) {
    READY(-1);
    current = one;
    return 0;
}
int cuCtxSetLimit(int limit, size_t value) {
    NEED_CONTEXT();
    if (limit < 0 || limit > 2) return UNSUPPORTED_LIMIT;
    current->limits[limit] = (value + 15) / 16 * 16;
    return 0;
}
int cuCtxGetLimit(size_t *value, int limit) {
    NEED_CONTEXT();
    if (limit < 0 || limit > 2) return UNSUPPORTED_LIMIT;
    *value = current->limits[limit];
    return 0;
}
int cuCtxEnablePeerAccess(void *peer, unsigned flags) {
    long other = (context *)peer - contexts;
    NEED_CONTEXT();
    if (flags || other < 0 || other >= DEVICES) return INVALID_VALUE;
    if (number_of("apart", (int)(current - contexts), 0)) return PEER_UNSUPPORTED;
    if (current->peers[other]) return PEER_ALREADY;
    current->peers[other] = 1;
    return 0;
}
int cuCtxSynchronize(void) { NEED_CONTEXT(); return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *whole) {
    NEED_CONTEXT();
    *whole = memory_bytes((int)(current - contexts));
    *free_bytes = *whole - used_bytes[current - contexts];
    return 0;
}
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size) { NEED_CONTEXT(); memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t size) { NEED_CONTEXT(); memcpy(to, (void *)from, size); return 0; }
int cuMemcpyPeer(u64 to, void *to_context, u64 from, void *from_context, size_t size) {
    NEED_CONTEXT();
    if (!((context *)to_context)->uses || !((context *)from_context)->uses) return INVALID_CONTEXT;
    memcpy((void *)to, (void *)from, size);
    return 0;
}
static int supported(const properties *wanted) { return wanted->type == 1 && wanted->place.type == 1 && wanted->handles == 1 && !wanted->win32; }
int cuMemGetAllocationGranularity(size_t *size, const properties *wanted, int option) {
    READY(wanted->place.id);
    if (!supported(wanted) || option > 1) return INVALID_VALUE;
    if (!is_device(wanted->place.id)) return INVALID_DEVICE;
    *size = granularity();
    return 0;
}
int cuMemCreate(u64 *handle, size_t size, const properties *wanted, u64 flags) {
    void *made;
    int code;
    READY(wanted->place.id);
    if (flags || !supported(wanted)) return INVALID_VALUE;
    code = create(wanted->place.id, size, &made);
    if (!code) *handle = (u64)made;
    return CODES[code];
}
int cuMemRelease(u64 handle) { READY(-1); return CODES[release((void *)handle)]; }
int cuMemExportToShareableHandle(void *shareable, u64 handle, int type, u64 flags) {
    READY(-1);
    if (type != 1 || flags) return INVALID_VALUE;
    return CODES[export_to((void *)handle, shareable)];
}
int cuMemImportFromShareableHandle(u64 *handle, void *descriptor, int type) {
    void *made;
    int code;
    READY(-1);
    if (type != 1) return INVALID_VALUE;
    code = import_from((int)(long)descriptor, &made);
    if (!code) *handle = (u64)made;
    return CODES[code];
}
int cuMemAddressReserve(u64 *address, size_t size, size_t alignment, u64 wanted, u64 flags) {
    void *made;
    int code;
    READY(-1);
    if (wanted || flags) return INVALID_VALUE;
    code = reserve(size, alignment, &made);
    if (!code) *address = (u64)made;
    return CODES[code];
}
int cuMemAddressFree(u64 address, size_t size) { READY(-1); return CODES[unreserve((void *)address, size)]; }
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
    READY(-1);
    if (offset || flags) return INVALID_VALUE;
    return CODES[map_at((void *)address, size, (void *)handle, PROT_NONE)];
}
int cuMemSetAccess(u64 address, size_t size, const access_description *wanted, size_t number) {
    READY(wanted->place.id);
    if (number != 1 || wanted->place.type != 1 || wanted->flags != 3) return INVALID_VALUE;
    if (!is_device(wanted->place.id)) return INVALID_DEVICE;
    return CODES[set_access((void *)address, size, PROT_READ | PROT_WRITE)];
}
int cuMemUnmap(u64 address, size_t size) { READY(-1); return CODES[unmap((void *)address, size)]; }
