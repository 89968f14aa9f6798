/* The part of CUPTI that Muster's library uses, for tests: records begin as those of CUDA 12. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define CUPTIAPI
typedef void *CUcontext;
typedef struct subscriber *CUpti_SubscriberHandle;
typedef enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
               CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39 } CUptiResult;
typedef enum { CUPTI_ACTIVITY_KIND_MEMCPY = 1, CUPTI_ACTIVITY_KIND_MEMSET = 2,
               CUPTI_ACTIVITY_KIND_KERNEL = 3, CUPTI_ACTIVITY_KIND_RUNTIME = 5,
               CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10 } CUpti_ActivityKind;
typedef enum { CUPTI_CB_DOMAIN_RUNTIME_API = 2 } CUpti_CallbackDomain;
enum { CUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2,
       CUPTI_ACTIVITY_MEMCPY_KIND_DTOD = 8, CUPTI_ACTIVITY_MEMCPY_KIND_PTOP = 10 };
typedef uint32_t CUpti_CallbackId;
typedef void (*CUpti_CallbackFunc)(void *, CUpti_CallbackDomain, CUpti_CallbackId, const void *);
typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **, size_t *, size_t *);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext, uint32_t, uint8_t *, size_t, size_t);

typedef struct { CUpti_ActivityKind kind; } __attribute__((packed, aligned(8))) CUpti_Activity;
typedef struct {
    CUpti_ActivityKind kind;
    uint8_t before[12];
    uint64_t start, end, completed;
    uint32_t deviceId, contextId, streamId;
    int32_t gridX, gridY, gridZ, blockX, blockY, blockZ, shared, dynamic;
    uint32_t local, localTotal, correlationId;
    int64_t gridId;
    const char *name;
    uint8_t after[64];
} __attribute__((packed, aligned(8))) CUpti_ActivityKernel9;
typedef struct {
    CUpti_ActivityKind kind;
    uint8_t copyKind, srcKind, dstKind, flags;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId;
    uint8_t after[40];
} __attribute__((packed, aligned(8))) CUpti_ActivityMemcpy5;
typedef struct {
    CUpti_ActivityKind kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t deviceId, contextId, streamId, correlationId;
    uint8_t after[24];
} __attribute__((packed, aligned(8))) CUpti_ActivityMemset4;
typedef struct {
    CUpti_ActivityKind kind;
    uint32_t cbid;
    uint64_t start, end;
    uint32_t processId, threadId, correlationId, returnValue;
} __attribute__((packed, aligned(8))) CUpti_ActivityAPI;
