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
        # Here it would end this very script: a thread raises it once the script is over.
        import sys, _thread
        path, main = sys._getframe().f_code.co_filename, _thread.get_ident()
        def interrupt():
            frame = sys._current_frames().get(main)
            while frame:
                if frame.f_code.co_filename == path:
                    time.sleep(0.01)
                    frame = sys._current_frames().get(main)
                else:
                    frame = frame.f_back
            _thread.interrupt_main()
        _thread.start_new_thread(interrupt, ())
try:
    _()
except BaseException:
    pass
# end
