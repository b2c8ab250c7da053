/* Does the minimum work to list GPU processes: reads NVML's list and one stat file per process.
 * usage: one_stat LIBRARY */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; };

int main(int count, char **arguments) {
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : 0;
    if (!library)
        return 1;
    int (*init)(void) = dlsym(library, "nvmlInit_v2");
    int (*gpu_count)(unsigned *) = dlsym(library, "nvmlDeviceGetCount_v2");
    int (*handle)(unsigned, void **) = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    int (*list)(void *, unsigned *, struct process *) =
        dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    static struct process processes[4096];
    unsigned gpus = 0;
    if (init() || gpu_count(&gpus))
        return 1;
    for (unsigned gpu = 0; gpu < gpus; gpu++) {
        void *device;
        unsigned length = sizeof processes / sizeof *processes;
        if (handle(gpu, &device) || list(device, &length, processes))
            return 1;
        for (unsigned at = 0; at < length; at++) {
            char path[64], text[1024];
            snprintf(path, sizeof path, "/proc/%u/stat", processes[at].pid);
            int file = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t bytes = read(file, text, sizeof text - 1);
            if (bytes <= 0)
                return 1;
            text[bytes] = 0;
            close(file);
            printf("%llu %s", processes[at].bytes, text);
        }
    }
    return 0;
}
