/* A libnvidia-ml.so.1 with two devices. FAKE_NVML: a directory; "used0" and "used1" hold MiB in use; "hang" makes every call wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

static FILE *open_in(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    return fopen(path, "r");
}
static unsigned long long used_mib(long device) {
    char name[8];
    unsigned long long mib = 0;
    snprintf(name, sizeof name, "used%ld", device);
    FILE *file = open_in(name);
    if (file) { if (fscanf(file, "%llu", &mib) != 1) mib = 0; fclose(file); }
    return mib << 20;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    FILE *file = open_in("hang");
    if (file) for (;;) sleep(1000);
    *count = 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return index < 2 ? 0 : 2; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { snprintf(text, size, "GPU-fake-%ld", (long)device - 1); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { (void)device; snprintf(text, size, "Fake H100"); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *m) { (void)device; (void)m; return 999; }
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *m) {
    if (m->version != (sizeof *m | (2u << 24))) return 25;
    m->total = 80ull << 30; m->reserved = 600ull << 20; m->used = used_mib((long)device - 1); m->free = m->total - m->reserved - m->used;
    return 0;
}
