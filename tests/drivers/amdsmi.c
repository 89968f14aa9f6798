/* A libamd_smi.so with one device, at the ABI of amdsmi 7. What else the binding looks up on import is added by the test. */
#include <stdint.h>
#include <string.h>

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
#pragma pack(pop)

static int one(uint32_t *count, void **handles) {
    if (handles) handles[0] = (void *)1;
    *count = 1;
    return 0;
}
int amdsmi_init(uint64_t flags) { (void)flags; return 0; }
int amdsmi_get_socket_handles(uint32_t *count, void **handles) { return one(count, handles); }
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) { (void)socket; return one(count, handles); }
int amdsmi_get_gpu_asic_info(void *device, asic_info *info) {
    (void)device;
    memset(info, 0, sizeof *info);
    strcpy(info->market_name, "Fake MI300X");
    strcpy(info->asic_serial, "0xABCDEF0123456789");
    return 0;
}
int amdsmi_get_gpu_vram_usage(void *device, vram_usage *usage) {
    (void)device;
    memset(usage, 0, sizeof *usage);
    usage->total_mib = 192u << 10;
    usage->used_mib = 283;
    return 0;
}
