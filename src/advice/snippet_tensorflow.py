# Frees all GPU memory of a TensorFlow 1 or 2 training when `gpumem release PID` asks for it. The training continues.
#
# TensorFlow returns its memory pool to the driver only when its process exits. Therefore, the training runs in a child
# process. When gpumem asks, the child saves a checkpoint and exits, and a new child continues from the checkpoint.
#
# 1. Paste this code where the program starts. Import tensorflow only in train(), so that the parent does not use a GPU.
# 2. Write train(). It restores the latest checkpoint, if one exists, and returns True when the training is complete.
#    Between two steps, it calls asked_to_save(). If the result is true, it saves a checkpoint and returns False. With
#    Keras, use a callback whose on_train_batch_end() saves and sets self.model.stop_training = True.
# 3. End the program with: if __name__ == "__main__": train_in_children(train)
# 4. Start the program with GPUMEM_RELEASE_SIGNAL=USR2, which tells gpumem to send SIGUSR2 to the child. If the program
#    uses SIGUSR2, choose USR1 or HUP.
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
    """Runs train() in a new child until it returns True. If a child fails, exits with the status of the child."""
    children = multiprocessing.get_context("spawn")
    code = 75
    while code == 75:
        child = children.Process(target=_train, args=(train,))
        child.start()
        child.join()
        code = child.exitcode
    if code != 0:
        sys.exit(code if code > 0 else 128 - code)
