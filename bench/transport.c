/* A plain TCP connection over loopback, as fast as C makes it: the peer of bench/transport.py.

   transport receive PORT-FILE SIZE COUNT: listen, read COUNT messages into one buffer, answer.
   transport send PORT SIZE COUNT: write COUNT messages, wait for the answer, print seconds.
   transport echo PORT-FILE COUNT and transport ping PORT COUNT: 64 bytes there and back; prints
   microseconds of one round trip, the median. */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PING_BYTES = 64 };

static void all(int stream, char *data, size_t size, int writes)
{
    while (size) {
        ssize_t done = writes ? write(stream, data, size) : read(stream, data, size);
        if (done <= 0)
            exit(1);
        data += done;
        size -= done;
    }
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static int accepted(const char *file)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&where, size) || listen(server, 1))
        exit(1);
    getsockname(server, (void *)&where, &size);
    FILE *out = fopen(file, "w");
    fprintf(out, "%d\n", ntohs(where.sin_port));
    fclose(out);
    return accept(server, 0, 0);
}

static int connected(const char *port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    where.sin_port = htons(atoi(port));
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stream, (void *)&where, sizeof where))
        exit(1);
    return stream;
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    int serves = !strcmp(words[1], "receive") || !strcmp(words[1], "echo");
    int pings = !strcmp(words[1], "echo") || !strcmp(words[1], "ping");
    int stream = serves ? accepted(words[2]) : connected(words[2]);
    int one = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    size_t size = pings ? PING_BYTES : strtoul(words[3], 0, 10);
    long times = atol(words[pings ? 3 : 4]);
    char *data = malloc(size);
    memset(data, 1, size);
    double *each = calloc(times, sizeof *each);
    double begun = now();
    for (long i = 0; i < times; i++) {
        double at = now();
        all(stream, data, size, !serves);
        if (pings)
            all(stream, data, size, serves);
        each[i] = now() - at;
    }
    if (!pings)
        all(stream, data, 1, serves);
    double taken = now() - begun;
    qsort(each, times, sizeof *each, compare);
    if (!serves)
        printf("%.9f\n", pings ? each[times / 2] * 1e6 : taken);
    return 0;
}
