"""Measures the table's rows about TensorFlow, whose settings hold from a process's start. See README.md."""

import argparse
import json
import multiprocessing

import nvml_meter
from nvml_meter import GIB, MIB, Meter, collect, finish, run_modes

BIG = 2 * GIB

MODES = {
    "default": {},
    "growing": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    "set_memory_growth": {},
    "limited": {},
    "cuda_malloc_async": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
    "session": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    "child": {},
}


def allocate(tf):
    x = tf.ones((BIG // 4,), dtype=tf.float32)
    x[0].numpy()
    return x


def configure(tf, mode):
    gpu = tf.config.list_physical_devices("GPU")[0]
    if mode == "set_memory_growth":
        tf.config.experimental.set_memory_growth(gpu, True)
    elif mode == "limited":
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=4096)
        tf.config.set_logical_device_configuration(gpu, [limit])


def measure_eager(tf, mode):
    configure(tf, mode)
    tf.ones(1)[0].numpy()
    meter = Meter("tensorflow", tf.__version__)
    meter.step("the first operation")
    share = meter.used_bytes() / meter.total_bytes
    if mode == "default":
        meter.claim("nearly all of the GPU is taken at once", share >= 0.80)
    elif mode == "limited":
        meter.claim("no more than the limit is taken", meter.used_bytes() <= 4 * GIB + 1024 * MIB)
    else:
        meter.claim("little is taken at first", share <= 0.10)
    x = allocate(tf)
    change = meter.step("allocate 2 GiB")
    grows = mode in ("growing", "set_memory_growth", "cuda_malloc_async")
    if grows:
        meter.claim("an allocation shows", meter.grew(change, BIG))
    else:
        meter.claim("an allocation does not show", meter.unchanged(change))
    before = meter.used_bytes()
    del x
    collect()
    change = meter.step("del x, gc.collect()")
    meter.claim("dropping it returns nothing", meter.unchanged(change))
    tf.keras.backend.clear_session()
    collect()
    change = meter.step("tf.keras.backend.clear_session(), gc.collect()")
    meter.claim("clear_session returns nothing", meter.unchanged(change))
    meter.claim("nothing was returned at all", meter.unchanged(meter.used_bytes() - before))
    if mode == "default":
        gpu = tf.config.list_physical_devices("GPU")[0]
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
            meter.claim("set_memory_growth once a GPU was used is refused", False)
        except RuntimeError:
            meter.claim("set_memory_growth once a GPU was used is refused", True)
    return meter.report


def measure_session(tf):
    tf.compat.v1.disable_eager_execution()
    session = tf.compat.v1.Session()
    x = tf.reduce_sum(tf.ones((BIG // 4,), dtype=tf.float32) * tf.random.uniform((BIG // 4,)))
    session.run(x)
    meter = Meter("tensorflow1", tf.__version__)
    meter.step("a session runs a graph that needs some GiB")
    change = meter.used_bytes()
    meter.claim("the session's memory shows", change >= BIG)
    session.close()
    collect()
    change = meter.step("sess.close()")
    meter.claim("closing the session returns nothing", meter.unchanged(change))
    tf.compat.v1.reset_default_graph()
    collect()
    change = meter.step("tf.reset_default_graph()")
    meter.claim("reset_default_graph returns nothing", meter.unchanged(change))
    tf.keras.backend.clear_session()
    collect()
    change = meter.step("keras.backend.clear_session()")
    meter.claim("clear_session returns nothing", meter.unchanged(change))
    return meter.report


def train(pipe):
    import tensorflow as tf

    allocate(tf)
    meter = Meter("tensorflow", tf.__version__)
    meter.step("a child process trains")
    pipe.send(meter.report)
    pipe.close()


def measure_child():
    nvml = nvml_meter.Nvml()
    before = [nvml.memory(device).used for device in nvml.devices]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=train, args=(theirs,))
    child.start()
    theirs.close()
    report = ours.recv()
    pid = child.pid
    child.join()
    is_listed = any(pid in nvml.processes(device) for device in nvml.devices)
    holds = not is_listed
    if report["scope"] == "device":
        # By another number it may be listed still.
        used = nvml.memory(nvml.devices[0]).used
        holds = used <= before[0] + nvml_meter.SLACK_BYTES
    words = "the child's end returns everything"
    report["claims"].append({"claim": words, "holds": holds})
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES)
    mode = parser.parse_args().mode
    if mode is None:
        finish(run_modes(__file__, MODES))
    if mode == "child":
        print(json.dumps(measure_child()))
        return
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        nvml_meter.cannot("TensorFlow sees no GPU")
    report = measure_session(tf) if mode == "session" else measure_eager(tf, mode)
    print(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except (nvml_meter.Unmeasurable, ImportError) as error:
        nvml_meter.cannot(error)
