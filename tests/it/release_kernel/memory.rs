//! The memory that each library frees according to NVML, and the notebook's state, which does not change.

use super::*;

#[test]
fn pytorch_frees_its_cache_after_a_model_was_used() {
    let kernel = or_skip!(RawKernel::start("kernel-raw.json"));
    let mut client = kernel.client();
    client.run(
        "import torch\nM = 1 << 20\nmodel = torch.nn.Linear(1024, 1024).cuda()\n\
         x = torch.empty(25 * M, device='cuda', requires_grad=True)\ny = x * x",
    );
    let whole = kernel.used_bytes().unwrap();
    // `detach` shares the storage, and `del` returns memory only to the cache, so NVML shows no change.
    client.run("z = y.detach(); del y, model");
    assert_eq!(kernel.used_bytes(), Some(whole));
    assert_eq!(release(kernel.pid(), &options()).live_bytes, Some(200 * MIB));
    let detached = kernel.used_bytes().unwrap();
    assert!(detached < whole, "the model's memory is freed: {detached} {whole}");
    client.run("del z");
    assert_eq!(kernel.used_bytes(), Some(detached));
    let before = client.state();
    let report = release(kernel.pid(), &options());
    assert_eq!(kernel.used_bytes(), Some(detached - 100 * MIB));
    assert_eq!(report.live_bytes, Some(100 * MIB));
    assert_eq!(report.cached_bytes_left, Some(0));
    assert_eq!(client.state(), before);
    assert_eq!(client.run("print(x.numel())"), format!("{}\n", 25 * MIB));
    // A second release frees nothing.
    release(kernel.pid(), &options());
    assert_eq!(kernel.used_bytes(), Some(detached - 100 * MIB));
    assert_cyclic_garbage_is_collected_unless_disabled(&kernel, &mut client);
    assert_a_probe_changes_nothing(&kernel, &mut client);
}

fn assert_cyclic_garbage_is_collected_unless_disabled(kernel: &RawKernel, client: &mut Client) {
    client.run(
        "import gc\ngc.disable()\nclass Loop: pass\nloop = Loop()\nloop.self = loop\n\
         loop.tensor = torch.empty(25 << 20, device='cuda')\ndel loop\ngc.enable()\ngc.set_threshold(0)",
    );
    let whole = kernel.used_bytes().unwrap();
    let gentle = ReleaseOptions { collects: false, ..options() };
    release(kernel.pid(), &gentle);
    assert_eq!(kernel.used_bytes(), Some(whole));
    release(kernel.pid(), &options());
    assert_eq!(kernel.used_bytes(), Some(whole - 100 * MIB));
}

fn assert_a_probe_changes_nothing(kernel: &RawKernel, client: &mut Client) {
    client.run("a = torch.empty(25 << 20, device='cuda')\ndel a");
    let (whole, before) = (kernel.used_bytes(), client.state());
    support::wait_until("an answer", || probe(kernel.pid()).is_ok());
    assert_eq!((kernel.used_bytes(), client.state()), (whole, before));
}

/// A `libcuda.so.1` with a memory pool that counts trims and initializations.
const LIBCUDA: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
int initialised = 0, active = 1, trims = 0; uint64_t reserved = 96 << 20, used_bytes = 32 << 20;
int cuDeviceGetCount(int *n) { *n = 2; return initialised ? 0 : 3; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:%02X:00.0", 0x17 + d); return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { *f = 0; *a = d == 0 && active; return 0; }
int cuDeviceGetDefaultMemPool(void **p, int d) { *p = &reserved; return 0; }
int cuDeviceGetMemPool(void **p, int d) { *p = &reserved; return 0; }
int cuMemPoolGetAttribute(void *p, int a, uint64_t *v) { *v = a == 5 ? reserved : a == 7 ? used_bytes : 0; return 0; }
int cuMemPoolTrimTo(void *p, size_t keep) { trims++; reserved = used_bytes; return 0; }
"#;

#[test]
fn stream_ordered_pools_are_trimmed_through_the_loaded_driver() {
    let (Some(kernel), Some(cc)) =
        (RawKernel::start("kernel-pools.json"), support::find("cc", "gcc"))
    else {
        return;
    };
    let (source, library) = (kernel.home.path("cuda.c"), kernel.home.path("libcuda.so.1"));
    fs::write(&source, LIBCUDA).unwrap();
    let mut command = Command::new(cc);
    command.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    support::finish(command.arg(&library).arg(&source)).exits(0);
    let mut client = kernel.client();
    // A release does not load libcuda.
    client.run("import ctypes");
    let count_mappings = "print(sum('libcuda' in line for line in open('/proc/self/maps')))";
    assert_eq!(release(kernel.pid(), &options()).live_bytes, None);
    assert_eq!(client.run(count_mappings), "0\n");
    client.run(&format!("cuda = ctypes.CDLL({library:?})"));
    let trims = "print(*[ctypes.c_int.in_dll(cuda, n).value for n in ('initialised', 'trims')])";
    release(kernel.pid(), &options());
    assert_eq!(client.run(trims), "0 0\n", "a release does not initialize the driver");
    client.run("ctypes.c_int.in_dll(cuda, 'initialised').value = 1\nctypes.c_int.in_dll(cuda, 'active').value = 0");
    release(kernel.pid(), &options());
    assert_eq!(client.run(trims), "1 0\n", "without a context nothing is trimmed");
    client.run("ctypes.c_int.in_dll(cuda, 'active').value = 1");
    let report = release(kernel.pid(), &options());
    assert_eq!(client.run(trims), "1 1\n");
    assert_eq!(report.live_bytes, Some(32 * MIB));
    assert_eq!(report.cached_bytes_left, Some(0));
}
