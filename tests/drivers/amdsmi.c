/* A libamd_smi.so: cards built like MI300X at the ABI of amdsmi 7, all linked with each other by XGMI. See fake.h for what tests tell it;
 * keys: count, used_mib, pid, ecc, degrees. A card whose compute is divided is as many devices, which tests name by their card. What else the binding looks up on import is added by the tests, and is not supported. */
#define LIBRARY "amd"
#include "fake.h"
#include <stdint.h>

enum { OK, INVALID = 1, LACKING = 2, NOT_FOUND = 31, NO_DATA = 40 };
#define GPUS 16
#pragma pack(push, 1)
typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, compute_units;
    uint8_t padding[4];
    uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
} asic_info;
typedef struct { uint32_t total_mib, used_mib, reserved[2]; } vram_usage;
typedef struct { uint32_t gfx, umc, mm, reserved[13]; } activity;
typedef struct { char version[256], date[256], name[256]; } driver_info;
typedef struct { uint64_t socket; uint32_t now, average; uint64_t volts[3]; uint32_t limit; uint8_t padding[4]; uint64_t reserved[18]; } power;
typedef struct { uint64_t cap, default_cap, dpm, min, max, reserved[3]; } power_cap;
typedef struct { uint32_t mhz, min, max; uint8_t locked, asleep, padding[2]; uint32_t reserved[4]; } clock_info;
typedef struct { uint64_t corrected, uncorrected, deferred, reserved[5]; } errors;
typedef struct {
    char name[256];
    uint32_t pid;
    uint8_t padding[4];
    uint64_t mem, gfx, enc;
    uint32_t reserved1[12];
    uint64_t gtt, cpu, vram;
    uint32_t reserved2[10];
    char container[256];
    uint32_t occupancy, reserved3[11];
} process;
typedef struct { uint64_t bdf; uint32_t rate, max, type; uint8_t padding[4]; uint64_t read, write, reserved[2]; } xgmi;
typedef struct { uint32_t count; uint8_t padding[4]; xgmi links[64]; uint64_t reserved[7]; } link_metrics;
typedef struct {
    uint16_t max_width;
    uint8_t padding0[2];
    uint32_t max_speed, interface, slot, max_interface;
    uint8_t padding1[4];
    uint64_t reserved1[9];
    uint16_t width;
    uint8_t padding2[2];
    uint32_t speed, bandwidth;
    uint8_t padding3[4];
    uint64_t replays, recoveries, rollovers, naks_sent, naks_received;
    uint32_t other_recoveries;
    uint8_t padding4[4];
    uint64_t reserved2[12], reserved3[32];
} pcie_info;
typedef struct { uint64_t id; uint32_t node, partition, reserved[12]; } kfd_info;
typedef struct { void *device; uint32_t event; char message[256]; uint8_t padding[4]; } notice;
#pragma pack(pop)
typedef struct { uint64_t cap_uw, low_mhz, high_mhz; int compute, memory; } gpu;

static struct { int ready; gpu gpus[GPUS]; } *kept;
#define gpus (kept->gpus)
static const char *COMPUTE[] = {"?", "SPX", "DPX", "TPX", "QPX", "CPX"};
static const int PARTS[] = {1, 1, 2, 3, 4, 8};

/* Handles are small numbers: a card's index + 1, and 1000 more for each of its partitions. */
static uint32_t count(void) { return (uint32_t)number_of("count", -1, 1); }
static int index_of(void *device) { return ((int)(long)device - 1) % 1000; }
static int part_of(void *device) { return ((int)(long)device - 1) / 1000; }
static gpu *of(void *device) { return &gpus[index_of(device) % GPUS]; }
static void *handle_of(int index, int part) { return (void *)(long)(1000 * part + index + 1); }
static uint64_t bdf_of(void *device) { return (uint64_t)(index_of(device) + 0xc1) << 8 | (uint64_t)part_of(device); }

int amdsmi_init(uint64_t flags) {
    (void)flags;
    CHECK(-1);
    if (!kept) kept = that_outlives(sizeof *kept);
    for (int i = 0; i < GPUS && !kept->ready; i++) gpus[i] = (gpu){750000000, 0, 0, 1, 1};
    kept->ready = 1;
    events_begin();
    return OK;
}
int amdsmi_get_socket_handles(uint32_t *number, void **handles) {
    CHECK(-1);
    if (handles) handles[0] = (void *)1;
    *number = 1;
    return OK;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *number, void **handles) {
    (void)socket;
    *number = 0;
    for (int i = 0; i < (int)count(); i++)
        for (int part = 0; part < PARTS[gpus[i].compute]; part++, (*number)++)
            if (handles) handles[*number] = handle_of(i, part);
    return OK;
}
int amdsmi_get_processor_handle_from_bdf(uint64_t bdf, void **device) {
    for (int i = 0; i < (int)count(); i++)
        for (int part = 0; part < PARTS[gpus[i].compute]; part++)
            if (bdf_of(handle_of(i, part)) == bdf) { *device = handle_of(i, part); return OK; }
    return NOT_FOUND;
}
int amdsmi_get_gpu_device_bdf(void *device, uint64_t *bdf) { CHECK(index_of(device)); *bdf = bdf_of(device); return OK; }
int amdsmi_get_gpu_kfd_info(void *device, kfd_info *info) {
    CHECK(index_of(device));
    memset(info, 0, sizeof *info);
    info->partition = (uint32_t)part_of(device);
    return OK;
}
int amdsmi_get_gpu_asic_info(void *device, asic_info *info) {
    CHECK(index_of(device));
    memset(info, 0, sizeof *info);
    strcpy(info->market_name, "Fake MI300X");
    snprintf(info->asic_serial, sizeof info->asic_serial, "0xABCDEF012345678%X", 9 + index_of(device));
    return OK;
}
int amdsmi_get_gpu_driver_info(void *device, driver_info *info) { CHECK(index_of(device)); strcpy(info->version, "6.12.12"); return OK; }
int amdsmi_get_gpu_vram_usage(void *device, vram_usage *usage) {
    CHECK(index_of(device));
    usage->total_mib = (192u << 10) / (uint32_t)of(device)->memory;
    usage->used_mib = (uint32_t)number_of("used_mib", index_of(device), 283);
    return OK;
}
int amdsmi_get_gpu_activity(void *device, activity *found) { CHECK(index_of(device)); *found = (activity){.gfx = 41, .umc = 0xFFFF}; return OK; }
int amdsmi_get_temp_metric(void *device, int sensor, int metric, int64_t *degrees) {
    (void)metric;
    CHECK(index_of(device));
    *degrees = sensor == 2 ? 58 : number_of("degrees", index_of(device), 63);
    return OK;
}
int amdsmi_get_power_info(void *device, power *found) { CHECK(index_of(device)); *found = (power){.now = 0xFFFF, .average = 321}; return OK; }
int amdsmi_get_power_cap_info(void *device, uint32_t sensor, power_cap *found) {
    (void)sensor;
    CHECK(index_of(device));
    *found = (power_cap){.cap = of(device)->cap_uw, .default_cap = 750000000, .min = 150000000, .max = 750000000};
    return OK;
}
int amdsmi_get_energy_count(void *device, uint64_t *counter, float *resolution, uint64_t *at) {
    CHECK(index_of(device));
    *counter = 2000000; *resolution = 15.5f; *at = 1;
    return OK;
}
int amdsmi_get_clock_info(void *device, int type, clock_info *found) {
    CHECK(index_of(device));
    memset(found, 0, sizeof *found);
    found->min = 132; found->max = 2100;
    found->mhz = type == 4 ? 1300 : of(device)->high_mhz ? (uint32_t)of(device)->high_mhz : 2100;
    return OK;
}
int amdsmi_get_gpu_total_ecc_count(void *device, errors *found) {
    CHECK(index_of(device));
    *found = (errors){.corrected = (uint64_t)number_of("ecc", index_of(device), 0)};
    return OK;
}
int amdsmi_get_gpu_process_list(void *device, uint32_t *number, process *found) {
    CHECK(index_of(device));
    *number = number_of("pid", index_of(device), 0) != 0;
    if (*number) *found = (process){.pid = (uint32_t)number_of("pid", index_of(device), 0), .vram = 7ull << 20};
    return OK;
}
int amdsmi_get_link_metrics(void *device, link_metrics *found) {
    CHECK(index_of(device));
    memset(found, 0, sizeof *found);
    found->count = 2;
    found->links[0] = (xgmi){.type = 2, .read = 10, .write = 20};
    found->links[1] = (xgmi){.type = 1, .read = 100, .write = 200};
    return OK;
}
int amdsmi_get_pcie_info(void *device, pcie_info *found) { CHECK(index_of(device)); *found = (pcie_info){.replays = 5}; return OK; }
int amdsmi_get_gpu_compute_partition(void *device, char *text, uint32_t size) {
    CHECK(index_of(device));
    snprintf(text, size, "%s", COMPUTE[of(device)->compute]);
    return OK;
}
int amdsmi_get_gpu_memory_partition(void *device, char *text, uint32_t size) {
    CHECK(index_of(device));
    snprintf(text, size, "NPS%d", of(device)->memory);
    return OK;
}
int amdsmi_topo_get_link_type(void *one, void *other, uint64_t *hops, uint32_t *type) {
    (void)other;
    CHECK(index_of(one));
    *hops = 1; *type = 2;
    return OK;
}

int amdsmi_set_power_cap(void *device, uint32_t sensor, uint64_t microwatts) {
    (void)sensor;
    CHECK(index_of(device));
    if (microwatts < 150000000 || microwatts > 750000000) return INVALID;
    of(device)->cap_uw = microwatts;
    return OK;
}
int amdsmi_set_gpu_clk_limit(void *device, int type, int limit, uint64_t mhz) {
    (void)type;
    CHECK(index_of(device));
    *(limit ? &of(device)->high_mhz : &of(device)->low_mhz) = mhz;
    return OK;
}
int amdsmi_set_gpu_perf_level(void *device, int level) { (void)level; CHECK(index_of(device)); of(device)->high_mhz = 0; return OK; }
int amdsmi_set_gpu_compute_partition(void *device, int mode) { CHECK(index_of(device)); of(device)->compute = mode; return OK; }
int amdsmi_set_gpu_memory_partition(void *device, int mode) { CHECK(index_of(device)); of(device)->memory = mode; return OK; }
int amdsmi_reset_gpu(void *device) { CHECK(index_of(device)); return OK; }

int amdsmi_init_gpu_event_notification(void *device) { CHECK(index_of(device)); return OK; }
int amdsmi_set_gpu_event_notification_mask(void *device, uint64_t mask) { (void)mask; CHECK(index_of(device)); return OK; }
int amdsmi_get_gpu_event_notification(int timeout_ms, uint32_t *number, notice *found) {
    int device;
    unsigned long long kind, data;
    (void)timeout_ms;
    CHECK(-1);
    if (!next_event(&device, &kind, &data)) return NO_DATA;
    *found = (notice){.device = (void *)(long)(device + 1), .event = (uint32_t)kind};
    snprintf(found->message, sizeof found->message, "%llu", data);
    *number = 1;
    return OK;
}
