/* The first process of a container: it starts the job, passes signals on, reaps, and ends with the job, or when its tether is cut.
 *
 * Arguments: the path of the tether, then the job's own. The tether is a named pipe that the job's runner (runner.py) holds open for writing, in the supervisor's control: when
 * that process is gone, by whatever means, this one ends, and with the first process of a container the kernel kills all the others of it.
 *
 * It also starts the commands of `muster exec`, which so inherit everything that the engine gave the container. At its start it connects to DOOR. The runner answers with a
 * listening socket, which no process of the container can reach. Each command (exec_inside.py) connects there. This process says hello with one byte. The command sends TERM=...,
 * its words and its three streams; then one byte for each signal. It gets one byte, the exit code. When the connection ends, the command's session is killed.
 * Without a C library, so that it runs in any image. Built by `make init`. x86-64.
 */
#include <asm/unistd.h>

enum { O_NONBLOCK = 04000, O_DIRECTORY = 0200000, O_CLOEXEC = 02000000, POLLIN = 1, SIGKILL = 9, SIGTERM = 15, SIGCHLD = 17, SIGSTOP = 19, SIG_BLOCK = 0, SIG_UNBLOCK = 1, WNOHANG = 1, PR_SET_DUMPABLE = 4, EINTR = 4, EAGAIN = 11, ENOENT = 2, EACCES = 13, ENOTDIR = 20 };
enum { AF_UNIX = 1, SOCK_SEQPACKET = 5, MSG_CTRUNC = 010, MSG_TRUNC = 040, MSG_DONTWAIT = 0100, MSG_NOSIGNAL = 040000, MSG_CMSG_CLOEXEC = 0x40000000, TCGETS = 0x5401, TIOCSCTTY = 0x540E };
enum { NO_TETHER = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127, CUT = 137, LOOK_MS = 500, PATH_MAX = 4096, MASK_BYTES = 8, INFO_BYTES = 128 };
/* Of one container; of one request; of the head of a list of descriptors; and of the entries of a folder, as getdents64 writes them. */
enum { EXECS_MAX = 32, REQUEST_BYTES = 16384, WORDS_MAX = 4096, HEAD_BYTES = 16, STREAMS = 3, ENTRIES_BYTES = 4096, ENTRY_SIZE_AT = 16, ENTRY_NAME_AT = 19 };
/* A job that has ended leaves its commands this long after SIGTERM. */
enum { GRACE_MS = 200, GRACE_LOOK_MS = 10 };

#define DOOR "/.muster-door"

struct waited { int descriptor; short wanted, found; };
struct address { unsigned short family; char path[sizeof DOOR]; };
struct part { void *start; unsigned long size; };
struct message { void *name; unsigned long name_size; struct part *parts; unsigned long count; void *control; unsigned long control_size; long flags; };
struct passed { unsigned long size; int level, kind, descriptors[4]; };
/* A command: without a pid it has not begun; without a connection it is being killed. */
struct exec { long connection, pid; };

static struct exec execs[EXECS_MAX];

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

static void send_byte(long to, char byte) {
    struct part part = {&byte, 1};
    struct message message = {0, 0, &part, 1, 0, 0, 0};
    CALL(sendmsg, to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Receive one message with its descriptors; return its size, 0 or less for none. */
static long receive(long from, char *data, long size, struct passed *passed) {
    struct part part = {data, size};
    struct message message = {0, 0, &part, 1, passed, sizeof *passed, 0};
    passed->size = HEAD_BYTES;
    long result = CALL(recvmsg, from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    return message.flags & (MSG_TRUNC | MSG_CTRUNC) ? -ENOENT : result;
}

static long count_of(struct passed *passed) { return (passed->size - HEAD_BYTES) / sizeof(int); }

/* Signal a command's process group, which in its first moment it has not yet. */
static void signal_group(long pid, long number) {
    if (CALL(kill, -pid, number, 0) < 0)
        CALL(kill, pid, number, 0);
}

/* Return the session of a process, -1 without one. In its stat file the name may hold anything, so the fields begin after the last parenthesis. */
static long session_of(const char *name) {
    static char path[PATH_MAX], text[PATH_MAX];
    long used = 0, session = 0, at = 0;
    for (const char *from = "/proc/"; *from; from++)
        path[used++] = *from;
    for (; *name; name++)
        path[used++] = *name;
    for (const char *from = "/stat"; *from; from++)
        path[used++] = *from;
    path[used] = 0;
    long file = CALL(open, path, O_CLOEXEC, 0), size = CALL(read, file, text, PATH_MAX - 1);
    CALL(close, file, 0, 0);
    for (long i = 0; i < size; i++)
        at = text[i] == ')' ? i : at;
    /* ") state parent group session": the session begins after the fourth blank. */
    for (long blanks = 0; at < size && blanks < 4; at++)
        blanks += text[at] == ' ';
    if (at >= size || size <= 0)
        return -1;
    while (at < size && text[at] >= '0' && text[at] <= '9')
        session = session * 10 + (text[at++] - '0');
    return session;
}

static void kill_session(long session) {
    static char entries[ENTRIES_BYTES];
    long folder = CALL(open, "/proc", O_DIRECTORY | O_CLOEXEC, 0), size;
    signal_group(session, SIGKILL);
    while ((size = CALL(getdents64, folder, entries, ENTRIES_BYTES)) > 0)
        for (long at = 0; at < size; at += *(unsigned short *)(entries + at + ENTRY_SIZE_AT)) {
            const char *name = entries + at + ENTRY_NAME_AT;
            long pid = 0;
            for (const char *digit = name; *digit >= '0' && *digit <= '9'; digit++)
                pid = pid * 10 + (*digit - '0');
            if (pid > 1 && session_of(name) == session)
                CALL(kill, pid, SIGKILL, 0);
        }
    CALL(close, folder, 0, 0);
}

/* Become a command, in the forked child: its words and TERM are in the request. */
__attribute__((noreturn)) static void become_exec(char *request, long size, int *streams, char **environment, unsigned long all) {
    static char *words[WORDS_MAX + 1];
    char terminal[64], **kept = environment;
    long count = 0, at = length(request) + 1;
    for (; at < size && count < WORDS_MAX; at += length(request + at) + 1)
        words[count++] = request + at;
    if (*request) {
        for (char **each = environment; *each; each++)
            if (!begins(*each, "TERM="))
                *kept++ = *each;
        *kept = 0;
        *--environment = request; /* in the place of the end of this process's own arguments */
    }
    CALL4(rt_sigprocmask, SIG_UNBLOCK, &all, 0, MASK_BYTES);
    CALL(setsid, 0, 0, 0);
    for (long i = 0; i < STREAMS; i++)
        CALL(dup2, streams[i], i, 0);
    if (CALL(ioctl, 0, TCGETS, terminal) == 0)
        CALL(ioctl, 0, TIOCSCTTY, 0);
    if (count)
        become(words, environment);
    CALL(exit_group, NOT_FOUND, 0, 0);
    for (;;);
}

/* Take what a command sent: its request, then signals. Without a connection its session is killed. */
static void take(struct exec *exec, char **environment, unsigned long all) {
    static char request[REQUEST_BYTES];
    struct passed passed;
    long size = receive(exec->connection, request, REQUEST_BYTES - 1, &passed), given = count_of(&passed);
    if (size == -EAGAIN)
        return;
    if (size > 0 && exec->pid == 0 && given == STREAMS) {
        request[size] = 0;
        exec->pid = CALL(fork, 0, 0, 0);
        if (exec->pid == 0)
            become_exec(request, size, passed.descriptors, environment, all);
    } else if (size > 0 && exec->pid > 0)
        signal_group(exec->pid, *request);
    else
        size = 0;
    for (long i = 0; i < given; i++)
        CALL(close, passed.descriptors[i], 0, 0);
    if (size > 0 && exec->pid > 0)
        return;
    CALL(close, exec->connection, 0, 0);
    exec->connection = -1;
    if (exec->pid > 0)
        kill_session(exec->pid);
    else
        exec->pid = 0;
}

/* Take the listening socket from the runner, or a command from that socket. */
static void admit(int *door, int *is_listening) {
    struct passed passed;
    char byte;
    if (!*is_listening) {
        long size = receive(*door, &byte, 1, &passed);
        if (size == -EAGAIN)
            return;
        CALL(close, *door, 0, 0);
        *is_listening = size > 0 && count_of(&passed) == 1;
        *door = *is_listening ? passed.descriptors[0] : -1;
        return;
    }
    long connection = CALL4(accept4, *door, 0, 0, O_NONBLOCK | O_CLOEXEC);
    for (long i = 0; connection >= 0 && i < EXECS_MAX; i++)
        if (execs[i].connection < 0 && execs[i].pid == 0) {
            execs[i].connection = connection;
            send_byte(connection, 0);
            return;
        }
    if (connection >= 0)
        CALL(close, connection, 0, 0);
}

/* Connect to the runner; -1 if it does not listen. */
static long knock(void) {
    struct address address = {AF_UNIX, DOOR};
    long found = CALL(socket, AF_UNIX, SOCK_SEQPACKET | O_NONBLOCK | O_CLOEXEC, 0);
    if (found >= 0 && CALL(connect, found, &address, sizeof address) < 0) {
        CALL(close, found, 0, 0);
        return -1;
    }
    return found;
}

static long code_of(int status) { return status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff; }

/* Reap all who have ended, and say so to those who wait for a command; return the exit code of the job, -1 while it runs. */
static long reap(long job) {
    long ended = -1;
    int status;
    for (;;) {
        long pid = CALL4(wait4, -1, &status, WNOHANG, 0);
        if (pid <= 0)
            return ended;
        if (pid == job)
            ended = code_of(status);
        for (long i = 0; i < EXECS_MAX; i++)
            if (execs[i].pid == pid) {
                if (execs[i].connection >= 0) {
                    send_byte(execs[i].connection, code_of(status));
                    CALL(close, execs[i].connection, 0, 0);
                }
                execs[i] = (struct exec){-1, 0};
            }
    }
}

/* End with the job. The kernel kills what is left. */
static void end(long code, long job) {
    for (long i = 0; i < EXECS_MAX; i++)
        if (execs[i].pid > 0)
            signal_group(execs[i].pid, SIGTERM);
    for (long waited = 0, left = 1; left && waited < GRACE_MS; waited += GRACE_LOOK_MS) {
        reap(job);
        left = 0;
        for (long i = 0; i < EXECS_MAX; i++)
            left |= execs[i].pid > 0;
        if (left)
            CALL(poll, 0, 0, GRACE_LOOK_MS);
    }
    CALL(exit_group, code, 0, 0);
}

__attribute__((noreturn, used)) static void begin(long *stack) {
    char **argv = (char **)(stack + 1), **environment = argv + stack[0] + 1, byte;
    static unsigned info[INFO_BYTES / sizeof(unsigned)];
    static struct waited waited[3 + EXECS_MAX];
    unsigned long all = ~(1UL << (SIGKILL - 1) | 1UL << (SIGSTOP - 1));
    long tether = stack[0] > 2 ? CALL(open, argv[1], O_NONBLOCK | O_CLOEXEC, 0) : -1, code;
    int is_listening = 0, door;
    /* Nobody of the job's user may trace this process, and so make it pass over its tether. */
    CALL(prctl, PR_SET_DUMPABLE, 0, 0);
    /* Of a pipe that nobody holds open a read gives nothing, and of one that is held open EAGAIN. */
    if (tether < 0 || CALL(read, tether, &byte, 1) != -EAGAIN) {
        say("muster: the container has lost its runner before it began\n");
        CALL(exit_group, NO_TETHER, 0, 0);
    }
    for (long i = 0; i < EXECS_MAX; i++)
        execs[i] = (struct exec){-1, 0};
    /* Before the job begins, so that nothing of it can connect in this process's place. */
    door = knock();
    CALL4(rt_sigprocmask, SIG_BLOCK, &all, 0, MASK_BYTES);
    long signals = CALL4(signalfd4, -1, &all, MASK_BYTES, O_NONBLOCK | O_CLOEXEC), job = CALL(fork, 0, 0, 0);
    if (job == 0) {
        CALL4(rt_sigprocmask, SIG_UNBLOCK, &all, 0, MASK_BYTES);
        CALL(setsid, 0, 0, 0);
        become(argv + 2, environment);
    }
    if (signals < 0 || job < 0)
        CALL(exit_group, NO_TETHER, 0, 0);
    for (;;) {
        waited[0] = (struct waited){signals, POLLIN, 0};
        waited[1] = (struct waited){tether, POLLIN, 0};
        waited[2] = (struct waited){door, POLLIN, 0};
        for (long i = 0; i < EXECS_MAX; i++)
            waited[3 + i] = (struct waited){execs[i].connection, POLLIN, 0};
        if (CALL(read, tether, &byte, 1) != -EAGAIN)
            CALL(exit_group, CUT, 0, 0);
        CALL(poll, waited, 3 + EXECS_MAX, LOOK_MS);
        while (CALL(read, signals, info, INFO_BYTES) == INFO_BYTES)
            if (info[0] != SIGCHLD && CALL(kill, -job, info[0], 0) < 0)
                CALL(kill, job, info[0], 0);
        for (long i = 0; i < EXECS_MAX; i++)
            if (waited[3 + i].found && execs[i].connection >= 0)
                take(execs + i, environment, all);
        if (waited[2].found)
            admit(&door, &is_listening);
        if ((code = reap(job)) >= 0)
            end(code, job);
    }
}

__attribute__((naked, noreturn)) void _start(void) { __asm__("mov %rsp, %rdi\n\tcall begin"); }
