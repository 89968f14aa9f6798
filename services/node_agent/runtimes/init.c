/* The first process of a container: it starts the job, passes signals on, reaps, and ends with the job, or when its tether is cut.
 *
 * Arguments: the path of the tether, then the job's own. The tether is a named pipe that the job's runner (runner.py) holds open for writing, in the supervisor's control: when
 * that process is gone, by whatever means, this one ends, and with the first process of a container the kernel kills all the others of it.
 * Without a C library, so that it runs in any image. Built by `make init`. x86-64.
 */
#include <asm/unistd.h>

enum { O_NONBLOCK = 04000, O_CLOEXEC = 02000000, POLLIN = 1, SIGKILL = 9, SIGCHLD = 17, SIGSTOP = 19, SIG_BLOCK = 0, SIG_UNBLOCK = 1, WNOHANG = 1, PR_SET_DUMPABLE = 4, EINTR = 4, EAGAIN = 11, ENOENT = 2, EACCES = 13, ENOTDIR = 20 };
enum { NO_TETHER = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127, CUT = 137, LOOK_MS = 500, PATH_MAX = 4096, MASK_BYTES = 8, INFO_BYTES = 128 };

struct waited { int descriptor; short wanted, found; };

static long call(long number, const void *a, const void *b, const void *c, long d4) {
    register long d __asm__("r10") = d4;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d) : "rcx", "r11", "memory");
    return result;
}

#define CALL4(name, a, b, c, d) call(__NR_##name, (const void *)(long)(a), (const void *)(long)(b), (const void *)(long)(c), (long)(d))
#define CALL(name, a, b, c) CALL4(name, a, b, c, 0)

static long length(const char *text) {
    long found = 0;
    while (text[found])
        found++;
    return found;
}

static void say(const char *text) { CALL(write, 2, text, length(text)); }

static int begins(const char *text, const char *word) {
    while (*word)
        if (*text++ != *word++)
            return 0;
    return 1;
}

/* The command is looked for as a shell would. */
static void become(char **argv, char **environment) {
    static char path[PATH_MAX];
    const char *folders = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    long error = ENOENT, result, slash = 0, name = length(argv[0]);
    for (long i = 0; i < name; i++)
        slash |= argv[0][i] == '/';
    for (char **each = environment; *each; each++)
        if (begins(*each, "PATH="))
            folders = *each + 5;
    if (slash)
        error = -CALL(execve, argv[0], argv, environment);
    while (!slash && *folders) {
        long used = 0;
        while (*folders && *folders != ':') {
            if (used < PATH_MAX - 2)
                path[used++] = *folders;
            folders++;
        }
        folders += *folders == ':';
        if (used + name + 2 > PATH_MAX)
            continue;
        path[used++] = '/';
        for (long i = 0; i <= name; i++)
            path[used + i] = argv[0][i];
        result = -CALL(execve, path, argv, environment);
        if (result != ENOENT && result != ENOTDIR)
            error = result;
    }
    say("muster: the command ");
    say(argv[0]);
    say(error == ENOENT ? " was not found in the image\n" : " cannot be executed in the image\n");
    CALL(exit_group, error == ENOENT ? NOT_FOUND : NOT_EXECUTABLE, 0, 0);
}

/* All who have ended; the job among them is the end. */
static void reap(long job) {
    int status;
    for (;;) {
        long pid = CALL4(wait4, -1, &status, WNOHANG, 0);
        if (pid <= 0)
            return;
        if (pid == job)
            CALL(exit_group, status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff, 0, 0);
    }
}

__attribute__((noreturn, used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1), **environment = argv + stack[0] + 1, byte;
    static unsigned info[INFO_BYTES / sizeof(unsigned)];
    unsigned long all = ~(1UL << (SIGKILL - 1) | 1UL << (SIGSTOP - 1));
    long tether = stack[0] > 2 ? CALL(open, argv[1], O_NONBLOCK | O_CLOEXEC, 0) : -1;
    /* Nobody of the job's user may trace this process, and so make it pass over its tether. */
    CALL(prctl, PR_SET_DUMPABLE, 0, 0);
    /* Of a pipe that nobody holds open a read gives nothing, and of one that is held open EAGAIN. */
    if (tether < 0 || CALL(read, tether, &byte, 1) != -EAGAIN) {
        say("muster: the container has lost its runner before it began\n");
        CALL(exit_group, NO_TETHER, 0, 0);
    }
    CALL4(rt_sigprocmask, SIG_BLOCK, &all, 0, MASK_BYTES);
    long signals = CALL4(signalfd4, -1, &all, MASK_BYTES, O_NONBLOCK | O_CLOEXEC), job = CALL(fork, 0, 0, 0);
    if (job == 0) {
        CALL4(rt_sigprocmask, SIG_UNBLOCK, &all, 0, MASK_BYTES);
        CALL(setsid, 0, 0, 0);
        become(argv + 2, environment);
    }
    if (signals < 0 || job < 0)
        CALL(exit_group, NO_TETHER, 0, 0);
    struct waited waited[2] = {{signals, POLLIN, 0}, {tether, POLLIN, 0}};
    for (;;) {
        if (CALL(read, tether, &byte, 1) != -EAGAIN)
            CALL(exit_group, CUT, 0, 0);
        CALL(poll, waited, 2, LOOK_MS);
        while (CALL(read, signals, info, INFO_BYTES) == INFO_BYTES)
            if (info[0] != SIGCHLD && CALL(kill, -job, info[0], 0) < 0)
                CALL(kill, job, info[0], 0);
        reap(job);
    }
}

__attribute__((naked, noreturn)) void _start(void) { __asm__("mov %rsp, %rdi\n\tcall begin"); }
