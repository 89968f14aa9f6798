/* A libnvidia-ml.so.1: cards built like H100 at the ABI of driver 580, each on a PCI bus of its own. See fake.h for what tests tell it;
 * keys: count, name, used_mib, pid, mig (its mode at first), degrees, unwell, recovery (its action), pending (its mode changes by a reset only),
 * fabric and fabric_status (of NVSwitches), persistent, links (how many of NVLink), switch (whether they end at one), xids (its events),
 * instance (the MIG instance of its events), link_generation and field_ID_LINK (a counter of one link; negative: an error), sram and
 * sram_exceeded, uuid (the number in a card's UUID). A file nvidia.reset is a reset of all cards, at the next
 * nvmlInit. */
#define LIBRARY "nvidia"
#include "fake.h"

#define GPUS 16
#define INSTANCES 8
enum { OK, INVALID = 2, LACKING = 3, NOT_FOUND = 6, SIZE = 7, TIMEOUT = 10, IN_USE = 19, RESOURCES = 23, VERSION = 25, RESET = 16 };
typedef unsigned long long u64;
typedef struct { unsigned start, size; } placement;
typedef struct { int used, gpu, number, profile, computing; placement place; } instance;
typedef struct { int mig, next_mig, cap_mw, low_mhz, high_mhz, persistent, mode, ecc, ecc_pending; instance parts[INSTANCES]; } gpu;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned version, sensor; int degrees; } temperature_v1;
typedef struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } fabric_v1;
typedef struct { unsigned version; unsigned char uuid[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_v2;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } process;
typedef union { double d; unsigned u; u64 ull; } value;
typedef struct { unsigned id, scope; long long at, latency; unsigned type; int code; value value; } field;
typedef struct {
    unsigned version;
    u64 aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded, volatile_corrected, l2, sm, pcie, mcu, other;
    unsigned exceeded;
} sram_status;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } event;
typedef struct { unsigned version, id, p2p, slices, count, sms, ce, dec, enc, jpeg, ofa; u64 mib; char name[96]; } profile_v2;
typedef struct { unsigned version, id, slices, count, sms, ce, dec, enc, jpeg, ofa; char name[96]; } compute_profile_v2;
typedef struct { void *device; unsigned id, profile; placement place; } instance_info;

/* NVML's profile, how many slices it takes of compute and of memory, and where it may begin: a bit for each slice. */
static const struct { int profile, id, slices, memory, starts; const char *name; } PROFILES[] = {
    {0, 19, 1, 1, 0x7f, "MIG 1g.10gb"},     {1, 14, 2, 2, 0x15, "MIG 2g.20gb"}, {2, 9, 3, 4, 0x11, "MIG 3g.40gb"},
    {3, 5, 4, 4, 1, "MIG 4g.40gb"},         {4, 0, 7, 8, 1, "MIG 7g.80gb"},     {7, 20, 1, 1, 0x7f, "MIG 1g.10gb+me"},
    {9, 15, 1, 2, 0x55, "MIG 1g.20gb"},
};
#define PROFILE_COUNT (int)(sizeof PROFILES / sizeof *PROFILES)
static struct { int ready; gpu gpus[GPUS]; } *kept;
#define gpus (kept->gpus)

static int was_reset(void) {
    char path[4096];
    const char *folder = getenv("FAKE_DRIVERS");
    snprintf(path, sizeof path, "%s/nvidia.reset", folder ? folder : "");
    return folder && !unlink(path);
}

static int count(void) { return (int)number_of("count", -1, 2); }
/* Handles are small numbers: a card's index + 1, and of a MIG device 1000 + 10 * card + instance. */
static int index_of(void *device) { return (int)(long)device - 1; }
static gpu *of(void *device) { return &gpus[index_of(device) % GPUS]; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    CHECK(-1);
    if (!kept) kept = that_outlives(sizeof *kept);
    for (int i = 0; i < GPUS && !kept->ready; i++) {
        gpus[i].cap_mw = 700000, gpus[i].ecc = gpus[i].ecc_pending = 1;
        gpus[i].mig = gpus[i].next_mig = (int)number_of("mig", i, 0);
    }
    kept->ready = 1;
    if (was_reset())
        for (int i = 0; i < GPUS; i++) gpus[i].mig = gpus[i].next_mig, memset(gpus[i].parts, 0, sizeof gpus[i].parts);
    events_begin();
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == IN_USE ? "In use by another client" : code == RESOURCES ? "Insufficient Resources" : "an error that the fake made";
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { CHECK(-1); snprintf(text, size, "580.65.06"); return OK; }
int nvmlSystemGetNVMLVersion(char *text, unsigned size) { CHECK(-1); snprintf(text, size, "13.580.65.06"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { CHECK(-1); *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *number) { CHECK(-1); *number = (unsigned)count(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    CHECK(index);
    *device = (void *)(long)(index + 1);
    return (int)index < count() ? OK : INVALID;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || (int)bus < 1 || (int)bus > count()) return NOT_FOUND;
    CHECK(bus - 1);
    *device = (void *)(long)bus;
    return OK;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)index_of(device); return OK; }
static void fill_pci(int index, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)index + 1;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", index + 1);
}
int nvmlDeviceGetPciInfo_v3(void *device, pci_info *info) { CHECK(index_of(device)); fill_pci(index_of(device), info); return OK; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    CHECK(index_of(device));
    if ((long)device >= 1000) snprintf(text, size, "MIG-fake-%ld", (long)device);
    else snprintf(text, size, "GPU-fake-%lld", number_of("uuid", index_of(device), index_of(device)));
    return OK;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    char said[256] = "H100";
    CHECK(index_of(device));
    look("name", index_of(device), said);
    snprintf(text, size, "Fake %s", said);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { CHECK(index_of(device)); *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *m) {
    CHECK(index_of(device));
    m->total = 80ull << 30; m->used = (u64)(number_of("used_mib", index_of(device), 0) + 600) << 20; m->free = m->total - m->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *m) {
    CHECK(index_of(device));
    if (m->version != (sizeof *m | (2u << 24))) return VERSION;
    m->total = 80ull << 30; m->reserved = 600ull << 20;
    m->used = (u64)number_of("used_mib", index_of(device), 0) << 20; m->free = m->total - m->reserved - m->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, rates *r) { CHECK(index_of(device)); r->gpu = 37; r->memory = 12; return OK; }
int nvmlDeviceGetEncoderUtilization(void *device, unsigned *percent, unsigned *us) { CHECK(index_of(device)); *percent = 1; *us = 1; return OK; }
int nvmlDeviceGetDecoderUtilization(void *device, unsigned *percent, unsigned *us) { CHECK(index_of(device)); *percent = 2; *us = 1; return OK; }
int nvmlDeviceGetTemperatureV(void *device, temperature_v1 *t) {
    CHECK(index_of(device));
    if (t->version != (sizeof *t | (1u << 24))) return VERSION;
    t->degrees = (int)number_of("degrees", index_of(device), 45);
    return OK;
}
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) { (void)sensor; CHECK(index_of(device)); *degrees = 46; return OK; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { CHECK(index_of(device)); *mw = 123456; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { CHECK(index_of(device)); *mw = (unsigned)of(device)->cap_mw; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *mw) { CHECK(index_of(device)); *mw = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *least, unsigned *most) {
    CHECK(index_of(device));
    *least = 200000; *most = 700000;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *device, unsigned type, unsigned *mhz) { CHECK(index_of(device)); *mhz = type == 1 ? 1980 : 2619; return OK; }
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *mhz) {
    CHECK(index_of(device));
    *mhz = type == 2 ? 2619 : of(device)->high_mhz ? (unsigned)of(device)->high_mhz : 1980;
    return OK;
}
/* The cards have no fans. */
int nvmlDeviceGetFanSpeed(void *device, unsigned *percent) { (void)percent; CHECK(index_of(device)); return LACKING; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, u64 *reasons) { CHECK(index_of(device)); *reasons = 0x24; return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *number, process *found) {
    unsigned room = *number, there = number_of("pid", index_of(device), 0) != 0;
    CHECK(index_of(device));
    *number = there;
    if (!there) return OK;
    if (room < there) return SIZE;
    memset(found, 0, sizeof *found);
    found->pid = (unsigned)number_of("pid", index_of(device), 0);
    found->bytes = (u64)number_of("used_mib", index_of(device), 0) << 20;
    return OK;
}
static int links(void *device);
/* A field of one link: generation 4 counts replays, recoveries and CRC errors, generation 5 recoveries by their outcome. */
static void fill_link_field(void *device, field *f) {
    long long generation = number_of("link_generation", index_of(device), 0);
    char key[64];
    int told = generation == 4 ? f->id <= 163 : generation == 5 && f->id >= 213;
    f->code = !told ? LACKING : (int)f->scope < links(device) ? OK : INVALID;
    snprintf(key, sizeof key, "field_%u_%u", f->id, f->scope);
    f->value.ull = (u64)number_of(key, index_of(device), 0);
    if (number_of(key, index_of(device), 0) < 0) f->code = 999;
}
int nvmlDeviceGetFieldValues(void *device, int number, field *fields) {
    CHECK(index_of(device));
    for (int i = 0; i < number; i++) {
        fields[i].type = 3; /* u64 */
        fields[i].code = fields[i].id == 94 ? LACKING : OK;
        fields[i].value.ull = fields[i].id;
        /* A row remap that waits or has failed: of a device that is not well. The recovery action: of a driver that tells it. */
        if (fields[i].id == 144 || fields[i].id == 145) fields[i].value.ull *= (u64)number_of("unwell", index_of(device), 0);
        if (fields[i].id == 230) {
            long long action = number_of("recovery", index_of(device), -1);
            fields[i].code = action < 0 ? LACKING : OK;
            fields[i].value.ull = (u64)action;
        }
        if (fields[i].id == 3 || fields[i].id == 4) fields[i].value.ull = (u64)number_of("ecc", index_of(device), 0);
        if (fields[i].id == 144) fields[i].value.ull = (u64)number_of("remap_pending", index_of(device), 0);
        if (fields[i].id == 230) fields[i].value.ull = (u64)number_of("recovery", index_of(device), 0);
        if (fields[i].id == 91) fields[i].value.ull = (u64)links(device);
        if ((fields[i].id >= 161 && fields[i].id <= 163) || (fields[i].id >= 213 && fields[i].id <= 215)) fill_link_field(device, &fields[i]);
        if (fields[i].id == 82) { fields[i].type = 1; fields[i].value.ull = 0; fields[i].value.u = 61; }
    }
    return OK;
}

/* Errors of its SRAM, and whether the driver's threshold was passed. */
int nvmlDeviceGetSramEccErrorStatus(void *device, sram_status *s) {
    unsigned version = s->version;
    CHECK(index_of(device));
    if (version != (sizeof *s | (1u << 24))) return VERSION;
    memset(s, 0, sizeof *s);
    s->version = version;
    s->volatile_parity = (u64)number_of("sram", index_of(device), 0);
    s->volatile_secded = s->volatile_parity ? 1 : 0;
    s->exceeded = (unsigned)number_of("sram_exceeded", index_of(device), 0);
    return OK;
}

/* Links: a pair of cards, or all to a switch. */
static int links(void *device) { return (int)number_of("links", index_of(device), 0); }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    CHECK(index_of(device));
    if (!links(device)) return LACKING;
    *active = 1;
    return (int)link < links(device) ? OK : INVALID;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type) {
    (void)link;
    CHECK(index_of(device));
    *type = number_of("switch", index_of(device), 0) ? 2 : 0;
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, pci_info *info) {
    (void)link;
    CHECK(index_of(device));
    fill_pci(index_of(device) ^ 1, info);
    return OK;
}

/* The fabric of NVSwitches: its state (0: none) and, once that is 3, the status with which it came to its end. */
int nvmlDeviceGetGpuFabricInfoV(void *device, fabric_v2 *info) {
    CHECK(index_of(device));
    if (info->version != (sizeof *info | (2u << 24))) return VERSION;
    info->state = (unsigned char)number_of("fabric", index_of(device), 0);
    info->status = (int)number_of("fabric_status", index_of(device), 0);
    return OK;
}
int nvmlDeviceGetGpuFabricInfo(void *device, fabric_v1 *info) {
    CHECK(index_of(device));
    info->state = (unsigned char)number_of("fabric", index_of(device), 0);
    info->status = (int)number_of("fabric_status", index_of(device), 0);
    return OK;
}

/* Events. */
int nvmlEventSetCreate(void **set) { CHECK(-1); *set = (void *)1; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *device, u64 *types) { CHECK(index_of(device)); *types = 0xb; return OK; }
int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) { (void)types; (void)set; CHECK(index_of(device)); return OK; }
int nvmlEventSetWait_v2(void *set, event *found, unsigned timeout_ms) {
    int device;
    (void)set;
    CHECK(-1);
    memset(found, 0, sizeof *found);
    if (!next_event(&device, &found->type, &found->data)) { usleep(timeout_ms * 1000); return TIMEOUT; }
    found->device = (void *)(long)(device + 1);
    found->gpu_instance = (unsigned)number_of("instance", device, -1); /* to which NVML attributes the event; -1: to none */
    found->compute_instance = found->gpu_instance;
    return OK;
}

/* Control. */
int nvmlDeviceSetPowerManagementLimit(void *device, unsigned mw) {
    CHECK(index_of(device));
    if (mw < 200000 || mw > 700000) return INVALID;
    of(device)->cap_mw = (int)mw;
    return OK;
}
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) {
    CHECK(index_of(device));
    of(device)->low_mhz = (int)low; of(device)->high_mhz = (int)high;
    return OK;
}
int nvmlDeviceResetGpuLockedClocks(void *device) { CHECK(index_of(device)); of(device)->low_mhz = of(device)->high_mhz = 0; return OK; }
int nvmlDeviceSetPersistenceMode(void *device, unsigned on) { CHECK(index_of(device)); of(device)->persistent = (int)on; return OK; }
int nvmlDeviceGetPersistenceMode(void *device, unsigned *on) { CHECK(index_of(device)); *on = (unsigned)number_of("persistent", index_of(device), of(device)->persistent); return OK; }
int nvmlDeviceSetComputeMode(void *device, unsigned mode) { CHECK(index_of(device)); of(device)->mode = (int)mode; return OK; }
/* As on most cards: it counts after a reset. */
int nvmlDeviceGetEccMode(void *device, unsigned *now, unsigned *pending) {
    CHECK(index_of(device));
    *now = (unsigned)of(device)->ecc; *pending = (unsigned)of(device)->ecc_pending;
    return OK;
}
int nvmlDeviceGetDefaultEccMode(void *device, unsigned *mode) { CHECK(index_of(device)); *mode = 1; return OK; }
int nvmlDeviceSetEccMode(void *device, unsigned mode) { CHECK(index_of(device)); of(device)->ecc_pending = (int)mode; return OK; }

/* MIG. */
static int is_cut(gpu *g) {
    for (int i = 0; i < INSTANCES; i++)
        if (g->parts[i].used) return 1;
    return 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
    CHECK(index_of(device));
    *now = (unsigned)of(device)->mig;
    *pending = (unsigned)of(device)->next_mig;
    return OK;
}
int nvmlDeviceSetMigMode(void *device, unsigned mode, int *status) {
    CHECK(index_of(device));
    if (!mode && is_cut(of(device))) return IN_USE;
    of(device)->next_mig = (int)mode;
    *status = number_of("pending", index_of(device), 0) && of(device)->mig != (int)mode ? RESET : OK;
    if (*status == OK) of(device)->mig = (int)mode;
    return OK;
}
int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned profile, profile_v2 *info) {
    CHECK(index_of(device));
    if (info->version != (sizeof *info | (2u << 24))) return VERSION;
    for (int i = 0; i < PROFILE_COUNT; i++)
        if (PROFILES[i].profile == (int)profile) {
            info->id = (unsigned)PROFILES[i].id; info->slices = (unsigned)PROFILES[i].slices;
            info->count = (unsigned)__builtin_popcount((unsigned)PROFILES[i].starts);
            snprintf(info->name, sizeof info->name, "%s", PROFILES[i].name);
            return OK;
        }
    return LACKING;
}
static int profile_of(unsigned id) {
    for (int p = 0; p < PROFILE_COUNT; p++)
        if (PROFILES[p].id == (int)id) return p;
    return -1;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, placement *places, unsigned *number) {
    int p = profile_of(id);
    unsigned room = *number;
    CHECK(index_of(device));
    if (p < 0) return LACKING;
    *number = 0;
    for (unsigned start = 0; start < 8; start++)
        if (PROFILES[p].starts >> start & 1) {
            if (*number == room) return SIZE;
            places[(*number)++] = (placement){start, (unsigned)PROFILES[p].memory};
        }
    return OK;
}
static unsigned mask_of(placement place) { return ((1u << place.size) - 1) << place.start; }
static unsigned taken(gpu *g) {
    unsigned mask = 0;
    for (int i = 0; i < INSTANCES; i++)
        if (g->parts[i].used) mask |= mask_of(g->parts[i].place);
    return mask;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const placement *place, void **made) {
    gpu *g = of(device);
    int p = profile_of(id);
    CHECK(index_of(device));
    if (!g->mig) return LACKING;
    if (p < 0 || (int)place->size != PROFILES[p].memory || !(PROFILES[p].starts >> place->start & 1)) return INVALID;
    for (int i = 0; i < INSTANCES && !(taken(g) & mask_of(*place)); i++)
        if (!g->parts[i].used) {
            g->parts[i] = (instance){1, index_of(device), i, p, 0, *place};
            *made = &g->parts[i];
            return OK;
        }
    return RESOURCES;
}
int nvmlDeviceGetGpuInstances(void *device, unsigned id, void **found, unsigned *number) {
    CHECK(index_of(device));
    *number = 0;
    for (int i = 0; i < INSTANCES; i++) {
        instance *part = &of(device)->parts[i];
        if (part->used && PROFILES[part->profile].id == (int)id) found[(*number)++] = part;
    }
    return OK;
}
int nvmlGpuInstanceGetInfo(instance *part, instance_info *info) {
    CHECK(part->gpu);
    *info = (instance_info){(void *)(long)(part->gpu + 1), (unsigned)part->number, (unsigned)PROFILES[part->profile].id, part->place};
    return OK;
}
int nvmlGpuInstanceDestroy(instance *part) { CHECK(part->gpu); if (part->computing) return IN_USE; part->used = 0; return OK; }
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance *part, unsigned profile, unsigned engine, compute_profile_v2 *info) {
    static const unsigned SLICES[] = {1, 2, 3, 4, 7, 8, 6, 1};
    (void)engine;
    CHECK(part->gpu);
    if (info->version != (sizeof *info | (2u << 24))) return VERSION;
    if (profile >= sizeof SLICES / sizeof *SLICES) return INVALID;
    if ((int)SLICES[profile] > PROFILES[part->profile].slices) return LACKING;
    info->id = profile; info->slices = SLICES[profile];
    return OK;
}
int nvmlGpuInstanceCreateComputeInstance(instance *part, unsigned id, void **made) {
    (void)id;
    CHECK(part->gpu);
    part->computing = 1;
    *made = part;
    return OK;
}
int nvmlGpuInstanceGetComputeInstanceById(instance *part, unsigned number, void **found) {
    CHECK(part->gpu);
    *found = part;
    return part->computing && number == 0 ? OK : NOT_FOUND;
}
int nvmlComputeInstanceDestroy(instance *part) { CHECK(part->gpu); part->computing = 0; return OK; }
int nvmlDeviceGetGpuInstanceById(void *device, unsigned number, void **found) {
    CHECK(index_of(device));
    if (number >= INSTANCES || !of(device)->parts[number].used) return NOT_FOUND;
    *found = &of(device)->parts[number];
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *number) { CHECK(index_of(device)); *number = INSTANCES; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned number, void **found) {
    CHECK(index_of(device));
    if (number >= INSTANCES || !of(device)->parts[number].computing) return NOT_FOUND;
    *found = (void *)(1000 + 10 * (long)index_of(device) + number);
    return OK;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *number) { *number = (unsigned)((long)device % 10); return OK; }

/* Profiling counters (GPM). A buffer holds when it was filled; the value of metric N is N percent, or N MiB a second. */
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { unsigned id; int code; double value; const char *short_name, *long_name, *unit; } gpm_metric;
typedef struct { unsigned version, count; void *first, *second; gpm_metric metrics[]; } gpm_asked;
static int gpm_buffers;
int nvmlGpmQueryDeviceSupport(void *device, gpm_support *s) {
    CHECK(index_of(device));
    if (s->version != (sizeof *s | (1u << 24)) && s->version != 1) return VERSION;
    s->supported = (unsigned)number_of("profiling", index_of(device), 0);
    return OK;
}
int nvmlGpmSampleAlloc(void **buffer) { CHECK(-1); gpm_buffers++; *buffer = calloc(1, sizeof(long)); return *buffer ? OK : RESOURCES; }
int nvmlGpmSampleFree(void *buffer) { CHECK(-1); gpm_buffers--; free(buffer); return OK; }
int nvmlGpmSampleGet(void *device, void *buffer) { CHECK(index_of(device)); *(long *)buffer = (long)device; return OK; }
int nvmlGpmMetricsGet(gpm_asked *asked) {
    CHECK(-1);
    if (asked->version != 1) return VERSION;
    if (!*(long *)asked->first || *(long *)asked->first != *(long *)asked->second) return INVALID;
    for (unsigned i = 0; i < asked->count; i++) {
        int index = (int)*(long *)asked->first - 1;
        char key[32];
        snprintf(key, sizeof key, "gpm_%u", asked->metrics[i].id);
        long long said = number_of(key, index, asked->metrics[i].id);
        asked->metrics[i].code = said < 0 ? (int)-said : OK;
        asked->metrics[i].value = said < 0 ? 0 : (double)said;
    }
    return OK;
}
