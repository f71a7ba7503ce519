"""A program in the manner of raftos's documentation: it does its work only while it leads.

python hooks.py LOG_PATH NODE OTHER…
"""

import asyncio
import sys

from notebookos_ext import raftos

log_path, node_id, *others = sys.argv[1:]


async def start():
    print("start", raftos.get_leader() == node_id, flush=True)


def stop():
    print("stop", raftos.get_leader() == node_id, flush=True)


raftos.configure(
    {
        "log_path": log_path,
        "heartbeat_interval": 0.2,
        "secret_key": b"a secret of these three",
        "on_leader": start,
        "on_follower": stop,
    }
)


async def main():
    await raftos.register(node_id, cluster=others)
    while await asyncio.to_thread(sys.stdin.readline):
        print("leader", raftos.get_leader(), flush=True)
    raftos.stop()


asyncio.run(main())
