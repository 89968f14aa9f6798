/* The guard: a program that dies with the supervisor that started it, makes itself ready, and then becomes the job.
 *
 * Arguments: "guard", or "starter" (see there); the supervisor's pid; user, group and further groups with blanks between them, or nothing; the working directory; the paths to try in turn; an empty one; the job's own arguments.
 * Descriptor 3 takes the stage and the errno of a failure (child.py, FAILURE); a successful exec closes it.
 * Without a C library, so that its own exec costs next to nothing. Built and embedded by `make guard`. x86-64.
 */
#include <asm/unistd.h>

enum { SETUP, WORKDIR, EXEC };
enum { IDS_MAX = 1026, PR_SET_NO_NEW_PRIVS = 38, STATUS = 3, ENOENT = 2, EACCES = 13, ENOTDIR = 20, PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4, SIGKILL = 9, SIGCHLD = 17, F_SETFD = 2, FD_CLOEXEC = 1, O_WRONLY = 1, FAILED = 127 };
enum { REQUESTS = 4, PIDS = 5, REQUEST_MAX = 4096, STACK_BYTES = 1 << 16, CLONE_VM = 0x100, CLONE_VFORK = 0x4000, CLONE_PARENT = 0x8000 };

static long call(long number, const void *a, const void *b, const void *c) {
    register long d __asm__("r10") = 0, e __asm__("r8") = 0;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e) : "rcx", "r11", "memory");
    return result;
}

#define CALL(name, a, b, c) call(__NR_##name, (const void *)(long)(a), (const void *)(long)(b), (const void *)(long)(c))

static void fail(char stage, int error) {
    struct { char stage; int error; } __attribute__((packed)) failure = {stage, error};
    CALL(write, STATUS, &failure, sizeof failure);
    CALL(exit_group, FAILED, 0, 0);
}

static long number(const char **digits) {
    long found = 0;
    while (**digits >= '0')
        found = found * 10 + (*(*digits)++ - '0');
    return found;
}

/* Where memory runs out the kernel is to end the job before its supervisor. */
static void come_first(void) {
    long file = CALL(open, "/proc/self/oom_score_adj", O_WRONLY, 0);
    CALL(write, file, "1000", 4);
    CALL(close, file, 0, 0);
}

/* Another user, for good: neither it nor a program that it starts comes back, by whatever bits the file has. */
static void become(const char *account) {
    unsigned ids[IDS_MAX], count = 0;
    for (; *account && count < IDS_MAX; account += *account == ' ')
        ids[count++] = number(&account);
    long result;
    if (count && ((result = CALL(setgroups, count - 2, ids + 2, 0)) < 0 || (result = CALL(setresgid, ids[1], ids[1], ids[1])) < 0 ||
                  (result = CALL(setresuid, ids[0], ids[0], ids[0])) < 0 || (result = CALL(prctl, PR_SET_NO_NEW_PRIVS, 1, 0)) < 0))
        fail(SETUP, -result);
}

static const char *supervisor, *account, *folder;
static char **paths, **job;

static void die_with_supervisor(void) {
    const char *digits = supervisor;
    CALL(prctl, PR_SET_PDEATHSIG, SIGKILL, 0); /* after another user was set: that takes it away */
    if (CALL(getppid, 0, 0, 0) != number(&digits)) /* it died before the line above took effect */
        CALL(exit_group, FAILED, 0, 0);
}

__attribute__((noreturn)) static void run(char **environment) {
    long error = ENOENT, result;
    become(account);
    die_with_supervisor();
    if ((result = CALL(setsid, 0, 0, 0)) < 0)
        fail(SETUP, -result);
    if ((result = CALL(chdir, folder, 0, 0)) < 0)
        fail(WORKDIR, -result);
    for (char **path = paths; **path; path++) {
        result = -CALL(execve, *path, job, environment);
        if (result != ENOENT && result != ENOTDIR)
            error = result;
        if (error != ENOENT && error != EACCES)
            break;
    }
    fail(EXEC, error);
    __builtin_unreachable();
}

/* The starter: a guard that stays, and starts the command for each request, as a child of the supervisor. It lends a child its memory until that executes; the child has a stack of its own.
 * Descriptor 4 has the requests: variables, each with a NUL behind it. A child writes its pid to descriptor 5 first of all.
 */
static char **variables, request[REQUEST_MAX + 1], child_stack[STACK_BYTES] __attribute__((aligned(16)));

__attribute__((noreturn, used)) static void begin_child(void) {
    int pid = CALL(getpid, 0, 0, 0);
    CALL(write, PIDS, &pid, sizeof pid);
    run(variables);
}

static long start(void) {
    register char *stack __asm__("rsi") = child_stack + STACK_BYTES;
    long result = __NR_clone;
    __asm__ volatile("syscall\n test %0, %0\n jnz 1f\n xor %%ebp, %%ebp\n call begin_child\n 1:" : "+a"(result), "+r"(stack) : "D"(CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD), "d"(0) : "rcx", "r8", "r10", "r11", "memory");
    return result;
}

__attribute__((noreturn)) static void serve(char **environment) {
    long count = 0, size, result;
    while (environment[count])
        count++;
    char *all[count + REQUEST_MAX + 1];
    for (long i = 0; i < count; i++)
        all[i] = environment[i];
    variables = all;
    CALL(fcntl, REQUESTS, F_SETFD, FD_CLOEXEC);
    CALL(fcntl, PIDS, F_SETFD, FD_CLOEXEC);
    CALL(prctl, PR_SET_DUMPABLE, 0, 0); /* a child that has become another user shares this memory */
    die_with_supervisor();
    while ((size = CALL(read, REQUESTS, request, REQUEST_MAX)) > 0) {
        long end = count, from = 0;
        for (long at = 0; at < size; at++)
            if (!request[at]) {
                all[end++] = request + from;
                from = at + 1;
            }
        all[end] = 0;
        if ((result = start()) < 0)
            fail(SETUP, -result);
    }
    CALL(exit_group, 0, 0, 0);
    __builtin_unreachable();
}

__attribute__((noreturn, used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1), **environment = argv + stack[0] + 1;
    supervisor = argv[1];
    account = argv[2];
    folder = argv[3];
    job = paths = argv + 4;
    while (**job++)
        ;
    CALL(fcntl, STATUS, F_SETFD, FD_CLOEXEC);
    come_first();
    if (*argv[0] == 's')
        serve(environment);
    run(environment);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
