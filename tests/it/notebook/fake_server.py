"""A notebook server that misbehaves: fake_server.py FOLDER MANNER [KEY=JSON ...]

Starts a process that looks like a kernel, and writes the files that Jupyter writes. Each KEY=JSON
replaces a value in jpserver-PID.json. MANNER selects the answer to every request:

good          the answer of Jupyter
slow          the answer of Jupyter, later than a first sample waits
redirect URL  a redirect to URL
hang          no answer
drip          one byte per second
huge          2 MiB
garbage       invalid JSON
deaf          an idle kernel for GET, and no answer for DELETE

The server appends all requests to FOLDER/requests.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

folder, manner = sys.argv[1:3]
KERNEL = "0d7f9b2c-5a43-4a5e-9a77-4b1f6e2d9c10"
runtime = os.path.join(folder, "runtime")
os.makedirs(runtime, exist_ok=True)

program = os.path.join(folder, "ipykernel_launcher.py")
with open(program, "w") as file:
    file.write("import time\ntime.sleep(600)\n")
connection = os.path.join(runtime, f"kernel-{KERNEL}.json")
with open(connection, "w") as file:
    json.dump(
        {"ip": "127.0.0.1", "transport": "tcp", "key": "k3y-k3y",
         "jupyter_session": os.path.join(folder, "work/early.ipynb")},
        file,
    )
environment = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}
subprocess.Popen(
    [sys.executable, program, "-f", connection], env=environment, start_new_session=True
)

listener = socket.create_server(("127.0.0.1", 0))
about = {
    "base_url": "/", "hostname": "localhost", "password": False, "pid": os.getpid(),
    "port": listener.getsockname()[1], "root_dir": os.path.join(folder, "work"),
    "secure": False, "sock": "", "token": "s3cret-t0ken", "version": "2.21.1",
}
for change in sys.argv[3:]:
    if "=" in change and not change.startswith("http"):
        key, value = change.split("=", 1)
        about[key] = json.loads(value)
path = os.path.join(runtime, f"jpserver-{os.getpid()}.json")
with open(path + ".new", "w") as file:
    json.dump(about, file)
os.rename(path + ".new", path)

KERNEL_MODEL = {
    "id": KERNEL, "name": "python3", "last_activity": "2026-11-21T10:00:00.123456Z",
    "execution_state": "busy", "connections": 2,
}
SESSIONS = [{"id": "1", "path": "late.ipynb", "type": "notebook", "kernel": KERNEL_MODEL}]


def answer(status, body, more=""):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def serve(connection):
    request = b""
    while b"\r\n\r\n" not in request:
        part = connection.recv(4096)
        if not part:
            return
        request += part
    with open(os.path.join(folder, "requests"), "ab") as file:
        file.write(request)
    if manner == "slow":
        time.sleep(0.5)
    if manner in ("good", "slow"):
        connection.sendall(answer("200 OK", json.dumps(SESSIONS).encode()))
    elif manner == "redirect":
        connection.sendall(answer("302 Found", b"", f"Location: {sys.argv[3]}\r\n"))
    elif manner == "deaf" and request.startswith(b"GET"):
        model = {**KERNEL_MODEL, "execution_state": "idle"}
        connection.sendall(answer("200 OK", json.dumps(model).encode()))
    elif manner in ("hang", "deaf"):
        time.sleep(600)
    elif manner == "drip":
        for byte in answer("200 OK", json.dumps(SESSIONS).encode()):
            connection.sendall(bytes([byte]))
            time.sleep(1)
    elif manner == "huge":
        connection.sendall(answer("200 OK", b" " * (2 << 20)))
    elif manner == "garbage":
        connection.sendall(answer("200 OK", b'{"\xff": [[['))
    connection.close()


while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
