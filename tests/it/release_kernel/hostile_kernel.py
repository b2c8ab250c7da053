"""A process that imitates a kernel: hostile_kernel.py MODE -f CONNECTION_FILE [PORT].

Writes the connection file, listens, and answers according to MODE. A connection creates CONNECTION_FILE.seen.
"""

import hashlib
import hmac
import json
import os
import socket
import sys

import zmq

mode, path = sys.argv[1], sys.argv[3]
if 'HOSTILE_USER' in os.environ:
    # Change the user only after the imports, because the user may not have access to Python's directory.
    os.setgid(int(os.environ['HOSTILE_USER']))
    os.setuid(int(os.environ['HOSTILE_USER']))
KEY = 'k3y-k3y'


def leave(port, **changes):
    connection = {
        'ip': '127.0.0.1', 'transport': 'tcp', 'shell_port': port, 'iopub_port': 1, 'stdin_port': 1,
        'control_port': 1, 'hb_port': 1, 'key': KEY, 'signature_scheme': 'hmac-sha256',
        'kernel_name': 'python3',
    }
    connection.update(changes)
    with open(os.open(path + '.new', os.O_CREAT | os.O_WRONLY, 0o600), 'w') as file:
        json.dump({name: value for name, value in connection.items() if value is not None}, file)
    os.rename(path + '.new', path)


def raw():
    """Sends bytes that the ZeroMQ library would never send."""
    listener = socket.create_server(('127.0.0.1', 0))
    leave(listener.getsockname()[1])
    open(path + '.ready', 'w').close()
    while True:
        stream, _ = listener.accept()
        open(path + '.seen', 'w').close()
        try:
            if mode == 'noise':
                stream.sendall(os.urandom(4096))
            elif mode == 'dumb':
                stream.recv(1 << 20)
                stream.recv(1 << 20)
            else:
                ready = b'\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER'
                stream.sendall(b'\xff' + bytes(8) + b'\x7f\x03\x00' + b'NULL' + bytes(48))
                stream.sendall(bytes([4, len(ready)]) + ready)
                if mode == 'endless':
                    stream.sendall(b'\x02' + (1 << 62).to_bytes(8, 'big'))
                stream.sendall(b'\x02' + (1 << 30).to_bytes(8, 'big'))
                for _ in range(1 << 10):
                    stream.sendall(bytes(1 << 20))
        except OSError:
            pass


def reply(router, message, kind, content, key=KEY, parent=None):
    at = message.index(b'<IDS|MSG>')
    header = {'msg_id': 'a', 'username': '', 'session': '', 'date': '2026-01-01T00:00:00Z',
              'msg_type': kind, 'version': '5.3'}
    parent = message[at + 2] if parent is None else parent
    parts = [json.dumps(header).encode(), parent, b'{}', content]
    mac = hmac.new(key.encode(), b''.join(parts), hashlib.sha256).hexdigest().encode()
    router.send_multipart(message[:at] + [b'<IDS|MSG>', mac] + parts)


INFO = {'status': 'ok', 'protocol_version': '5.3', 'implementation': 'ipython', 'implementation_version': '9',
        'language_info': {'name': 'python', 'version': '3', 'mimetype': 'text/x-python', 'file_extension': '.py'},
        'banner': '', 'help_links': []}


def serve():
    router = zmq.Context().socket(zmq.ROUTER)
    changes = {
        'unsigned-file': {'key': ''}, 'scheme': {'signature_scheme': 'hmac-md5'},
        'curve': {'curve_publickey': 'x' * 40}, 'elsewhere': {'ip': '0.0.0.0'},
    }.get(mode, {})
    if mode == 'ipc':
        router.bind('ipc://%s-1' % path)
        leave(1, transport='ipc', ip=path)
    else:
        leave(router.bind_to_random_port('tcp://127.0.0.1'), **changes)
    if mode == 'foreign':
        os.chown(path, 65534, -1)
    elif mode == 'symlink':
        os.rename(path, path + '.true')
        os.symlink(path + '.true', path)
    elif mode == 'readable':
        os.chmod(path, 0o640)
    elif mode == 'stranger':
        leave(int(sys.argv[4]))
    open(path + '.ready', 'w').close()
    while True:
        message = router.recv_multipart()
        open(path + '.seen', 'a').close()
        kind = json.loads(message[message.index(b'<IDS|MSG>') + 2])['msg_type']
        info = dict(INFO, implementation='IRkernel' if mode == 'other' else 'ipython')
        good = json.dumps(info).encode()
        if mode == 'garbage':
            router.send_multipart(message[:1] + [os.urandom(64) for _ in range(7)])
        elif mode == 'wrong-signature':
            reply(router, message, 'kernel_info_reply', good, key='another')
        elif mode == 'shapeless':
            reply(router, message, 'kernel_info_reply', b'{"implementation": [' * 1000)
        elif mode == 'flood':
            for _ in range(1000):
                reply(router, message, 'kernel_info_reply', good, parent=b'{}')
        elif mode == 'another-answer':
            reply(router, message, 'execute_reply', b'{"status": "ok", "execution_count": 1}')
        elif kind == 'kernel_info_request':
            reply(router, message, 'kernel_info_reply', good)
        elif mode == 'dies':
            os._exit(9)
        elif mode == 'aborts':
            reply(router, message, 'execute_reply', b'{"status": "aborted"}')
        elif mode == 'lies':
            data = {'text/plain': repr(b'{"late": false, "live_bytes": -1}'.hex())}
            content = {'status': 'ok', 'execution_count': 1, 'payload': [],
                       'user_expressions': {'gpumem': {'status': 'ok', 'data': data, 'metadata': {}}}}
            reply(router, message, 'execute_reply', json.dumps(content).encode())
        elif mode == 'silent':
            pass


raw() if mode in ('giant', 'endless', 'noise', 'dumb') else serve()
