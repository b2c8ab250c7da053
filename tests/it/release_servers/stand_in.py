"""Stand-ins for inference servers: PROGRAM SERVER MANNER [ARGUMENT ...]

PROGRAM is this file under the name of the server's program. A stand-in implements the routes of one server (a class
below), and listens on PORTS. With --uds, it listens on a Unix socket, and with --ssl-certfile, it uses TLS. It writes
every request to RECORD, and the pid of the process that holds the memory to READY. When it unloads, it changes the
mock driver's scene in SCENE. MANNER:

idle      is idle; after unloading, the context keeps 256 MiB, or the runner exits
busy      is busy
slow      is idle, and takes half a second for each answer
used      is idle at each request, and completes a request of another client every second
lies      is idle, answers that it has unloaded, and frees nothing
hangs     is idle, and does not answer the request to unload
key       answers the request to unload with 401
garbage   sends answers that this server never sends
huge      sends answers of 1 GiB
redirect  sends redirects to the same URL
"""

import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

name, manner = (sys.argv[1:3] + [""])[:2]
RECORD, READY, SCENE = (os.environ[key] for key in ("RECORD", "READY", "SCENE"))
BUSY = manner == "busy"


class Server:
    has_runner = False
    loaded = True

    def __init__(self):
        self.runner = None
        if self.has_runner:
            self.runner = subprocess.Popen([sys.executable, sys.argv[0], "runner"], stdin=subprocess.PIPE)

    def holder(self):
        return self.runner.pid if self.runner else os.getpid()

    def unload(self, answer=None, status=200):
        """Answers the request to unload, according to the manner."""
        if manner == "hangs":
            time.sleep(600)
        if manner == "key":
            return 401, {"error": {"message": "Invalid API Key"}}
        self.loaded = False
        if manner != "lies":
            with open(SCENE) as file:
                scene = json.load(file)
            rows = scene["gpus"][0]["processes"]
            for row in rows:
                if row["pid"] == self.holder():
                    row["used_bytes"] = 256 << 20
            if self.runner:
                rows[:] = [row for row in rows if row["pid"] != self.runner.pid]
            with open(SCENE + ".new", "w") as file:
                json.dump(scene, file)
            os.rename(SCENE + ".new", SCENE)
            if self.runner:
                self.runner.kill()
                self.runner.wait()
        return status, {} if answer is None else answer

    def models(self, row):
        return [row] if self.loaded else []


class Ollama(Server):
    has_runner = True

    def route(self, request, body):
        if request == "GET /":
            return 200, "Ollama is running"
        if request == "GET /api/ps":
            # A busy model has been used since the last request.
            expires = time.time_ns() if BUSY else 5
            return 200, {"models": self.models({"name": "m:1b", "size_vram": 9, "expires_at": f"{expires}"})}
        if request == "POST /api/generate" and body == {"model": "m:1b", "keep_alive": 0}:
            return self.unload({"done_reason": "unload"})


class Vllm(Server):
    def route(self, request, body):
        if request == "GET /version":
            return 200, {"version": os.environ.get("VERSION", "0.33.0")}
        if request == "GET /metrics":
            return 200, (
                f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="0"}} {float(BUSY)}\n'
                f'vllm:num_requests_waiting{{engine="0",model_name="a}} 7"}} 0.0\n'
                f'vllm:request_success_total{{engine="0",finished_reason="stop"}} 5\n'
            )
        if os.environ.get("DEV_MODE") == "0":
            return None
        if request == "GET /is_sleeping":
            return 200, {"is_sleeping": not self.loaded}
        if request == "POST /sleep?level=1&mode=wait":
            return self.unload("")


class Sglang(Server):
    paused = False

    def route(self, request, body):
        if request == "GET /server_info":
            return 200, {"version": "0.5.23", "enable_memory_saver": True}
        if request == "GET /metrics":
            return 200, f"sglang:num_running_reqs{{a=\"b\"}} {float(BUSY)}\nsglang:num_queue_reqs 0.0\nsglang:num_requests_total 5\n"
        if request == "POST /pause_generation" and body == {"mode": "in_place"}:
            self.paused = True
            return 200, {}
        if request == "POST /release_memory_occupation" and self.paused:
            return self.unload()
        if request == "POST /continue_generation":
            return 200, {}


class LlamaCpp(Server):
    has_runner = True

    def route(self, request, body):
        if request == "GET /models":
            return 200, {"data": [{"id": "a/b:Q4", "status": {"value": "loaded" if self.loaded else "unloaded"}},
                                  {"id": "c", "status": {"value": "unloaded"}}]}
        if request == "GET /slots?model=a%2Fb%3AQ4&autoload=false":
            return 200, [{"id": 0, "is_processing": BUSY}]
        if request == "POST /models/unload" and body == {"model": "a/b:Q4"}:
            return self.unload({"success": True})


class Triton(Server):
    def route(self, request, body):
        if request == "GET /v2":
            return 200, {"name": "triton", "extensions": ["classification", "model_repository"]}
        if request == "GET /metrics":
            return 200, f'nv_inference_pending_request_count{{model="m"}} {int(BUSY)}\nnv_inference_exec_count{{model="m"}} 5\n'
        if request == "POST /v2/repository/index" and body == {"ready": True}:
            return 200, self.models({"name": "m", "version": "1", "state": "READY"})
        if request == "POST /v2/repository/models/m/unload":
            return self.unload("")


class Comfyui(Server):
    def route(self, request, body):
        if request == "GET /system_stats":
            return 200, {"system": {"comfyui_version": "0.3.70"}, "devices": [{"vram_free": 1}]}
        if request == "GET /history?max_items=1":
            return 200, {"5": {"outputs": {}}}
        if request == "GET /queue":
            return 200, {"queue_running": [[0, "id"]] if BUSY else [], "queue_pending": []}
        if request == "POST /free" and body == {"unload_models": True, "free_memory": True}:
            return self.unload("")


class Webui(Server):
    def route(self, request, body):
        if request == "GET /sdapi/v1/memory":
            return 200, {"ram": {}, "cuda": {}}
        if request == "GET /sdapi/v1/progress?skip_current_image=true":
            return 200, {"progress": 0, "state": {"job_count": -1 if BUSY else 0, "job_timestamp": "5"}}
        if request == "POST /sdapi/v1/unload-checkpoint":
            return self.unload()


SERVERS = {
    "ollama": Ollama, "vllm": Vllm, "sglang": Sglang, "llama.cpp": LlamaCpp, "triton-server": Triton,
    "comfyui": Comfyui, "stable-diffusion-webui": Webui,
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        host = urllib.parse.urlsplit("//" + self.headers["Host"]).hostname
        sound = host in ("127.0.0.1", "::1", "localhost") and not self.headers.get("Origin")
        with open(RECORD, "a") as file:
            file.write(f"{self.command} {self.path} {body.decode()}{'' if sound else ' FOREIGN'}\n")
        if manner == "garbage":
            return self.send(200, b"<html>\xff")
        if manner == "redirect":
            self.send_response(307)
            self.send_header("Location", self.path)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if manner == "huge":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 30))
            self.end_headers()
            for _ in range(1 << 14):
                self.wfile.write(b" " * (1 << 16))
            return None
        found = server.route(f"{self.command} {self.path}", json.loads(body) if body else None)
        status, value = found or (404, {"detail": "Not Found"})
        self.send(status, value.encode() if isinstance(value, str) else json.dumps(value).encode())

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def send(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


if name == "runner":
    # Like a real runner, exit with the parent.
    sys.exit(sys.stdin.read() and 0)
server = SERVERS[name]()


class LocalServer(http.server.ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0

    def get_request(self):
        return self.socket.accept()[0], ("unix", 0)


def after(flag):
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else None


if after("--uds"):
    listeners = [LocalServer(after("--uds"), Handler)]
else:
    listeners = [http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler) for port in os.environ["PORTS"].split()]
if after("--ssl-certfile"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(after("--ssl-certfile"), after("--ssl-keyfile"))
    for listener in listeners:
        # The handshake takes place in the request's thread, so a hung client does not delay other clients.
        listener.socket = context.wrap_socket(listener.socket, server_side=True, do_handshake_on_connect=False)
for listener in listeners:
    threading.Thread(target=listener.serve_forever, daemon=True).start()
with open(READY + ".new", "w") as file:
    json.dump({"holder": server.holder()}, file)
os.rename(READY + ".new", READY)
while True:
    time.sleep(600)
