"""Has a CPython 3.14 run a script, by sys.remote_exec. gpumem runs this in a child, see python.rs.

Arguments: the process's pid and start ticks, until when the script may begin and may answer (milliseconds of Unix
time), and the user and group by whose rights files are touched. The script comes on standard input, with @FOLDER@ for
the folder in which it leaves its answer. Prints a state, a space and a text.
"""
import glob
import os
import shutil
import stat
import sys
import tempfile
import time

START, END = "# gpumem\n", "# end\n"
pid, start, begins_ms, ends_ms, uid, gid = map(int, sys.argv[1:])
# Else it is the user's already, with no capability.
is_root = os.geteuid() == 0


def now_ms():
    return time.time() * 1000


def act_as_user():
    if is_root:
        os.setresgid(gid, gid, 0)
        os.setresuid(uid, uid, 0)


def act_as_root():
    if is_root:
        os.seteuid(0)
        os.setegid(0)


def program():
    """What the process runs; None once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        return os.readlink(f"/proc/{pid}/exe") if int(fields[19]) == start else None
    except PermissionError:
        return "not shown"
    except (OSError, IndexError, ValueError):
        return None


def make_folder():
    """Where only the process's user may put anything."""
    for parent in ("/tmp", "/var/tmp", "/dev/shm"):
        try:
            found = os.lstat(parent)
            is_shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if stat.S_ISDIR(found.st_mode) and found.st_uid in (0, uid) and not is_shared:
                return tempfile.mkdtemp(prefix=f"gpumem-{pid}-", dir=parent)
        except OSError:
            pass
    return None


def write(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def read(path):
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags), errors="replace") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_size <= 1 << 20:
            return file.read()
    return ""


def ask(script, folder):
    path, begun, answer = (f"{folder}/{name}" for name in ("release.py", "begun", "answer"))
    write(path, script.replace("@FOLDER@", folder))
    runs = program()
    try:
        act_as_root()
        sys.remote_exec(pid, path)
    except BaseException as error:
        chain = error
        while chain and not isinstance(chain, PermissionError):
            chain = chain.__cause__ or chain.__context__
        return "denied" if chain else "failed", str(chain or error)
    finally:
        act_as_user()
    # Folders that were left for requests which this one has replaced.
    for old in glob.glob(f"{os.path.dirname(folder)}/gpumem-{pid}-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    while not os.path.lexists(begun):
        if program() != runs:
            return "gone", ""
        if now_ms() > begins_ms:
            try:
                write(begun, "")
            except FileExistsError:
                break
            # A request cannot be withdrawn. What it runs when the process wakes only removes the folder.
            write(f"{path}.new", REMOVES.replace("@FOLDER@", folder))
            os.replace(f"{path}.new", path)
            return "not_begun", ""
        time.sleep(0.005)
    while not os.path.lexists(answer):
        if program() != runs:
            return "gone", ""
        if now_ms() > ends_ms:
            return "not_done", ""
        time.sleep(0.005)
    return "answered", read(answer)


REMOVES = """
def remove():
    import os
    try:
        for name in os.listdir("@FOLDER@"):
            os.unlink("@FOLDER@/" + name)
        os.rmdir("@FOLDER@")
    except OSError:
        pass
remove()
"""


def main(script):
    if not hasattr(sys, "remote_exec"):
        return "failed", "its interpreter has no sys.remote_exec"
    act_as_user()
    if program() is None:
        return "gone", ""
    folder = make_folder()
    if folder is None:
        return "no_folder", ""
    state, text = ask(script, folder)
    if state != "not_begun":
        shutil.rmtree(folder, ignore_errors=True)
    return state, text


script = sys.stdin.read()
# It is cut short where gpumem has given up.
if script.startswith(START) and script.endswith(END):
    print(*main(script))
