"""Tokens, keys and sockets of a running cluster: whom they are for, and where they do not go."""

from __future__ import annotations

import base64
import json
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from live_rig import until
from server_rig import Tab, running_server

FEW = ("--NotebookOSApp.hosts=3", "--NotebookOSApp.max_hosts=3")
LOOK = """
import os
seen = [open('/proc/self/environ', 'rb').read(), open('/proc/self/cmdline', 'rb').read(),
        repr(dict(os.environ)).encode()]
print('SEEN', b' '.join(seen).hex())
print('FILES', [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')
                if os.path.islink(f'/proc/self/fd/{n}')])
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Paths of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix="nbs"))
    yield folder
    shutil.rmtree(folder)


def test_what_is_secret_stays_so(tmp_path: Path, short_folder: Path) -> None:
    where = {"TMPDIR": str(short_folder)}
    with running_server(tmp_path, *FEW, mark="secrets", environment=where) as server:
        kernel = server.start_kernel()
        with closing(Tab(server, kernel)) as tab:
            shown = tab.run(LOOK)
            tab.reply(tab.execute("1/0"))
            server.wait_for_replicas(kernel)
            tab.reply(tab.execute("os.kill(os.getpid(), 9)"))
            until(lambda: tab.run("print(1)") == "1\n", "the kernel goes on")
        state = tmp_path / "data" / "notebookos"
        token = (state / "token").read_text().strip()
        (record,) = (state / "kernels").glob("*.json")
        key = json.loads(record.read_bytes())["log_key"]
        forms = [
            token,
            bytes.fromhex(token),
            key,
            base64.b64decode(key),
            base64.b64decode(key).hex(),
        ]
        wanted = [form.encode() if isinstance(form, str) else form for form in forms]

        # In no log, and not in what a notebook's process is started with.
        logs = [tmp_path / "log", *state.glob("hosts/*/agent.*"), *state.glob("hosts/*/replicas/*")]
        assert len(logs) >= 7
        seen = bytes.fromhex(shown.partition("SEEN ")[2].split()[0])
        for place in (seen, *(log.read_bytes() for log in logs)):
            assert not [form for form in wanted if form in place]
        files = shown.partition("FILES ")[2]
        assert "token" not in files
        assert "member.wal" not in files
        assert "control" not in files

        # For nobody else.
        for path in (state / "token", state / "hash_seed", state / "lock", record):
            assert not path.stat().st_mode & 0o077, path
        assert not state.stat().st_mode & 0o077
        (private,) = short_folder.glob("nbos-*")
        assert not private.stat().st_mode & 0o077
        listening = [p for p in private.rglob("*") if stat.S_ISSOCK(p.lstat().st_mode)]
        assert len(listening) >= 6
        server.ask("DELETE", f"api/kernels/{kernel}")
