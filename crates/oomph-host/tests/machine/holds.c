/* Holds memory of each kind until its input ends: 64 MiB of its own, 32 MiB shared, 16 MiB of a file (the first argument), and
 * 32 KiB that are locked. Says "ready" when it does. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *hold(size_t size, int flags, int file) {
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, file, 0);
    if (start == MAP_FAILED) return NULL;
    memset(start, 1, size);
    return start;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    int shared = memfd_create("holds", 0), file = open(arguments[1], O_RDWR | O_CREAT, 0600);
    if (shared < 0 || file < 0 || ftruncate(shared, 32 << 20) || ftruncate(file, 16 << 20)) return 3;
    char *own = hold(64 << 20, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!own || !hold(32 << 20, MAP_SHARED, shared) || !hold(16 << 20, MAP_SHARED, file)) return 4;
    if (mlock(own, 32 << 10)) return 5;
    puts("ready");
    fflush(stdout);
    return getchar() != EOF;
}
