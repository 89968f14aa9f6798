/* Muster's CUPTI library: traces a CUDA program when the agent of its node orders it.
 *
 * The CUDA driver loads it into every process that uses CUDA (CUDA_INJECTION64_PATH) and calls
 * InitializeInjection. A thread then asks the agent's socket every few seconds, with the datagrams
 * of dynolog under the type "cupti" (datagrams.py). CUPTI is opened when a trace is ordered, not
 * before: an idle process has one sleeping thread and nothing else.
 *
 * The result is a file in Chrome's trace format, written under a temporary name and renamed, like
 * those of PyTorch's profiler. Events are written while they come, up to a bound of bytes.
 *
 * Build: cc -O2 -shared -fPIC -I CUPTI/include -o libmuster_trace.so muster_trace.c -ldl -lpthread
 */
#define _GNU_SOURCE
#include <cupti.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SOCKETS "KINETO_IPC_SOCKET_DIR"
#define PERIOD "MUSTER_TRACE_PERIOD_MS"
#define PERIOD_MS 5000
#define ANSWER_MS 90
#define TEXT_BYTES 4096
#define PATH_BYTES 512
#define BUFFER_BYTES (4 << 20)
#define BUFFERS_MAX 32
/* The agent removes files of more than 256 MiB (files.py): there is room for the end. */
#define FILE_BYTES_MAX (248LL << 20)
#define NAME_CHARS 400
#define ALIGN 64
#define NS 1000000000LL
/* The body of a question about one process: struct request without its header and padding. */
#define BODY_BYTES 20

struct header { uint64_t size; char type[32]; };
struct request { struct header header; int32_t kind, count; int64_t job; int32_t pid; };
struct order { char path[PATH_BYTES]; int64_t start_ns, length_ns; };

/* The functions of CUPTI that are used, opened at the first trace. */
static struct {
    CUptiResult (*subscribe)(CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *);
    CUptiResult (*unsubscribe)(CUpti_SubscriberHandle);
    CUptiResult (*enable)(CUpti_ActivityKind);
    CUptiResult (*disable)(CUpti_ActivityKind);
    CUptiResult (*callbacks)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
    CUptiResult (*next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult (*flush)(uint32_t);
    CUptiResult (*timestamp)(uint64_t *);
    CUptiResult (*name)(CUpti_CallbackDomain, uint32_t, const char **);
    CUptiResult (*dropped)(CUcontext, uint32_t, size_t *);
} cupti;

static const CUpti_ActivityKind KINDS[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;              /* open while a trace is under way */
static int64_t ahead_ns;       /* the wall clock minus CUPTI's clock */
static int64_t written, lost;  /* bytes of the file; records that found no place */
static int buffers;
static uint32_t devices;       /* those that have events, as bits */

static int64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

static void sleep_ns(int64_t ns) {
    struct timespec left = {ns / NS, ns % NS};
    while (ns > 0 && nanosleep(&left, &left) < 0 && errno == EINTR) { }
}

/* Write the name as the inside of a JSON string, demangled where the C++ runtime is loaded. */
static void put_name(const char *name) {
    static char *(*demangle)(const char *, char *, size_t *, int *);
    static int looked;
    char *plain = NULL;
    int status = 0, left = NAME_CHARS;
    if (!looked++) *(void **)&demangle = dlsym(RTLD_DEFAULT, "__cxa_demangle");
    if (name && demangle && name[0] == '_') plain = demangle(name, NULL, NULL, &status);
    for (const char *at = plain ? plain : name ? name : "?"; *at && left; at++, left--) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\') written += fprintf(out, "\\%c", c);
        else if (c < 32 || c > 126) written += fprintf(out, "?");
        else { fputc(c, out); written++; }
    }
    free(plain);
}

/* Begin an event on a row of a device or of the process. */
static void put_event(const char *cat, const char *name, int pid, uint32_t tid, uint64_t start, uint64_t end) {
    int64_t at = (int64_t)start + ahead_ns, length = end > start ? (int64_t)(end - start) : 0;
    written += fprintf(out, ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"", cat);
    put_name(name);
    written += fprintf(out, "\",\"pid\":%d,\"tid\":%u,\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":{",
                       pid, tid, at / 1000, (int)(at % 1000), length / 1000, (int)(length % 1000));
}

static int device_row(uint32_t device) {
    devices |= device < 32 ? 1u << device : 0;
    return (int)device;
}

static const char *copy_name(uint8_t kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "Memcpy HtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "Memcpy DtoH";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "Memcpy DtoD";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "Memcpy PtoP";
    default: return "Memcpy";
    }
}

/* The layouts of newer records begin like these ones; only their beginning is read. */
static void put(const CUpti_Activity *record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
        const CUpti_ActivityKernel9 *k = (const void *)record;
        put_event(k->name && strstr(k->name, "nccl") ? "nccl" : "kernel", k->name, device_row(k->deviceId),
                  k->streamId, k->start, k->end);
        written += fprintf(out, "\"device\":%u,\"stream\":%u,\"correlation\":%u,\"grid\":[%d,%d,%d]}}", k->deviceId,
                           k->streamId, k->correlationId, k->gridX, k->gridY, k->gridZ);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy5 *m = (const void *)record;
        put_event("gpu_memcpy", copy_name(m->copyKind), device_row(m->deviceId), m->streamId, m->start, m->end);
        written += fprintf(out, "\"bytes\":%" PRIu64 ",\"correlation\":%u}}", (uint64_t)m->bytes, m->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;
        put_event("gpu_memset", "Memset", device_row(m->deviceId), m->streamId, m->start, m->end);
        written += fprintf(out, "\"bytes\":%" PRIu64 ",\"correlation\":%u}}", (uint64_t)m->bytes, m->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_RUNTIME) {
        const CUpti_ActivityAPI *a = (const void *)record;
        const char *name = NULL;
        if (!cupti.name || cupti.name(CUPTI_CB_DOMAIN_RUNTIME_API, a->cbid, &name) != CUPTI_SUCCESS) name = "cuda";
        put_event("cuda_runtime", name, getpid(), a->threadId, a->start, a->end);
        written += fprintf(out, "\"correlation\":%u}}", a->correlationId);
    }
}

/* CUPTI asks for an empty buffer. Without one it counts the records that it drops. */
static void CUPTIAPI on_request(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = NULL;
    *size = *most = 0;
    pthread_mutex_lock(&lock);
    if (out && buffers < BUFFERS_MAX && (*buffer = aligned_alloc(ALIGN, BUFFER_BYTES))) {
        buffers++;
        *size = BUFFER_BYTES;
    }
    pthread_mutex_unlock(&lock);
}

static void CUPTIAPI on_complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    size_t more = 0;
    (void)size;
    pthread_mutex_lock(&lock);
    while (out && valid && cupti.next(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (written < FILE_BYTES_MAX) put(record);
        else lost++;
    }
    if (cupti.dropped && cupti.dropped(context, stream, &more) == CUPTI_SUCCESS) lost += (int64_t)more;
    buffers -= buffer != NULL;
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static void CUPTIAPI on_callback(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *info) {
    (void)data; (void)domain; (void)id; (void)info;
}

/* Open CUPTI and find its functions; return what is missing, or NULL. */
static const char *open_cupti(void) {
    static const char *NAMES[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11", "libcupti.so"};
    void *library = NULL;
    /* One that the program has loaded comes first, whatever its version. */
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !library; i++)
        library = dlopen(NAMES[i], RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES && !library; i++) library = dlopen(NAMES[i], RTLD_NOW);
    if (!library) return "libcupti cannot be loaded: add its folder to LD_LIBRARY_PATH";
    struct { void *at; const char *name; int needed; } wanted[] = {
        {&cupti.subscribe, "cuptiSubscribe", 1}, {&cupti.unsubscribe, "cuptiUnsubscribe", 1},
        {&cupti.enable, "cuptiActivityEnable", 1}, {&cupti.disable, "cuptiActivityDisable", 1},
        {&cupti.callbacks, "cuptiActivityRegisterCallbacks", 1},
        {&cupti.next, "cuptiActivityGetNextRecord", 1}, {&cupti.flush, "cuptiActivityFlushAll", 1},
        {&cupti.timestamp, "cuptiGetTimestamp", 1}, {&cupti.name, "cuptiGetCallbackName", 0},
        {&cupti.dropped, "cuptiActivityGetNumDroppedRecords", 0},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*(void **)wanted[i].at = dlsym(library, wanted[i].name)) && wanted[i].needed)
            return "libcupti has not all functions: install one of CUDA 11.6 or later";
    return NULL;
}

/* Measure how far the wall clock is ahead of CUPTI's: the closest of several readings counts. */
static void measure_clock(void) {
    int64_t best = INT64_MAX;
    for (int i = 0; i < 32; i++) {
        uint64_t theirs = 0;
        int64_t before = wall_ns();
        if (cupti.timestamp(&theirs) != CUPTI_SUCCESS) continue;
        int64_t after = wall_ns();
        if (after - before < best) {
            best = after - before;
            ahead_ns = before + best / 2 - (int64_t)theirs;
        }
    }
}

static int open_file(const char *path) {
    char name[PATH_BYTES + 8];
    snprintf(name, sizeof name, "%s.tmp", path);
    int descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file) return 0;
    pthread_mutex_lock(&lock);
    out = file;
    lost = 0;
    devices = 0;
    written = fprintf(out, "{\"schemaVersion\":1,\"baseTimeNanoseconds\":0,\"traceEvents\":[\n"
                      "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"%s\"}}",
                      getpid(), program_invocation_short_name);
    pthread_mutex_unlock(&lock);
    return 1;
}

/* Complete the file and give it its name. `why` says why there are no events. */
static void close_file(const char *path, const char *why) {
    char name[PATH_BYTES + 8];
    snprintf(name, sizeof name, "%s.tmp", path);
    pthread_mutex_lock(&lock);
    for (int device = 0; device < 32; device++)
        if (devices >> device & 1)
            fprintf(out,
                    ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"GPU %d\"}}",
                    device, device);
    fprintf(out, "],\"lost\":%" PRId64 ",\"error\":\"%s\"}\n", lost, why ? why : "");
    fclose(out);
    out = NULL;
    pthread_mutex_unlock(&lock);
    rename(name, path);
}

/* Trace between the two moments; return why that is not possible, or NULL. */
static const char *trace(const struct order *order) {
    CUpti_SubscriberHandle subscriber;
    const char *why = open_cupti();
    if (why) return why;
    if (cupti.subscribe(&subscriber, on_callback, NULL) != CUPTI_SUCCESS)
        return "CUPTI has another subscriber in this process, or an NVIDIA tool runs it";
    measure_clock();
    if (cupti.callbacks(on_request, on_complete) != CUPTI_SUCCESS) why = "CUPTI does not take buffers";
    sleep_ns(order->start_ns - wall_ns());
    for (size_t i = 0; !why && i < sizeof KINDS / sizeof *KINDS; i++)
        if (cupti.enable(KINDS[i]) != CUPTI_SUCCESS && i == 0) why = "CUPTI does not record kernels here";
    if (!why) sleep_ns(order->start_ns + order->length_ns - wall_ns());
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) cupti.disable(KINDS[i]);
    cupti.flush(1);
    cupti.unsubscribe(subscriber);
    return why;
}

/* Read an order: lines of NAME=value. Return whether there is one. */
static int parse(char *text, struct order *order) {
    char path[PATH_BYTES] = "";
    memset(order, 0, sizeof *order);
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strcmp(line, "ACTIVITIES_LOG_FILE")) snprintf(path, sizeof path, "%s", value);
        if (!strcmp(line, "PROFILE_START_TIME")) order->start_ns = strtoll(value, NULL, 10) * 1000000;
        if (!strcmp(line, "ACTIVITIES_DURATION_MSECS")) order->length_ns = strtoll(value, NULL, 10) * 1000000;
    }
    char *end = strstr(path, ".json");
    if (!end || order->length_ns <= 0 || order->length_ns > 60 * NS || order->start_ns < wall_ns()) return 0;
    *end = 0;
    return snprintf(order->path, sizeof order->path, "%.480s_%d.json", path, getpid()) > 0;
}

static int bound_socket(const char *folder) {
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct timeval wait = {0, ANSWER_MS * 1000};
    if (snprintf(own.sun_path, sizeof own.sun_path, "%s/cupti%d", folder, getpid()) >= (int)sizeof own.sun_path)
        return -1;
    unlink(own.sun_path);
    if (descriptor < 0 || bind(descriptor, (void *)&own, sizeof own) < 0) return -1;
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    return descriptor;
}

static void *serve(void *given) {
    const char *folder = given;
    const char *period = getenv(PERIOD);
    int64_t pause_ns = (period && atoi(period) > 0 ? atoi(period) : PERIOD_MS) * 1000000LL;
    struct sockaddr_un agent = {.sun_family = AF_UNIX};
    static struct { struct header header; char text[TEXT_BYTES + 1]; } answer;
    struct request question = {{BODY_BYTES, "cupti"}, 2, 1, 0, getpid()};
    struct order order;
    int descriptor = bound_socket(folder);
    prctl(PR_SET_NAME, "muster-trace");
    if (descriptor < 0 ||
        snprintf(agent.sun_path, sizeof agent.sun_path, "%s/dynolog", folder) >= (int)sizeof agent.sun_path)
        return NULL;
    for (;; sleep_ns(pause_ns)) {
        /* An answer that came late is not that of this question. */
        while (recv(descriptor, &answer, sizeof answer - 1, MSG_DONTWAIT) >= 0) { }
        if (sendto(descriptor, &question, sizeof question.header + BODY_BYTES, 0, (void *)&agent, sizeof agent) < 0)
            continue;
        struct sockaddr_un sender = {0};
        socklen_t length = sizeof sender;
        ssize_t size = recvfrom(descriptor, &answer, sizeof answer - 1, 0, (void *)&sender, &length);
        if (size <= (ssize_t)sizeof answer.header || strcmp(answer.header.type, question.header.type)) continue;
        if (strncmp(sender.sun_path, agent.sun_path, sizeof sender.sun_path)) continue;
        answer.text[size - (ssize_t)sizeof answer.header] = 0;
        if (!parse(answer.text, &order) || !open_file(order.path)) continue;
        close_file(order.path, trace(&order));
    }
}

/* The CUDA driver calls this when a process begins to use CUDA. Return 1: the library stays. */
int InitializeInjection(void) {
    static int begun;
    const char *folder = getenv(SOCKETS);
    pthread_t thread;
    sigset_t all, before;
    if (begun++ || !folder || !*folder) return 1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  /* signals are for the program's own threads */
    if (pthread_create(&thread, NULL, serve, strdup(folder)) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return 1;
}
