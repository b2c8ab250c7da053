"""Executes code in a kernel: drive.py CONNECTION_FILE CODE."""

import sys

from jupyter_client import BlockingKernelClient

client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
# Without the heartbeat, because it would mistake a kernel on a busy machine for a dead kernel.
client.start_channels(hb=False)
client.wait_for_ready(timeout=90)
reply = client.execute_interactive(sys.argv[2], timeout=60)
client.stop_channels()
sys.exit(reply["content"]["status"] != "ok")
