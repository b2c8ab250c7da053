"""Measures the table's rows about PyTorch. See README.md."""

import contextlib
import sys

import nvml_meter
from nvml_meter import GIB, MIB, Meter, collect, finish

try:
    import torch
except ImportError as error:
    nvml_meter.cannot(error)

BIG = 2 * GIB


def block(size_bytes=BIG):
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def empty():
    """The last part of the table's way: collect, and empty the cache."""
    collect()
    torch.cuda.empty_cache()


def references(meter):
    x = block()
    meter.claim("an allocation shows", meter.grew(meter.step("allocate 2 GiB"), BIG))
    torch.cuda.empty_cache()
    change = meter.step("torch.cuda.empty_cache() while it is referred to")
    meter.claim("empty_cache returns no live tensor", meter.unchanged(change))
    del x
    meter.claim("`del` alone returns nothing", meter.unchanged(meter.step("del x")))
    collect()
    change = meter.step("gc.collect()")
    meter.claim("gc.collect() alone returns nothing", meter.unchanged(change))
    torch.cuda.empty_cache()
    change = meter.step("torch.cuda.empty_cache()")
    meter.claim("then empty_cache returns it", meter.fell(change, BIG))


def pinned_segments(meter):
    # Blocks under 10 MiB share segments of 20 MiB: each segment keeps one that lives.
    blocks = [block(5 * MIB) for _ in range(400)]
    meter.step("allocate 400 blocks of 5 MiB")
    kept = blocks[::4]
    del blocks
    empty()
    change = meter.step("drop three of four, collect, empty_cache")
    meter.claim(
        "a segment with one live tensor stays", not meter.fell(change, 1500 * MIB)
    )
    del kept
    empty()
    meter.step("drop the rest, collect, empty_cache")


def traceback(meter):
    def fails():
        kept = block()  # noqa: F841, held by the frame
        raise RuntimeError("as out of memory does")

    try:
        fails()
    except RuntimeError as error:
        # As an interactive session does with what nobody catches.
        sys.last_exc = sys.last_value = error
        sys.last_traceback = error.__traceback__
    meter.step("an exception passes a frame with 2 GiB")
    empty()
    change = meter.step("collect, empty_cache")
    meter.claim("the traceback keeps it", meter.unchanged(change))
    sys.last_exc = sys.last_value = sys.last_traceback = None
    empty()
    change = meter.step("sys.last_exc = … = None, collect, empty_cache")
    meter.claim("without the traceback it goes", meter.fell(change, BIG))


def notebook(meter):
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError:
        return
    shell = InteractiveShell.instance()
    shell.user_ns["block"] = block

    def cell(words):
        # Standard output is the report's.
        with contextlib.redirect_stdout(sys.stderr):
            shell.run_cell(words, store_history=True)

    cell("block()")
    meter.step("a cell shows 2 GiB")
    empty()
    change = meter.step("collect, empty_cache")
    meter.claim("the notebook's history keeps it", meter.unchanged(change))
    cell("%reset -f out")
    cell("get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)")
    empty()
    change = meter.step("%reset -f out, hidden names, collect, empty_cache")
    meter.claim("without the history it goes", meter.fell(change, BIG))

    cell("def fails():\n    kept = block()\n    raise RuntimeError\nfails()")
    meter.step("a cell fails with 2 GiB in a frame")
    cell("import sys; sys.last_exc = sys.last_value = sys.last_traceback = None")
    empty()
    change = meter.step("sys.last_exc = … = None, collect, empty_cache")
    meter.claim("the notebook keeps the failure", meter.unchanged(change))
    cell("1/0")
    empty()
    change = meter.step("1/0, collect, empty_cache")
    meter.claim("a failure in its place lets it go", meter.fell(change, BIG))


def training(meter):
    model = torch.nn.Linear(16384, 16384, bias=False, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    size = 16384 * 16384 * 4
    x = torch.ones(4096, 16384, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    meter.step("one step of Adam: parameters, gradients and state of 1 GiB each, two of the last")
    small = torch.ones(64, 16384, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    del x
    model(small).sum().backward()
    change = meter.step("a smaller batch")
    meter.claim("a smaller batch returns nothing", not meter.fell(change, size))
    optimizer.zero_grad(set_to_none=True)
    model.to("cpu")
    empty()
    change = meter.step("model.to('cpu'), collect, empty_cache")
    meter.claim("the model's memory goes, it stays in host memory", meter.fell(change, size))
    del optimizer, small
    empty()
    change = meter.step("del optimizer, collect, empty_cache")
    meter.claim("the optimizer's state goes with it", meter.fell(change, 2 * size))
    del model


def graphs(meter):
    static = block(MIB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static.repeat(2048)
    del result
    meter.step("capture a graph that needs 2 GiB")
    empty()
    change = meter.step("collect, empty_cache")
    meter.claim("a graph keeps its pool", meter.unchanged(change))
    del graph
    empty()
    change = meter.step("del graph, collect, empty_cache")
    meter.claim("without the graph its pool goes", meter.fell(change, BIG))


def main():
    if not torch.cuda.is_available():
        nvml_meter.cannot("PyTorch sees no GPU")
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    meter = Meter("pytorch", torch.__version__)
    # What libraries allocate for themselves at first use is not to count as a change later on.
    a = torch.ones(256, 256, device="cuda")
    (a @ a).sum().item()
    del a
    empty()
    meter.step("a context")
    references(meter)
    pinned_segments(meter)
    traceback(meter)
    notebook(meter)
    training(meter)
    graphs(meter)
    empty()
    meter.step("everything dropped")
    left = meter.used_bytes()
    meter.claim("the context stays", meter.scope == "device" or left >= 100 * MIB)
    finish([meter.report])


if __name__ == "__main__":
    try:
        main()
    except nvml_meter.Unmeasurable as error:
        nvml_meter.cannot(error)
