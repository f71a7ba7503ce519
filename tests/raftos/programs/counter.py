"""A program in the manner of raftos's documentation: whoever leads counts, the others watch.

python counter.py LOG_PATH NODE OTHER…
"""

import asyncio
import sys

from notebookos_ext import raftos

log_path, node_id, *others = sys.argv[1:]
raftos.configure({"log_path": log_path, "serializer": raftos.serializers.JSONSerializer})
raftos.configure({"heartbeat_interval": 0.2})


async def run(loop):
    counter = raftos.Replicated(name="counter")
    data = raftos.ReplicatedDict(name="data")
    history = raftos.ReplicatedList(name="history")
    loop.create_task(raftos.register(node_id, cluster=others))

    await raftos.wait_until_leader(node_id)
    print("leads", flush=True)
    count = (await counter.get() or 0) + 1
    await counter.set(count)
    await data.update({"last": {"id": node_id, "count": count}})
    await history.append(count)
    print("counted", count, await history.get(), flush=True)
    await asyncio.Event().wait()


loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
loop.run_until_complete(run(loop))
