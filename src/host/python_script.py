# gpumem
def _():
    import os, time
    if time.time() * 1000 > @DEADLINE_MS@:
        return
    try:
        with open("/proc/self/stat", "rb") as file:
            if file.read().rpartition(b") ")[2].split()[19] != b"@START_TICKS@":
                return
        os.close(os.open("@FOLDER@/begun", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return
    is_interrupted = False
    try:
        names = {}
        try:
            import json
            exec(@SOURCE@, names)
            text = json.dumps({"out": names.get("out")})
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            text = '{"error": "%s"}' % "".join(filter(str.isalnum, type(error).__name__))
        names.clear()
        text = text.encode()
        file = os.open("@FOLDER@/answer.part", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while text:
                text = text[os.write(file, text):]
        finally:
            os.close(file)
        os.rename("@FOLDER@/answer.part", "@FOLDER@/answer")
    except BaseException as error:
        is_interrupted = is_interrupted or isinstance(error, KeyboardInterrupt)
    if is_interrupted:
        # From here it would be raised in this very script: a thread does it a moment later.
        import _thread
        _thread.start_new_thread(lambda: (time.sleep(0.02), _thread.interrupt_main()), ())
try:
    _()
except BaseException:
    pass
# end
