/* A libcupti for tests: a thread makes a kernel each millisecond while kernels are recorded.
 *
 * Its clock is the monotonic one, 5 s ahead. FAKE_CUPTI_TAKEN=1: another tool has subscribed.
 */
#define _GNU_SOURCE
#include "cupti.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static CUpti_BuffersCallbackRequestFunc on_request;
static CUpti_BuffersCallbackCompleteFunc on_complete;
static volatile int recording;
static pthread_t maker;
static uint8_t *buffer;
static size_t room, used;
static uint32_t count;

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec + 5000000000u;
}

static void add(const void *record, size_t size) {
    size_t most;
    if (!buffer) on_request(&buffer, &room, &most);
    if (buffer && used + size <= room) {
        memcpy(buffer + used, record, size);
        used += size;
    }
}

static void *make(void *none) {
    while (recording) {
        uint64_t at = now();
        CUpti_ActivityKernel9 kernel = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = at,
            .end = at + 1500, .deviceId = 1, .streamId = 7, .gridX = 2, .gridY = 3, .gridZ = 4,
            .correlationId = ++count, .name = count % 2 ? "_Z3addPfS_" : "ncclDevKernel_\"Sum\""};
        CUpti_ActivityMemcpy5 copy = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY, .bytes = 4096, .start = at,
            .end = at + 10, .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, .streamId = 7, .deviceId = 1};
        CUpti_ActivityMemset4 set = {.kind = CUPTI_ACTIVITY_KIND_MEMSET, .bytes = 8, .start = at, .end = at + 1};
        CUpti_ActivityAPI call = {.kind = CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = 3, .start = at, .end = at + 5,
            .threadId = (uint32_t)getpid(), .correlationId = count};
        add(&kernel, sizeof kernel);
        add(&copy, sizeof copy);
        add(&set, sizeof set);
        add(&call, sizeof call);
        usleep(1000);
    }
    return none;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc call, void *data) {
    (void)call; (void)data;
    *subscriber = NULL;
    return getenv("FAKE_CUPTI_TAKEN") ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) { (void)subscriber; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
    on_request = request;
    on_complete = complete;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        recording = 1;
        pthread_create(&maker, NULL, make, NULL);
    }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
    if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && recording) {
        recording = 0;
        pthread_join(maker, NULL);
    }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    if (buffer) on_complete(NULL, 0, buffer, room, used);
    buffer = NULL;
    used = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *at, size_t valid, CUpti_Activity **record) {
    static const size_t sizes[] = {[CUPTI_ACTIVITY_KIND_MEMCPY] = sizeof(CUpti_ActivityMemcpy5),
        [CUPTI_ACTIVITY_KIND_MEMSET] = sizeof(CUpti_ActivityMemset4),
        [CUPTI_ACTIVITY_KIND_RUNTIME] = sizeof(CUpti_ActivityAPI),
        [CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] = sizeof(CUpti_ActivityKernel9)};
    uint8_t *next = *record ? (uint8_t *)*record + sizes[(*record)->kind] : at;
    if (next >= at + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t *at) { *at = now(); return CUPTI_SUCCESS; }
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
    (void)domain; (void)id;
    *name = "cudaLaunchKernel";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
    (void)context; (void)stream;
    *dropped = 3;
    return CUPTI_SUCCESS;
}
