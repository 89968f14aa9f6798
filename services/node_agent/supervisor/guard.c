/* The guard: a program that dies with the supervisor that started it, makes itself ready, and then becomes the job.
 *
 * Arguments: the supervisor's pid; user, group and further groups with blanks between them, or nothing; the working directory; the paths to try in turn; an empty one; the job's own arguments.
 * Descriptor 3 takes the stage and the errno of a failure (child.py, FAILURE); a successful exec closes it.
 * Without a C library, so that its own exec costs next to nothing. Built and embedded by `make guard`. x86-64.
 */
#include <asm/unistd.h>

enum { SETUP, WORKDIR, EXEC };
enum { IDS_MAX = 1026, PR_SET_NO_NEW_PRIVS = 38, STATUS = 3, ENOENT = 2, EACCES = 13, ENOTDIR = 20, PR_SET_PDEATHSIG = 1, SIGKILL = 9, F_SETFD = 2, FD_CLOEXEC = 1, O_WRONLY = 1, FAILED = 127 };

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

__attribute__((noreturn, used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1), **environment = argv + stack[0] + 1, **path = argv + 4, **job = path;
    const char *supervisor = argv[1];
    long error = ENOENT, result;
    CALL(fcntl, STATUS, F_SETFD, FD_CLOEXEC);
    come_first();
    become(argv[2]);
    CALL(prctl, PR_SET_PDEATHSIG, SIGKILL, 0); /* after that: another user takes it away */
    if (CALL(getppid, 0, 0, 0) != number(&supervisor)) /* it died before the line above took effect */
        CALL(exit_group, FAILED, 0, 0);
    if ((result = CALL(setsid, 0, 0, 0)) < 0)
        fail(SETUP, -result);
    if ((result = CALL(chdir, argv[3], 0, 0)) < 0)
        fail(WORKDIR, -result);
    while (**job++)
        ;
    for (; **path; path++) {
        result = -CALL(execve, *path, job, environment);
        if (result != ENOENT && result != ENOTDIR)
            error = result;
        if (error != ENOENT && error != EACCES)
            break;
    }
    fail(EXEC, error);
    __builtin_unreachable();
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
