/* A libze_loader.so.1: cards built like Max 1550 at the ABI of Level Zero's Sysman, as pyzes 0.1.3 declares it; structs whose type is not set
 * are refused, as the validating loader does. See fake.h for what tests tell it; keys: count, used_mib, pid, degrees. Counters grow by each look. */
#define LIBRARY "intel"
#include "fake.h"
#include <stdint.h>

enum { OK, LOST = 0x70000001, UNSUPPORTED = 0x78000003, BAD_STRUCT = 0x7800000C, INVALID = 0x78000004 };
#define GPUS 16
typedef uint8_t flag;
typedef struct { int32_t type; void *next; } head;
typedef struct {
    head head;
    int32_t kind;
    uint32_t vendor, device, flags, subdevice, clock;
    uint64_t max_alloc;
    uint32_t numbers[7];
    uint64_t resolution;
    uint32_t bits[2];
    uint8_t uuid[16];
    char name[256];
} core_properties;
typedef struct { head head; core_properties core; uint32_t subdevices; char serial[64], board[64], brand[64], model[64], vendor[64], driver[64]; } properties;
typedef struct { head head; uint32_t domain, bus, device, function; int32_t generation, width; int64_t bandwidth; flag have[3]; } pci_properties;
typedef struct { uint64_t at, replays, packets, received, sent; int32_t generation, width; int64_t bandwidth; } pci_stats;
typedef struct { head head; int32_t health; uint64_t free, size; } memory_state;
typedef struct { uint64_t read, written, most, at; } bandwidth;
typedef struct { head head; int32_t kind; flag on_subdevice; uint32_t subdevice; } engine_properties;
typedef struct { uint64_t active, at; } engine_stats;
typedef struct { head head; int32_t kind; flag on_subdevice; uint32_t subdevice; double max; flag supported[3]; } sensor_properties;
typedef struct { uint64_t energy, at; } energy;
typedef struct { head head; flag on_subdevice; uint32_t subdevice; flag controls, threshold; int32_t default_mw, min_mw, max_mw; } power_properties;
typedef struct {
    head head;
    int32_t level, source, unit;
    flag state_locked, enabled, interval_locked;
    int32_t interval;
    flag locked;
    int32_t limit;
} power_limit;
typedef struct { head head; int32_t kind; flag on_subdevice; uint32_t subdevice; flag controls, events; double min, max; } clock_properties;
typedef struct { head head; double volts, request, tdp, efficient, actual; uint32_t throttled; } clock_state;
typedef struct { double min, max; } range;
typedef struct { head head; uint32_t pid; uint64_t memory, shared; uint32_t engines; } process;
typedef struct { head head; int32_t state; } ecc_wish;
typedef struct { head head; int32_t now, pending, action; } ecc_properties;
typedef struct { int cap_mw; double low_mhz, high_mhz; uint64_t looks; } gpu;

static gpu gpus[GPUS];
/* A handle is a card's number + 1, in hundreds, and a part's below. */
static int index_of(void *handle) { return (int)((long)handle / 100) - 1; }
static int part_of(void *handle) { return (int)((long)handle % 100); }
static gpu *of(void *handle) { return &gpus[index_of(handle) % GPUS]; }
#define TYPED(pointer, wanted) do { if ((pointer)->head.type != (wanted)) return BAD_STRUCT; } while (0)

static int parts(void *device, uint32_t *number, void **found, uint32_t there) {
    if (!found) { *number = there; return OK; }
    for (uint32_t i = 0; i < *number; i++) found[i] = (void *)((long)device + i);
    return OK;
}
int zesInit(uint32_t flags) {
    (void)flags;
    CHECK(-1);
    for (int i = 0; i < GPUS; i++) gpus[i] = (gpu){600000, 300, 1600, 0};
    return OK;
}
int zesDriverGet(uint32_t *number, void **found) { CHECK(-1); if (found) found[0] = (void *)7; *number = 1; return OK; }
int zesDeviceGet(void *driver, uint32_t *number, void **found) {
    uint32_t there = (uint32_t)number_of("count", -1, 1);
    if (driver != (void *)7) return INVALID;
    for (uint32_t i = 0; found && i < there; i++) found[i] = (void *)(100L * (i + 1));
    *number = there;
    return OK;
}
int zesDeviceGetProperties(void *device, properties *found) {
    CHECK(index_of(device));
    TYPED(found, 0x1);
    for (int i = 0; i < 16; i++) found->core.uuid[i] = (uint8_t)i;
    found->core.uuid[15] = (uint8_t)(0xa0 + index_of(device));
    strcpy(found->model, "Fake Max 1550");
    strcpy(found->driver, "1.6.33578");
    return OK;
}
int zesDevicePciGetProperties(void *device, pci_properties *found) {
    CHECK(index_of(device));
    TYPED(found, 0x2);
    found->bus = (uint32_t)index_of(device) + 0x3a;
    return OK;
}
int zesDevicePciGetStats(void *device, pci_stats *found) {
    CHECK(index_of(device));
    *found = (pci_stats){.replays = 4, .received = 1000, .sent = 2000};
    return OK;
}
int zesDeviceEnumMemoryModules(void *device, uint32_t *number, void **found) { CHECK(index_of(device)); return parts(device, number, found, 2); }
int zesMemoryGetState(void *memory, memory_state *found) {
    CHECK(index_of(memory));
    TYPED(found, 0x1E);
    found->size = 64ull << 30;
    found->free = found->size - (part_of(memory) ? 0 : (uint64_t)number_of("used_mib", index_of(memory), 0) << 20);
    return OK;
}
/* A tenth of what it could move, in each of two modules. */
int zesMemoryGetBandwidth(void *memory, bandwidth *found) {
    CHECK(index_of(memory));
    if (part_of(memory) == 0) of(memory)->looks++;
    *found = (bandwidth){of(memory)->looks * 60000, of(memory)->looks * 40000, 1000000, of(memory)->looks * 1000000};
    return OK;
}
int zesDeviceEnumEngineGroups(void *device, uint32_t *number, void **found) { CHECK(index_of(device)); return parts(device, number, found, 2); }
int zesEngineGetProperties(void *engine, engine_properties *found) {
    CHECK(index_of(engine));
    TYPED(found, 0x5);
    found->kind = part_of(engine) ? 0 : 4; /* one compute engine, all of them */
    return OK;
}
int zesEngineGetActivity(void *engine, engine_stats *found) {
    static uint64_t looks[GPUS];
    uint64_t at = ++looks[index_of(engine) % GPUS];
    CHECK(index_of(engine));
    *found = (engine_stats){at * 250, at * 1000};
    return OK;
}
int zesDeviceEnumTemperatureSensors(void *device, uint32_t *number, void **found) { CHECK(index_of(device)); return parts(device, number, found, 2); }
int zesTemperatureGetProperties(void *sensor, sensor_properties *found) {
    CHECK(index_of(sensor));
    TYPED(found, 0x14);
    found->kind = 1 + part_of(sensor);
    return OK;
}
int zesTemperatureGetState(void *sensor, double *degrees) { CHECK(index_of(sensor)); *degrees = part_of(sensor) ? 51.6 : (double)number_of("degrees", index_of(sensor), 47) + 0.4; return OK; }
int zesDeviceEnumPowerDomains(void *device, uint32_t *number, void **found) { CHECK(index_of(device)); return parts(device, number, found, 1); }
int zesPowerGetEnergyCounter(void *power, energy *found) {
    static uint64_t looks[GPUS];
    uint64_t at = ++looks[index_of(power) % GPUS];
    CHECK(index_of(power));
    *found = (energy){at * 240000000, at * 1000000};
    return OK;
}
int zesPowerGetProperties(void *power, power_properties *found) { CHECK(index_of(power)); TYPED(found, 0xD); found->default_mw = found->max_mw = 600000; found->min_mw = 150000; return OK; }
int zesPowerGetLimitsExt(void *power, uint32_t *number, power_limit *found) {
    CHECK(index_of(power));
    *number = 2;
    for (int i = 0; found && i < 2; i++) {
        TYPED(&found[i], 0x27);
        found[i].level = i ? 1 : 3;
        found[i].limit = i ? of(power)->cap_mw : 900000;
    }
    return OK;
}
int zesPowerSetLimitsExt(void *power, uint32_t *number, power_limit *wanted) {
    CHECK(index_of(power));
    TYPED(wanted, 0x27);
    if (*number != 1 || wanted->level != 1 || wanted->limit > 600000) return INVALID;
    of(power)->cap_mw = wanted->limit;
    return OK;
}
int zesDeviceEnumFrequencyDomains(void *device, uint32_t *number, void **found) { CHECK(index_of(device)); return parts(device, number, found, 2); }
int zesFrequencyGetProperties(void *clock, clock_properties *found) {
    CHECK(index_of(clock));
    TYPED(found, 0x9);
    found->kind = part_of(clock);
    found->min = 300; found->max = 1600;
    return OK;
}
int zesFrequencyGetState(void *clock, clock_state *found) {
    CHECK(index_of(clock));
    TYPED(found, 0x1B);
    found->actual = part_of(clock) ? 3200 : of(clock)->high_mhz;
    found->throttled = 1 << 3;
    return OK;
}
int zesFrequencySetRange(void *clock, const range *wanted) {
    CHECK(index_of(clock));
    of(clock)->low_mhz = wanted->min; of(clock)->high_mhz = wanted->max;
    return OK;
}
int zesDeviceProcessesGetState(void *device, uint32_t *number, process *found) {
    uint32_t there = number_of("pid", index_of(device), 0) != 0;
    CHECK(index_of(device));
    if (found && there) {
        TYPED(found, 0x16);
        found->pid = (uint32_t)number_of("pid", index_of(device), 0);
        found->memory = 7ull << 20;
    }
    *number = there;
    return OK;
}
int zesDeviceReset(void *device, flag force) { CHECK(index_of(device)); return force ? INVALID : OK; }
/* It counts after a cold start of the card. */
int zesDeviceSetEccState(void *device, const ecc_wish *wish, ecc_properties *found) {
    CHECK(index_of(device));
    TYPED(wish, 0x25);
    TYPED(found, 0x26);
    found->now = 1; found->pending = wish->state; found->action = found->now == found->pending ? 0 : 3;
    return OK;
}
