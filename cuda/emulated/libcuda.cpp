// A libcuda.so.1 for tests: the driver's entry points that the host side calls, over shim.h, with the kernels linked in.
//
// Device memory is host memory that ends at a guard page, so reads and writes past an end fault; it begins as 0xFF (NaNs), so
// reads of what was never written show; freed memory is unmapped. Everything is done at once, except between the begin and
// the end of a capture. From the environment, for tests of failures:
//
//   EMULATED_DEVICES=N      devices there are (1)
//   EMULATED_MEMORY=BYTES   memory of a device (4 GiB)
//   EMULATED_DRIVER=N       the driver's version (12080)
//   EMULATED_ERRORS=F=N,..  entry point F gives error N
//   EMULATED_ORDER=WORD     forward, reverse, or a number: the seed of a random order of threads
#include <time.h>
#include <memory>
#include <mutex>
#include "faults.h"

typedef unsigned long long Pointer;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NOT_FOUND = 500 };

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, nullptr, 10) : otherwise;
}

// The error that the environment asks of an entry point.
static int asked(const char *name) {
    const char *text = getenv("EMULATED_ERRORS");
    const size_t length = strlen(name);
    while (text && *text) {
        if (!strncmp(text, name, length) && text[length] == '=') return atoi(text + length + 1);
        text = strchr(text, ',');
        if (text) text++;
    }
    return SUCCESS;
}

#define API extern "C" __attribute__((visibility("default"))) int
// What every entry point begins with.
#define ASKED(name) \
    if (const int given = asked(#name)) return given;

static std::mutex lock;
static std::map<Pointer, size_t> &allocations() {
    static std::map<Pointer, size_t> all;
    return all;
}
static size_t in_use = 0;
static const size_t PAGE = 4096;

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static uint64_t memory() { return setting("EMULATED_MEMORY", 1ull << 32); }

static int allocate(Pointer *result, size_t n) {
    if (n == 0) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(lock);
    if (n > memory() - in_use) return OUT_OF_MEMORY;
    // Up to sixteen bytes of slack before the guard page, for the start to be aligned.
    const size_t rounded = round_up(n, 16), pages = round_up(rounded, PAGE);
    char *map = (char *)mmap(nullptr, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return OUT_OF_MEMORY;
    mprotect(map + pages, PAGE, PROT_NONE);
    memset(map, 0xff, pages);
    *result = (Pointer)(map + pages - rounded);
    allocations()[*result] = n;
    in_use += n;
    return SUCCESS;
}

static int release(Pointer p) {
    std::lock_guard<std::mutex> guard(lock);
    auto it = allocations().find(p);
    if (it == allocations().end()) return INVALID_VALUE;
    const size_t pages = round_up(round_up(it->second, 16), PAGE);
    in_use -= it->second;
    allocations().erase(it);
    munmap((void *)(p / PAGE * PAGE), pages + PAGE);
    return SUCCESS;
}

// -------------------------------------------------------------------------------------------------------- streams, graphs

typedef std::vector<std::function<void()>> Graph;
// What is being captured, if anything is: one capture at a time is enough.
static std::shared_ptr<Graph> capture;

static int enqueue(std::function<void()> work) {
    if (capture) {
        capture->push_back(std::move(work));
    } else {
        work();
    }
    return SUCCESS;
}

struct Event {
    double milliseconds;
};

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

// ------------------------------------------------------------------------------------------------------------ the driver

static void set_order() {
    const char *word = getenv("EMULATED_ORDER");
    if (!word || !strcmp(word, "forward")) return;
    emulator::process_order = strcmp(word, "reverse") ? emulator::RANDOM : emulator::REVERSE;
    emulator::process_seed = strtoull(word, nullptr, 10);
}

API cuInit(unsigned) {
    ASKED(cuInit)
    set_order();
    return setting("EMULATED_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
API cuDriverGetVersion(int *version) {
    ASKED(cuDriverGetVersion)
    *version = (int)setting("EMULATED_DRIVER", 12080);
    return SUCCESS;
}
API cuDeviceGetCount(int *n) {
    ASKED(cuDeviceGetCount)
    *n = (int)setting("EMULATED_DEVICES", 1);
    return SUCCESS;
}
API cuDeviceGet(int *device, int ordinal) {
    ASKED(cuDeviceGet)
    if (ordinal < 0 || ordinal >= (int)setting("EMULATED_DEVICES", 1)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
API cuDeviceGetName(char *name, int n, int) {
    ASKED(cuDeviceGetName)
    snprintf(name, n, "emulated device");
    return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t *bytes, int) {
    ASKED(cuDeviceTotalMem_v2)
    *bytes = memory();
    return SUCCESS;
}
API cuMemGetInfo_v2(size_t *free, size_t *total) {
    ASKED(cuMemGetInfo_v2)
    *total = memory();
    *free = *total - in_use;
    return SUCCESS;
}
API cuDeviceGetAttribute(int *value, int attribute, int) {
    ASKED(cuDeviceGetAttribute)
    switch (attribute) {
        case 1: *value = 1024; break;        // threads of a block
        case 8: *value = 48 * 1024; break;   // shared memory of a block
        case 10: *value = 32; break;         // lanes of a warp
        case 16: *value = 4; break;          // multiprocessors
        case 75: *value = 8; break;          // compute capability
        case 76: *value = 0; break;
        default: *value = 0;
    }
    return SUCCESS;
}
API cuDevicePrimaryCtxRetain(void **context, int) {
    ASKED(cuDevicePrimaryCtxRetain)
    *context = (void *)1;
    return SUCCESS;
}
API cuCtxGetCurrent(void **context) {
    ASKED(cuCtxGetCurrent)
    *context = (void *)1;
    return SUCCESS;
}
API cuStreamCreate(void **stream, unsigned) {
    ASKED(cuStreamCreate)
    *stream = (void *)2;
    return SUCCESS;
}
API cuEventCreate(void **event, unsigned) {
    ASKED(cuEventCreate)
    *event = new Event{0};
    return SUCCESS;
}
API cuEventRecord(void *event, void *) {
    ASKED(cuEventRecord)
    return enqueue([event] { ((Event *)event)->milliseconds = now(); });
}
API cuEventDestroy_v2(void *event) {
    ASKED(cuEventDestroy_v2)
    delete (Event *)event;
    return SUCCESS;
}
API cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    ASKED(cuEventElapsedTime)
    *milliseconds = (float)(((Event *)to)->milliseconds - ((Event *)from)->milliseconds);
    return SUCCESS;
}

// Entry points that have nothing to do here.
#define NOTHING(name, ...) \
    API name(__VA_ARGS__) { return asked(#name); }
NOTHING(cuDevicePrimaryCtxRelease_v2, int)
NOTHING(cuCtxSetCurrent, void *)
NOTHING(cuCtxSynchronize)
NOTHING(cuStreamSynchronize, void *)
NOTHING(cuStreamDestroy_v2, void *)
NOTHING(cuStreamWaitEvent, void *, void *, unsigned)
NOTHING(cuStreamQuery, void *)
NOTHING(cuEventSynchronize, void *)
NOTHING(cuEventQuery, void *)
NOTHING(cuModuleUnload, void *)
NOTHING(cuGraphUpload, void *, void *)

API cuStreamBeginCapture_v2(void *, int) {
    ASKED(cuStreamBeginCapture_v2)
    if (capture) return INVALID_VALUE;
    capture = std::make_shared<Graph>();
    return SUCCESS;
}
API cuStreamEndCapture(void *, void **graph) {
    ASKED(cuStreamEndCapture)
    if (!capture) return INVALID_VALUE;
    *graph = new std::shared_ptr<Graph>(std::move(capture));
    capture = nullptr;
    return SUCCESS;
}
API cuStreamIsCapturing(void *, int *status) {
    ASKED(cuStreamIsCapturing)
    *status = capture != nullptr;
    return SUCCESS;
}
API cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
    ASKED(cuGraphInstantiateWithFlags)
    *executable = new std::shared_ptr<Graph>(*(std::shared_ptr<Graph> *)graph);
    return SUCCESS;
}
API cuGraphLaunch(void *executable, void *) {
    ASKED(cuGraphLaunch)
    if (capture) return INVALID_VALUE;
    for (const auto &work : **(std::shared_ptr<Graph> *)executable) work();
    return SUCCESS;
}
API cuGraphDestroy(void *graph) {
    ASKED(cuGraphDestroy)
    delete (std::shared_ptr<Graph> *)graph;
    return SUCCESS;
}
API cuGraphExecDestroy(void *executable) {
    ASKED(cuGraphExecDestroy)
    delete (std::shared_ptr<Graph> *)executable;
    return SUCCESS;
}

API cuMemAlloc_v2(Pointer *p, size_t n) {
    ASKED(cuMemAlloc_v2)
    return allocate(p, n);
}
API cuMemFree_v2(Pointer p) {
    ASKED(cuMemFree_v2)
    return release(p);
}
API cuMemHostAlloc(void **p, size_t n, unsigned) {
    ASKED(cuMemHostAlloc)
    *p = malloc(n ? n : 1);
    return *p ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemFreeHost(void *p) {
    ASKED(cuMemFreeHost)
    free(p);
    return SUCCESS;
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t n, void *) {
    ASKED(cuMemcpyHtoDAsync_v2)
    return enqueue([=] { memcpy((void *)to, from, n); });
}
API cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t n, void *) {
    ASKED(cuMemcpyDtoHAsync_v2)
    return enqueue([=] { memcpy(to, (void *)from, n); });
}
API cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t n, void *) {
    ASKED(cuMemcpyDtoDAsync_v2)
    return enqueue([=] { memmove((void *)to, (void *)from, n); });
}
API cuMemsetD8Async(Pointer to, unsigned char value, size_t n, void *) {
    ASKED(cuMemsetD8Async)
    return enqueue([=] { memset((void *)to, value, n); });
}

// Every module holds every kernel: that the text given is the one to ship is not for this file to say.
API cuModuleLoadData(void **module, const void *) {
    ASKED(cuModuleLoadData)
    *module = (void *)4;
    return SUCCESS;
}
API cuModuleGetFunction(void **function, void *, const char *name) {
    ASKED(cuModuleGetFunction)
    auto it = emulator::kernels().find(name);
    if (it == emulator::kernels().end()) return NOT_FOUND;
    *function = &it->second;
    return SUCCESS;
}
API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *, void **arguments, void **) {
    ASKED(cuLaunchKernel)
    if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || gy > 65535 || gz > 65535 || shared) return INVALID_VALUE;
    const emulator::Kernel &kernel = *(emulator::Kernel *)function;
    if (!capture) {
        kernel.launch({gx, gy, gz}, {bx, by, bz}, arguments);
        return SUCCESS;
    }
    std::vector<std::vector<char>> copies;
    for (size_t i = 0; i < kernel.sizes.size(); i++) copies.emplace_back((char *)arguments[i], (char *)arguments[i] + kernel.sizes[i]);
    return enqueue([=]() mutable {
        std::vector<void *> pointers;
        for (auto &copy : copies) pointers.push_back(copy.data());
        kernel.launch({gx, gy, gz}, {bx, by, bz}, pointers.data());
    });
}
API cuGetErrorName(int error, const char **text) {
    ASKED(cuGetErrorName)
    *text = error == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return SUCCESS;
}
API cuGetErrorString(int error, const char **text) {
    ASKED(cuGetErrorString)
    *text = error == NOT_FOUND ? "named symbol not found" : error == OUT_OF_MEMORY ? "out of memory" : "an error";
    return SUCCESS;
}

// ---------------------------------------------------------------------------------------- for the tests of single kernels

// The order of what this thread launches.
extern "C" __attribute__((visibility("default"))) void emulator_set_order(int order, uint64_t seed) {
    emulator::own_order = true;
    emulator::thread_order = (emulator::Order)order;
    emulator::thread_seed = seed;
}
