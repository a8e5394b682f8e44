/* A driver's management library (NVML) that says what a test wants it to say.
 *
 *     gcc -shared -fPIC -O1 -o libnvidia-ml.so.1 fake_nvml.c
 *     OOMPH_NVML=$PWD/libnvidia-ml.so.1 FAKE_NVML_PROCESSES="0,1234,1073741824" oomph top --once
 *
 * Each setting is looked up at each call: first in the environment, then in the file that lies beside the library and is
 * called as it is with ".conf" at the end (lines NAME=VALUE), which a test may change while a program has the library open.
 *
 * FAKE_NVML_ERROR      what nvmlInit answers: 18 library and kernel module are of two versions, 9 the driver is not loaded,
 *                      4 no permission, 999 unknown. 0 unless set. A change later on is what every call answers.
 * FAKE_NVML_CARDS      total,used,reserved[,name];…  in bytes, as nvmlDeviceGetMemoryInfo_v2 has them: free is what is left of
 *                      the total after both. reserved "-": as a driver before 510, which has no second version. A card that is
 *                      "lost" instead has fallen off the bus. Empty: no cards. Unless set, two: 143771 MiB (H200) with 20 GiB
 *                      used, and 24564 MiB (RTX 4090) with 1 GiB used.
 * FAKE_NVML_PROCESSES  card,pid,bytes[,kind];…  bytes "-": not available. kind c compute (unless said), g graphics, b both.
 * FAKE_NVML_MIG        numbers of cards that are cut into instances, with commas.
 * FAKE_NVML_EXCLUSIVE  numbers of cards that one process may use at a time, with commas.
 * FAKE_NVML_REFUSE     names of functions that answer "not supported", with commas.
 * FAKE_NVML_HANG       names of functions that do not come back while they are in it, with commas.
 * FAKE_NVML_DRIVER     580.95.05 unless set.
 * FAKE_NVML_CUDA       13000 unless set: 1000 * major + 10 * minor.
 *
 * What a card's number decides: uuid GPU-fa4e0000-0000-0000-0000-00000000000<number>, busy 90 - 50 * number per cent,
 * temperature 60 - 20 * number °C, power 300000 - 250000 * number mW, compute capability 9.0 for the first, 8.9 for others.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
};

typedef unsigned long long bytes_t;

struct memory { bytes_t total, free, used; };
struct memory_v2 { unsigned version; bytes_t total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; bytes_t used; unsigned gpu_instance, compute_instance; };
struct card { bytes_t total, used, reserved; int lost, has_reserved; char name[96]; };

static const char *DEFAULT_CARDS = "150754820096,21474836480,654311424,NVIDIA H200;"
                                   "25757220864,1073741824,402653184,NVIDIA GeForce RTX 4090";

/* The value of a setting, in a buffer of the thread; NULL if it is not set. */
static const char *setting(const char *name) {
    static __thread char value[1 << 14];
    const char *from_environment = getenv(name);
    if (from_environment) {
        snprintf(value, sizeof value, "%s", from_environment);
        return value;
    }
    Dl_info library;
    char path[4096], line[1 << 14];
    if (!dladdr((void *)setting, &library) || !library.dli_fname) return NULL;
    snprintf(path, sizeof path, "%s.conf", library.dli_fname);
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    size_t length = strlen(name);
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, name, length) == 0 && line[length] == '=') {
            snprintf(value, sizeof value, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found ? value : NULL;
}

/* Whether a list with commas has this item. */
static int lists(const char *name, const char *item) {
    const char *text = setting(name);
    if (!text) return 0;
    char copy[1 << 14], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", text);
    while ((part = strsep(&rest, ",")))
        if (strcmp(part, item) == 0) return 1;
    return 0;
}

static int lists_number(const char *name, unsigned number) {
    char text[16];
    snprintf(text, sizeof text, "%u", number);
    return lists(name, text);
}

/* What every call answers first. */
static int answer(const char *function) {
    while (lists("FAKE_NVML_HANG", function)) usleep(10000);
    const char *error = setting("FAKE_NVML_ERROR");
    if (error && atoi(error)) return atoi(error);
    return lists("FAKE_NVML_REFUSE", function) ? NOT_SUPPORTED : SUCCESS;
}

#define ASK()                                   \
    do {                                        \
        int answered = answer(__func__);        \
        if (answered != SUCCESS) return answered; \
    } while (0)

/* Reads the cards; gives their number, and the one that is asked for. */
static unsigned cards(unsigned wanted, struct card *card) {
    const char *set = setting("FAKE_NVML_CARDS");
    char copy[1 << 14], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", set ? set : DEFAULT_CARDS);
    unsigned count = 0;
    while ((part = strsep(&rest, ";"))) {
        if (!*part) continue;
        if (count == wanted && card) {
            memset(card, 0, sizeof *card);
            snprintf(card->name, sizeof card->name, "NVIDIA Fake %u", count);
            if (strcmp(part, "lost") == 0) {
                card->lost = 1;
            } else {
                char *total = strsep(&part, ","), *used = strsep(&part, ","), *reserved = strsep(&part, ",");
                if (total) card->total = strtoull(total, NULL, 10);
                if (used) card->used = strtoull(used, NULL, 10);
                card->has_reserved = reserved && *reserved != '-';
                if (card->has_reserved) card->reserved = strtoull(reserved, NULL, 10);
                if (part && *part) snprintf(card->name, sizeof card->name, "%s", part);
            }
        }
        count++;
    }
    return count;
}

/* A handle is the number of the card and one. */
static int open_card(void *device, unsigned *number, struct card *card) {
    size_t handle = (size_t)device;
    if (handle == 0 || handle > cards((unsigned)handle - 1, card)) return INVALID_ARGUMENT;
    *number = (unsigned)handle - 1;
    return card->lost ? GPU_IS_LOST : SUCCESS;
}

#define OPEN()                                           \
    unsigned number;                                     \
    struct card card;                                    \
    do {                                                 \
        ASK();                                           \
        int opened = open_card(device, &number, &card);  \
        if (opened != SUCCESS) return opened;            \
        (void)number;                                    \
    } while (0)

static int put_text(char *place, unsigned length, const char *text) {
    if (!place || strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(place, text);
    return SUCCESS;
}

int nvmlInit_v2(void) { ASK(); return SUCCESS; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *place, unsigned length) {
    ASK();
    const char *set = setting("FAKE_NVML_DRIVER");
    return put_text(place, length, set ? set : "580.95.05");
}

int nvmlSystemGetNVMLVersion(char *place, unsigned length) {
    ASK();
    const char *set = setting("FAKE_NVML_DRIVER");
    char text[80];
    snprintf(text, sizeof text, "13.%.70s", set ? set : "580.95.05");
    return put_text(place, length, text);
}

int nvmlSystemGetCudaDriverVersion_v2(int *place) {
    ASK();
    const char *set = setting("FAKE_NVML_CUDA");
    *place = set ? atoi(set) : 13000;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *place) { return nvmlSystemGetCudaDriverVersion_v2(place); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ASK();
    *count = cards(0, NULL);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    ASK();
    struct card card;
    if (index >= cards(index, &card)) return INVALID_ARGUMENT;
    *device = (void *)(size_t)(index + 1);
    return card.lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
    OPEN();
    *index = number;
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *place, unsigned length) {
    OPEN();
    return put_text(place, length, card.name);
}

int nvmlDeviceGetUUID(void *device, char *place, unsigned length) {
    OPEN();
    char text[64];
    snprintf(text, sizeof text, "GPU-fa4e0000-0000-0000-0000-%012u", number);
    return put_text(place, length, text);
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    OPEN();
    memory->total = card.total;
    memory->used = card.used + card.reserved;
    memory->free = memory->used < card.total ? card.total - memory->used : 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    OPEN();
    if (!card.has_reserved) return FUNCTION_NOT_FOUND;
    if (memory->version != (sizeof *memory | 2u << 24)) return INVALID_ARGUMENT;
    bytes_t taken = card.used + card.reserved;
    memory->total = card.total;
    memory->reserved = card.reserved;
    memory->used = card.used;
    memory->free = taken < card.total ? card.total - taken : 0;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *place) {
    OPEN();
    place->gpu = number == 0 ? 90 : number == 1 ? 40 : 0;
    place->memory = place->gpu / 2;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *place) {
    OPEN();
    (void)sensor;
    *place = number < 2 ? 60 - 20 * number : 30;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *place) {
    OPEN();
    *place = number < 2 ? 300000 - 250000 * number : 20000;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    OPEN();
    *major = number == 0 ? 9 : 8;
    *minor = number == 0 ? 0 : 9;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    OPEN();
    *current = *pending = lists_number("FAKE_NVML_MIG", number);
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(void *device, int *mode) {
    OPEN();
    *mode = lists_number("FAKE_NVML_EXCLUSIVE", number) ? 3 : 0;
    return SUCCESS;
}

static int processes(void *device, unsigned *count, struct process *place, const char *kinds) {
    unsigned number;
    struct card card;
    int opened = open_card(device, &number, &card);
    if (opened != SUCCESS) return opened;
    const char *set = setting("FAKE_NVML_PROCESSES");
    char copy[1 << 14], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", set ? set : "");
    unsigned room = place ? *count : 0, found = 0;
    while ((part = strsep(&rest, ";"))) {
        char *on = strsep(&part, ","), *pid = strsep(&part, ","), *used = strsep(&part, ",");
        char kind = part && *part ? *part : 'c';
        if (!pid || !used || strtoul(on, NULL, 10) != number || !strchr(kinds, kind)) continue;
        if (found < room) {
            struct process process = {
                (unsigned)strtoul(pid, NULL, 10),
                *used == '-' ? ~0ull : strtoull(used, NULL, 10),
                ~0u,
                ~0u,
            };
            place[found] = process;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *place) {
    ASK();
    return processes(device, count, place, "cb");
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, struct process *place) {
    ASK();
    return processes(device, count, place, "gb");
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, struct process *place) {
    ASK();
    return processes(device, count, place, "");
}
