/* Best fit with immediate coalescing over two sorted arrays: the peer of bench/memory_pool.py.
 * replay() runs the same frees and allocations as the pool and writes the nanoseconds of each. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { uint64_t size, offset; } Block;
static Block *by_size, *by_offset;
static size_t count;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static size_t find_size(uint64_t size, uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        Block b = by_size[middle];
        if (b.size < size || (b.size == size && b.offset < offset)) low = middle + 1;
        else high = middle;
    }
    return low;
}

static size_t find_offset(uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (by_offset[middle].offset < offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void insert(uint64_t offset, uint64_t size)
{
    size_t s = find_size(size, offset), o = find_offset(offset);
    Block b = {size, offset};
    memmove(by_size + s + 1, by_size + s, (count - s) * sizeof b);
    memmove(by_offset + o + 1, by_offset + o, (count - o) * sizeof b);
    by_size[s] = by_offset[o] = b;
    count++;
}

static void take(Block b)
{
    size_t s = find_size(b.size, b.offset), o = find_offset(b.offset);
    memmove(by_size + s, by_size + s + 1, (count - s - 1) * sizeof b);
    memmove(by_offset + o, by_offset + o + 1, (count - o - 1) * sizeof b);
    count--;
}

static uint64_t allocate(uint64_t size)
{
    size_t s = find_size(size, 0);
    if (s == count) return UINT64_MAX;
    Block b = by_size[s];
    take(b);
    if (b.size > size) insert(b.offset + size, b.size - size);
    return b.offset;
}

static void release(uint64_t offset, uint64_t size)
{
    size_t o = find_offset(offset);
    if (o < count && by_offset[o].offset == offset + size) {
        size += by_offset[o].size;
        take(by_offset[o]);
    }
    if (o > 0 && by_offset[o - 1].offset + by_offset[o - 1].size == offset) {
        Block before = by_offset[o - 1];
        take(before);
        offset = before.offset;
        size += before.size;
    }
    insert(offset, size);
}

/* operations: a slot number to free, or -1 - slot to allocate `sizes[i]` bytes for. Returns how
 * many allocations found no block. */
int64_t replay(uint64_t total, int64_t n, const int64_t *operations, const int64_t *sizes,
               int64_t slots, int64_t *nanoseconds)
{
    uint64_t *offsets = malloc(slots * 8), *held = malloc(slots * 8);
    int64_t failed = 0;
    by_size = malloc((slots + 2) * sizeof(Block));
    by_offset = malloc((slots + 2) * sizeof(Block));
    count = 0;
    insert(0, total);
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = operations[i] >= 0 ? operations[i] : -1 - operations[i];
        int64_t begin = now();
        if (operations[i] < 0) {
            offsets[slot] = allocate(sizes[i]);
            nanoseconds[i] = now() - begin;
            held[slot] = sizes[i];
            failed += offsets[slot] == UINT64_MAX;
        } else {
            if (offsets[slot] != UINT64_MAX) release(offsets[slot], held[slot]);
            nanoseconds[i] = now() - begin;
        }
    }
    free(offsets); free(held); free(by_size); free(by_offset);
    return failed;
}
