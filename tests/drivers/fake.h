/* What the libraries that stand in for the vendors' have in common: how a test tells them what to answer, and where to fail.
 *
 * FAKE_DRIVERS names a directory, in which a library reads the file of its own name, if it is there: lines of three words.
 *   FUNCTION DEVICE hang      the call never comes back
 *   FUNCTION DEVICE 15        it returns this code
 *   KEY DEVICE VALUE          what a library knows by that key
 * A star stands for every function or device. NAME.events is read from where it ended when the library was opened: one line each. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HERE __attribute__((unused)) static
#define CHECK(device)                                 \
    do {                                              \
        int code_ = fault_of(__func__, (int)(device)); \
        if (code_) return code_;                      \
    } while (0)

HERE FILE *control_file(const char *suffix) {
    char path[4096];
    const char *folder = getenv("FAKE_DRIVERS");
    if (!folder) return NULL;
    snprintf(path, sizeof path, "%s/" LIBRARY "%s", folder, suffix);
    return access(path, R_OK) ? NULL : fopen(path, "r");
}
/* Whether there is a line of these two words; its third. The last one counts. */
HERE int look(const char *what, int device, char *value) {
    char name[64], which[16], said[256];
    int found = 0;
    FILE *file = control_file("");
    if (!file) return 0;
    while (fscanf(file, "%63s %15s %255s", name, which, said) == 3)
        if ((!strcmp(name, what) || !strcmp(name, "*")) && (!strcmp(which, "*") || atoi(which) == device)) {
            strcpy(value, said);
            found = 1;
        }
    fclose(file);
    return found;
}
HERE long long number_of(const char *key, int device, long long otherwise) {
    char value[256];
    return look(key, device, value) && strcmp(value, "hang") ? atoll(value) : otherwise;
}
HERE int fault_of(const char *function, int device) {
    char value[256];
    if (!look(function, device, value)) return 0;
    if (!strcmp(value, "hang")) for (;;) pause();
    return atoi(value);
}
/* Zeroes at first; what is written there the next process of this library finds again (FAKE_DRIVERS/NAME.cards), as on real cards. */
HERE void *that_outlives(size_t size) {
    char path[4096];
    const char *folder = getenv("FAKE_DRIVERS");
    int file;
    void *found;
    if (!folder) return calloc(1, size);
    snprintf(path, sizeof path, "%s/" LIBRARY ".cards", folder);
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)size)) abort();
    found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return found;
}
static long events_read;
HERE void events_begin(void) {
    FILE *file = control_file(".events");
    events_read = 0;
    if (file) { fseek(file, 0, SEEK_END); events_read = ftell(file); fclose(file); }
}
/* The next line: a device, and two numbers that mean what the library says. */
HERE int next_event(int *device, unsigned long long *kind, unsigned long long *data) {
    FILE *file = control_file(".events");
    int found = 0;
    if (!file) return 0;
    fseek(file, events_read, SEEK_SET);
    found = fscanf(file, "%d %llu %llu\n", device, kind, data) == 3;
    if (found) events_read = ftell(file);
    fclose(file);
    return found;
}
