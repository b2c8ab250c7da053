# Gives cached GPU memory back when gpumem asks for it (gpumem release PID), and goes on.
#
# 1. Paste this where the program starts, in its main thread.
# 2. Call release_gpu_memory_if_asked() in the main thread between two steps, batches or requests. Where the program
#    waits (for a request, a queue, a key), let it wait within "with gpu_is_idle():", which releases at once.
#    A program of asyncio needs neither: loop.add_signal_handler(signal.SIGUSR2, release_gpu_memory)
# 3. Start it with the variable by which gpumem knows of this: GPUMEM_RELEASE_SIGNAL=USR2 python main.py
#    (USR1, USR2 or HUP: one that the program does not use.) Without it nothing of this does anything.
import contextlib
import gc
import os
import signal
import sys

_asked = _idle = False


def _ask(*_):
    """The handler. It may come between any two bytecodes of the main thread, so it only takes a note there."""
    global _asked
    _asked = True
    if _idle:
        release_gpu_memory_if_asked()


def release_gpu_memory_if_asked():
    """Costs nothing where no release was requested."""
    global _asked
    if _asked:
        _asked = False
        release_gpu_memory()


@contextlib.contextmanager
def gpu_is_idle():
    """Around what waits: nothing is computed on the GPU within."""
    global _idle
    _idle = True
    try:
        release_gpu_memory_if_asked()
        yield
    finally:
        _idle = False


def release_gpu_memory():
    """What is in use stays; what allocators keep of what was freed goes back to the driver."""
    gc.collect()
