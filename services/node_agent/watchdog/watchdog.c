/* The lease watchdog: ends the jobs of one agent whose lease has passed, if their supervisors have not. It does nothing else.
 *
 * Arguments: the mark of supervisors whose job heeds the lease; this program's own name (both at most 15 characters: /proc/PID/stat shows them);
 *   the agent's directory of control groups, as it stands in /proc/PID/cgroup, or nothing; the directory of the same groups where they are killed, or nothing;
 *   the one where their processor time is limited, or nothing; milliseconds before the lease's end at which it kills; a hardware watchdog, or nothing; its
 *   time in seconds; milliseconds after the lease's end at which the hardware may reset the machine at the latest.
 * Descriptors: 0 is read once before it begins; 1 takes one `struct beat` every BEAT_MS and never blocks it; 2 is the lease (lease.py).
 * It uses no disk: it reads locked memory, /proc and control groups. It never reads another process's memory (cmdline, environ): that can block.
 * It ends when the agent is gone (1 has no reader) and for GONE_MS no process has the mark. It ends older ones of the same name, so a younger one ends it.
 * Without a C library. Built by `make watchdog`. x86-64. Tests: tests/integration/test_lease_watchdog.py.
 */
#include <asm/unistd.h>

enum { LEASE = 2, BEATS = 1, PAGE = 4096, SIGKILL = 9, SIGTERM = 15, SIGPIPE = 13, SIG_BLOCK = 0, O_WRONLY = 1, O_DIRECTORY = 0200000, O_CLOEXEC = 02000000,
       PR_SET_DUMPABLE = 4, PR_SET_NAME = 15, MCL_BOTH = 3, SCHED_FIFO = 1, PRIORITY = 50, CLOCK_BOOTTIME = 7, EPIPE = 32, ESRCH = 3, EINTR = 4, BAD = 2 };
enum { BEAT_MS = 250, AGAIN_MS = 20, IDLE_MS = 1000, GONE_MS = 5000, HASTY_ROUNDS = 100, DESCENDANTS_FIRST_ROUNDS = 25, PROCESSES_MAX = 65536, CONTAINERS_MAX = 256, TEXT_MAX = 4096 };
enum { LOCKED = 1, REALTIME = 2, ARMED = 4, ENDED = 8 };
enum { OTHER, SUPERVISOR, BELOW, ORPHAN, CONTAINED };
/* A container's id in the name of its runner (runner.py): "mc:" and twelve hexadecimal digits. */
enum { ID_CHARS = 12, ID_AT = 3, NAME_CHARS = 16 };

#define WDIOC_SETTIMEOUT 0xc0045706UL
#define MS 1000000L

struct beat { unsigned long at_ns; unsigned flags, killed, left, error; };
struct process { int pid, parent; unsigned long ticks; char kind, living, runner; char id[ID_CHARS + 1]; };

static struct process processes[PROCESSES_MAX];
static char containers[CONTAINERS_MAX][ID_CHARS + 1];
static char text[TEXT_MAX], names[TEXT_MAX] __attribute__((aligned(8))), path[512], digits[24];
static int count, left, marked, hardware = -1, rounds;
static unsigned flags, killed, error, own_user;
static const volatile unsigned long *lease;
static unsigned long before_ns, own_ticks;
static const char *mark, *own_name, *home, *kill_dir, *cpu_dir;

void *memset(void *to, int byte, unsigned long size) {
    for (char *at = to; size--;)
        *at++ = byte;
    return to;
}

void *memcpy(void *to, const void *from, unsigned long size) {
    for (char *at = to; size--; from = (const char *)from + 1)
        *at++ = *(const char *)from;
    return to;
}

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

#define CALL(name, a, b, c) call(__NR_##name, (long)(a), (long)(b), (long)(c), 0, 0, 0)

static unsigned long length(const char *words) {
    unsigned long size = 0;
    while (words[size])
        size++;
    return size;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static const char *after(const char *words, const char *part) {
    unsigned long size = length(part);
    for (; *words; words++) {
        unsigned long at = 0;
        while (at < size && words[at] == part[at])
            at++;
        if (at == size)
            return words + size;
    }
    return 0;
}

static unsigned long number(const char **words) {
    unsigned long found = 0;
    while (**words >= '0' && **words <= '9')
        found = found * 10 + (*(*words)++ - '0');
    return found;
}

static const char *decimal(unsigned long value) {
    char *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = '0' + value % 10;
    while (value /= 10);
    return at;
}

/* Join words into `path`; a path that is too long becomes one that does not exist. */
static const char *join(const char *const *words) {
    char *at = path;
    for (; *words; words++)
        for (const char *from = *words; *from && at < path + sizeof path - 1;)
            *at++ = *from++;
    *at = 0;
    return path;
}

static const char *of_process(int pid, const char *file) {
    return join((const char *const[]){"/proc/", decimal(pid), "/", file, 0});
}

static const char *of_group(const char *folder, const struct process *supervisor, const char *file) {
    char pid[24];
    const char *shown = decimal(supervisor->pid);
    memcpy(pid, shown, length(shown) + 1);
    return join((const char *const[]){folder, "/", pid, ".", decimal(supervisor->ticks), "/", file, 0});
}

/* Return the bytes read of a small file, with a zero behind them; -1 if it cannot be read. */
static long read_file(const char *name) {
    long file = CALL(open, name, O_CLOEXEC, 0), size = 0, part = 1;
    if (file < 0)
        return -1;
    while (size < TEXT_MAX - 1 && (part = CALL(read, file, text + size, TEXT_MAX - 1 - size)) > 0)
        size += part;
    CALL(close, file, 0, 0);
    text[size] = 0;
    return part < 0 ? -1 : size;
}

static int write_file(const char *name, const char *words) {
    long file = CALL(open, name, O_WRONLY | O_CLOEXEC, 0);
    if (file < 0)
        return 0;
    long wrote = CALL(write, file, words, length(words));
    CALL(close, file, 0, 0);
    return wrote > 0;
}

static unsigned long now_ns(void) {
    long at[2];
    CALL(clock_gettime, CLOCK_BOOTTIME, at, 0);
    return at[0] * 1000 * MS + at[1];
}

static int is_over(void) {
    return now_ns() + before_ns >= *lease;
}

static void wait_ms(long ms) {
    long time[2] = {ms / 1000, ms % 1000 * MS};
    CALL(nanosleep, time, 0, 0);
}

/* Read one process; return false if it is gone. The name may hold anything, so it ends at the last bracket. */
static int look_at(int pid, struct process *found, char *name) {
    const char *at = 0;
    if (read_file(of_process(pid, "stat")) <= 0)
        return 0;
    char *open = text, *closed = 0;
    while (*open && *open != '(')
        open++;
    for (char *each = open; *each; each++)
        if (*each == ')')
            closed = each;
    if (!closed)
        return 0;
    int size = closed - open - 1;
    size = size > NAME_CHARS - 1 ? NAME_CHARS - 1 : size;
    memcpy(name, open + 1, size);
    name[size] = 0;
    char state = closed[2];
    long fields[20];
    at = closed + 4;
    for (int field = 0; field < 19; field++) { /* field 0 is the parent, 16 the threads, 18 the start */
        int minus = *at == '-';
        at += minus;
        fields[field] = number(&at);
        at += *at == ' ';
    }
    found->pid = pid;
    found->parent = fields[0];
    found->ticks = fields[18];
    found->living = (state != 'Z' && state != 'X') || fields[16] > 1; /* the first thread may have ended alone */
    found->kind = OTHER;
    found->runner = 0;
    return 1;
}

/* Return whether the process belongs to this program's user, whatever it hides of itself. */
static int is_ours(int pid) {
    const char *at;
    if (read_file(of_process(pid, "status")) <= 0 || !(at = after(text, "\nUid:\t")))
        return 0;
    return number(&at) == own_user;
}

/* Kill a process if it is still the one that was seen: pids are used again. One that heeds the lease is left alone under a lease that was renewed meanwhile:
 * it may have begun under the new one. */
static void end(const struct process *seen, int heeds_lease) {
    struct process again;
    char name[NAME_CHARS];
    long descriptor = CALL(pidfd_open, seen->pid, 0, 0);
    if (descriptor < 0) {
        if (descriptor != -ESRCH)
            error = -descriptor;
        return;
    }
    if (look_at(seen->pid, &again, name) && again.ticks == seen->ticks && (!heeds_lease || is_over())) {
        long result = call(__NR_pidfd_send_signal, descriptor, SIGKILL, 0, 0, 0, 0);
        if (result == 0)
            killed++, flags |= ENDED;
        else if (result != -ESRCH)
            error = -result;
    }
    CALL(close, descriptor, 0, 0);
}

static struct process *find(int pid) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (processes[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && processes[low].pid == pid ? &processes[low] : 0;
}

/* Return whether a name is that of a runner. Any process of this user may give itself one, and "mc:system.slice" would be a part of many control groups. */
static int is_runner(const char *name) {
    if (name[0] != 'm' || name[1] != 'c' || name[2] != ':' || length(name) != ID_AT + ID_CHARS)
        return 0;
    for (const char *at = name + ID_AT; *at; at++)
        if (!(*at >= '0' && *at <= '9') && !(*at >= 'a' && *at <= 'f'))
            return 0;
    return 1;
}

static int is_older(const struct process *other, int self) {
    return other->ticks < own_ticks || (other->ticks == own_ticks && other->pid < self);
}

static void note(int pid, int self) {
    struct process *found = &processes[count];
    char name[NAME_CHARS];
    if (pid == self || !look_at(pid, found, name))
        return;
    if (same(name, mark) && is_ours(pid))
        found->kind = SUPERVISOR, marked += found->living;
    else if (same(name, own_name) && is_older(found, self) && is_ours(pid))
        end(found, 0); /* the watchdog of an agent before this one */
    else if (is_runner(name) && is_ours(pid))
        found->runner = 1, memcpy(found->id, name + ID_AT, ID_CHARS + 1);
    count++;
}

/* List all processes, in the order of their pids, as the kernel does. */
static void list(int self) {
    long folder = CALL(open, "/proc", O_DIRECTORY | O_CLOEXEC, 0), size;
    count = marked = 0;
    if (folder < 0) {
        error = -folder;
        return;
    }
    while ((size = CALL(getdents64, folder, names, sizeof names)) > 0)
        for (long at = 0; at < size; at += *(unsigned short *)(names + at + 16)) {
            const char *name = names + at + 19;
            if (*name >= '1' && *name <= '9' && count < PROCESSES_MAX)
                note(number(&name), self);
        }
    CALL(close, folder, 0, 0);
}

/* Mark what is below a supervisor. Pids grow downwards, mostly, so one pass finds nearly all. */
static void mark_below(void) {
    for (int changed = 1, passes = 0; changed && passes < 64; passes++) {
        changed = 0;
        for (int index = 0; index < count; index++) {
            struct process *parent = processes[index].kind == OTHER ? find(processes[index].parent) : 0;
            if (parent && (parent->kind == SUPERVISOR || parent->kind == BELOW))
                processes[index].kind = BELOW, changed = 1;
        }
    }
}

/* Return whether a process belongs to a supervisor's group whose supervisor is gone. `text` is its /proc/PID/cgroup. */
static int is_orphan(void) {
    const char *at = text;
    if (!*home)
        return 0;
    while ((at = after(at, home))) {
        const char *digit = at + (*at == '/');
        int pid = number(&digit);
        if (!pid || *digit++ != '.')
            continue;
        unsigned long ticks = number(&digit);
        struct process supervisor;
        char name[NAME_CHARS];
        if (*digit == '\n' || *digit == 0)
            return !(look_at(pid, &supervisor, name) && supervisor.ticks == ticks && supervisor.living);
    }
    return 0;
}

static int is_contained(int known) {
    for (int index = 0; index < known; index++)
        if (after(text, containers[index]))
            return 1;
    return 0;
}

/* Mark what the control groups say: processes of containers, and those whose supervisor is gone. */
static void mark_groups(void) {
    int known = 0;
    for (int index = 0; index < count; index++)
        if (processes[index].runner && processes[index].kind == BELOW && known < CONTAINERS_MAX)
            memcpy(containers[known++], processes[index].id, ID_CHARS + 1);
    if (!known && !*home)
        return;
    for (int index = 0; index < count; index++) {
        struct process *each = &processes[index];
        if (each->kind != OTHER || !each->living || read_file(of_process(each->pid, "cgroup")) <= 0)
            continue;
        each->kind = is_contained(known) ? CONTAINED : is_orphan() ? ORPHAN : OTHER;
    }
}

/* Kill the group of a supervisor at once, with all that its processes start meanwhile. Its processor time is freed first: a process that may not run cannot end. */
static int end_group(const struct process *supervisor) {
    if (*cpu_dir && !write_file(of_group(cpu_dir, supervisor, "cpu.max"), "max"))
        write_file(of_group(cpu_dir, supervisor, "cpu.cfs_quota_us"), "-1");
    return *kill_dir && write_file(of_group(kill_dir, supervisor, "cgroup.kill"), "1");
}

/* Kill everything that heeds the lease; return how much of it was alive. Supervisors go last: they keep what is below them together. */
static void sweep(int self) {
    list(self);
    mark_below();
    mark_groups();
    left = 0;
    int below = 0;
    if (!is_over()) /* it was renewed while the processes were listed, and some of them began under it */
        return;
    for (int index = 0; index < count; index++)
        if (processes[index].kind > SUPERVISOR && processes[index].living) {
            below += processes[index].kind == BELOW;
            left++;
            end(&processes[index], 1);
        }
    for (int index = 0; index < count; index++)
        if (processes[index].kind == SUPERVISOR && processes[index].living) {
            left++;
            if (is_over() && end_group(&processes[index]))
                killed++, flags |= ENDED;
            else if (!below || rounds >= DESCENDANTS_FIRST_ROUNDS)
                end(&processes[index], 1);
        }
    rounds = left ? rounds + 1 : 0;
}

/* Begin to reset the machine unless this program prevents it. */
static void arm(const char *device, unsigned seconds) {
    long file = CALL(open, device, O_WRONLY | O_CLOEXEC, 0);
    if (file < 0) {
        error = -file;
        return;
    }
    int wanted = seconds;
    long result = CALL(ioctl, file, WDIOC_SETTIMEOUT, &wanted);
    if (result < 0 || wanted > (int)seconds) {
        error = result < 0 ? -result : 22;
        CALL(write, file, "V", 1);
        CALL(close, file, 0, 0);
        return;
    }
    hardware = file;
}

static void disarm(void) {
    if (hardware >= 0) {
        CALL(write, hardware, "V", 1);
        CALL(close, hardware, 0, 0);
        hardware = -1;
        flags &= ~ARMED;
    }
}

/* Tend the hardware watchdog, arming it first, while the lease lasts long enough or no job lives. One that another watchdog left running, which was killed,
 * runs on: it is armed again in the first round that permits tending it. Leases that are renewed for less than that are too short for it. */
static void tend(int self, const char *device, unsigned seconds, unsigned long fence_ns, unsigned long now, unsigned long deadline) {
    static unsigned long last_deadline = -1UL;
    static int too_short;
    unsigned long seconds_ns = seconds * 1000 * MS;
    if (deadline > now + seconds_ns + 2000 * MS)
        too_short = 0;
    else if (deadline > last_deadline)
        too_short = 1;
    last_deadline = deadline;
    if (too_short) {
        if (!(flags & ARMED))
            disarm();
        flags &= ~ARMED; /* the beat says so one round before the device is released: nothing may count on a reset that never comes */
        return;
    }
    int late = now + seconds_ns >= deadline + fence_ns;
    if (late && now + before_ns < deadline)
        list(self); /* no sweep has counted them */
    if (late && (left || marked))
        return;
    if (hardware < 0)
        arm(device, seconds);
    long written = hardware >= 0 ? CALL(write, hardware, "\0", 1) : 0;
    if (written < 0) { /* the device is gone */
        error = -written;
        disarm();
    } else if (hardware >= 0)
        flags |= ARMED;
}

static unsigned long milliseconds(const char *words) {
    return number(&words) * MS;
}

__attribute__((noreturn, used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1), byte;
    mark = argv[1], own_name = argv[2], home = argv[3], kill_dir = argv[4], cpu_dir = argv[5];
    const char *device = argv[7], *seconds_text = argv[8];
    unsigned long seconds = number(&seconds_text), fence_ns = milliseconds(argv[9]);
    before_ns = milliseconds(argv[6]);
    unsigned long ignored = 1UL << (SIGPIPE - 1) | 1UL << (SIGTERM - 1), pending = 0;
    int self = CALL(getpid, 0, 0, 0), priority = PRIORITY, gone = 0;
    while (CALL(read, 0, &byte, 1) == -EINTR) /* until the agent has put it into its group */
        ;
    call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&ignored, 0, 8, 0, 0);
    CALL(prctl, PR_SET_NAME, own_name, 0);
    CALL(prctl, PR_SET_DUMPABLE, 0, 0);
    write_file("/proc/self/oom_score_adj", "-1000");
    own_user = CALL(getuid, 0, 0, 0);
    lease = (unsigned long *)call(__NR_mmap, 0, PAGE, 1, 1, LEASE, 0);
    if ((long)lease < 0 && (long)lease > -PAGE)
        CALL(exit_group, BAD, 0, 0);
    flags = (CALL(mlockall, MCL_BOTH, 0, 0) == 0 ? LOCKED : 0) | (CALL(sched_setscheduler, 0, SCHED_FIFO, &priority) == 0 ? REALTIME : 0);
    struct process own;
    char shown[NAME_CHARS];
    if (look_at(self, &own, shown))
        own_ticks = own.ticks;
    list(self); /* ends the one before */
    unsigned long swept_ns = 0, empty_ns = 0;
    for (;;) {
        unsigned long now = now_ns(), deadline = *lease;
        error = 0;
        int over = now + before_ns >= deadline;
        if (over && (left || now - swept_ns >= IDLE_MS * MS)) {
            sweep(self);
            swept_ns = now;
        } else if (!over)
            left = rounds = 0;
        if (*device)
            tend(self, device, seconds, fence_ns, now, deadline);
        struct beat beat = {now, flags, killed, left, error};
        gone = CALL(write, BEATS, &beat, sizeof beat) == -EPIPE;
        if (gone && now - swept_ns >= IDLE_MS * MS && !over)
            list(self), swept_ns = now;
        if (!gone || marked || left)
            empty_ns = now;
        pending = 0;
        call(__NR_rt_sigpending, (long)&pending, 8, 0, 0, 0, 0);
        if ((gone && now - empty_ns >= GONE_MS * MS) || pending & 1UL << (SIGTERM - 1)) {
            disarm();
            CALL(exit_group, 0, 0, 0);
        }
        long until_ns = (long)(deadline - before_ns - now_ns());
        long sleep_ms = over ? (left && rounds < HASTY_ROUNDS ? AGAIN_MS : BEAT_MS) : until_ns < 0 ? 0 : until_ns / MS + 1;
        wait_ms(sleep_ms < BEAT_MS ? sleep_ms : BEAT_MS);
    }
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
