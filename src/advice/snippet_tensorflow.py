# Frees all GPU memory of a TensorFlow 1 or 2 training when gpumem asks for it (gpumem release PID), and continues.
#
# TensorFlow returns its pool to the driver only when its process ends, whatever is closed or cleared before.
# So a child process trains. When asked, it saves and exits, and a new child continues from the checkpoint.
#
# 1. Paste this where the program starts. Import tensorflow in train() only, so that the parent holds no GPU memory.
# 2. train() restores the newest checkpoint, if there is one. Between two steps it calls asked_to_save(); if that is
#    true, it saves and returns False. It returns True when training is done. With Keras: a callback whose
#    on_train_batch_end() saves and sets self.model.stop_training = True.
# 3. At the end of the program: if __name__ == "__main__": train_in_children(train)
# 4. Start it with the variable that tells gpumem about this: GPUMEM_RELEASE_SIGNAL=USR2 python main.py
#    (USR1, USR2 or HUP; choose one that the program does not use.)
import multiprocessing
import os
import signal
import sys

_asked = False


def _ask(*_):
    global _asked
    _asked = True


def asked_to_save():
    return _asked


def _train(train):
    name = os.environ.get("GPUMEM_RELEASE_SIGNAL", "").upper()
    name = name[3:] if name.startswith("SIG") else name
    if name in ("USR1", "USR2", "HUP"):
        signal.signal(getattr(signal, "SIG" + name), _ask)
    # 75 means that training continues in another child.
    sys.exit(0 if train() else 75)


def train_in_children(train):
    """Trains in one child after another until train() returns True; exits like a child that fails."""
    children = multiprocessing.get_context("spawn")
    code = 75
    while code == 75:
        child = children.Process(target=_train, args=(train,))
        child.start()
        child.join()
        code = child.exitcode
    if code != 0:
        sys.exit(code if code > 0 else 128 - code)
