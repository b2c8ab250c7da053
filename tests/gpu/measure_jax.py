"""Measures the table's rows about JAX, whose settings hold from a process's start. See README.md."""

import argparse
import json

import nvml_meter
from nvml_meter import GIB, Meter, collect, finish, run_modes

BIG = 2 * GIB

MODES = {
    "default": {},
    # Releases that know only the older name, XLA_PYTHON_CLIENT_MEM_FRACTION, fail this one.
    "fraction": {"XLA_CLIENT_MEM_FRACTION": ".30"},
    "growing": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    "platform": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
}


def measure(mode):
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        nvml_meter.cannot("JAX sees no GPU")
    jnp.ones(1).block_until_ready()
    meter = Meter("jax", jax.__version__)
    meter.step("the first operation")
    share = meter.used_bytes() / meter.total_bytes
    if mode == "default":
        meter.claim("three quarters of the GPU are taken at once", 0.70 <= share <= 0.85)
    elif mode == "fraction":
        meter.claim("the fraction that was asked for is taken", 0.25 <= share <= 0.40)
    else:
        meter.claim("little is taken at first", share <= 0.10)

    x = jnp.ones((BIG // 4,), dtype=jnp.float32).block_until_ready()
    change = meter.step("allocate 2 GiB")
    if mode in ("growing", "platform"):
        meter.claim("an allocation shows", meter.grew(change, BIG))
    else:
        meter.claim("an allocation does not show", meter.unchanged(change))
    before = meter.used_bytes()
    del x
    collect()
    meter.step("del x, gc.collect()")
    jax.clear_caches()
    collect()
    meter.step("jax.clear_caches(), gc.collect()")
    change = meter.used_bytes() - before
    if mode == "platform":
        meter.claim("dropping it returns it", meter.fell(change, BIG))
    else:
        meter.claim("dropping it returns nothing", meter.unchanged(change))
    print(json.dumps(meter.report))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES)
    mode = parser.parse_args().mode
    if mode is None:
        finish(run_modes(__file__, MODES))
    measure(mode)


if __name__ == "__main__":
    try:
        main()
    except (nvml_meter.Unmeasurable, ImportError) as error:
        nvml_meter.cannot(error)
