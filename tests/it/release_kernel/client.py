"""A client of a kernel: client.py CONNECTION_FILE. Reads and writes one JSON object per line.

{"run": code}: executes a cell, and returns the status, count and output.
{"start": code}: starts a cell, and does not wait for its end.
{"state": true}: returns the state that a release must not change, without changing the state.
{"cells": n, "seed": s}: executes cells at random times, and returns the longest time in seconds.
"""

import json
import random
import sys
import time

from jupyter_client import BlockingKernelClient

STATE = """(lambda g, ip, sys: __import__('json').dumps({
    'globals': sorted([k, id(v)] for k, v in g.items()),
    'count': ip.execution_count,
    'in': list(ip.user_ns['In']),
    'out': sorted([k, id(v)] for k, v in ip.user_ns['Out'].items()),
    'last': [id(getattr(sys, n, None)) for n in ('last_exc', 'last_value', 'last_type', 'last_traceback')],
    'history': [list(row) for row in ip.history_manager.get_range()],
    'modules': sorted(sys.modules)}))(globals(), get_ipython(), __import__('sys'))"""

client = BlockingKernelClient()
client.load_connection_file(sys.argv[1])
# Without the heartbeat, because it would mistake a kernel on a busy machine for a dead kernel.
client.start_channels(hb=False)
client.wait_for_ready(timeout=90)


def run(code):
    text = []

    def hook(message):
        if message['msg_type'] == 'stream':
            text.append(message['content']['text'])

    reply = client.execute_interactive(code, output_hook=hook, timeout=90)['content']
    return {'status': reply['status'], 'count': reply['execution_count'], 'text': ''.join(text)}


def state():
    sent = client.execute('', silent=True, user_expressions={'state': STATE})
    while True:
        reply = client.get_shell_msg(timeout=90)
        if reply['parent_header'].get('msg_id') == sent:
            break
    return json.loads(eval(reply['content']['user_expressions']['state']['data']['text/plain']))


def cells(count, seed):
    chance, longest, bad = random.Random(seed), 0, 0
    for _ in range(count):
        time.sleep(chance.random() * 0.03)
        begun = time.monotonic()
        sent = client.execute('x += 1')
        while True:
            reply = client.get_shell_msg(timeout=90)
            if reply['parent_header'].get('msg_id') == sent:
                break
        bad += reply['content']['status'] != 'ok'
        longest = max(longest, time.monotonic() - begun)
    return {'longest': longest, 'bad': bad}


print(json.dumps('ready'), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if 'run' in ask:
        answer = run(ask['run'])
    elif 'start' in ask:
        client.execute(ask['start'])
        answer = None
    elif 'cells' in ask:
        answer = cells(ask['cells'], ask['seed'])
    else:
        answer = state()
    print(json.dumps(answer), flush=True)
