"""A support bundle says how things are, and holds nothing that users wrote, named or computed."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from live_rig import until
from server_rig import Server, Tab, running_server

from notebookos_ext.live import cli

FEW = ("--NotebookOSApp.hosts=3", "--NotebookOSApp.max_hosts=3", "--NotebookOSApp.user=PLANTuser")
CODE = """
import os, sys, logging
PLANTname = 'PLANTvalue'
PLANTheld = (n for n in range(3))
os.environ['PLANT_ENV'] = 'PLANTenvironment'
print('PLANToutput'); print('PLANTerrors', file=sys.stderr); logging.warning('PLANTlogged')
os.write(2, b'PLANTdescriptor')
class PLANTclass:
    def __reduce__(self): return (PLANTrebuilt, ())
def PLANTrebuilt():
    raise ValueError('PLANTmessage')
PLANTbroken = PLANTclass()
"""


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {m.name: archive.extractfile(m) for m in archive.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def secrets(state: Path, server: Server) -> list[str]:
    """Tokens and keys, in every way in which they may be written."""
    token = (state / "token").read_text().strip()
    keys = [json.loads(p.read_bytes())["log_key"] for p in (state / "kernels").glob("*.json")]
    assert keys
    return [token, server.token, *keys, (state / "hash_seed").read_text().strip()]


def test_what_users_wrote_named_or_computed_is_not_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    with running_server(tmp_path, *FEW, mark="support") as server:
        (tmp_path / "PLANTnotebook.ipynb").write_text(
            json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        )
        asked = {
            "path": "PLANTnotebook.ipynb",
            "name": "PLANTnotebook.ipynb",
            "type": "notebook",
            "kernel": {"name": "notebookos"},
        }
        kernel = server.ask("POST", "api/sessions", asked)["kernel"]["id"]
        with closing(Tab(server, kernel)) as tab:
            tab.run(CODE)
            server.wait_for_replicas(kernel)
            tab.reply(tab.execute("raise KeyError('PLANTraised')"))
            tab.reply(tab.execute("PLANTname; os.kill(os.getpid(), 9)"))
            tab.run("print(PLANTname)")
            until(
                lambda: server.replicas(kernel)[0]["member"],
                "the hosts have been asked how their members are",
            )
        state = tmp_path / "data" / "notebookos"
        where = ["--state-folder", str(state), "--server", server.url, "--token", server.token]
        assert cli.main(["support-bundle", "--output", str(bundle), *where]) == 0
        hidden = [*secrets(state, server), str(tmp_path)]
        assert cli.main(["support-bundle", "--output", str(bundle), *where]) == 1
        assert "exists; name another file" in capsys.readouterr().err
        server.ask("DELETE", f"api/kernels/{kernel}")
    assert bundle.stat().st_mode & 0o777 == 0o600
    files = unpacked(bundle)
    for name, text in files.items():
        assert "PLANT" not in text, name
        assert "PLANT" not in name
        for secret in hidden:
            assert secret not in text, (name, secret)
        if (user := getpass.getuser()) != "root":
            assert user not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text), name
        assert os.environ.get("HOME", "?") not in text
    # What helps is there: who joined, how replicas ended, how members are.
    logs = "".join(text for name, text in files.items() if name.endswith("agent.log"))
    assert "killed by signal 9 (SIGKILL): perhaps out of memory" in logs
    (view,) = json.loads(files["notebookos-support/servers.json"])
    assert view["kernels"][0]["id"] == kernel
    assert view["kernels"][0]["replicas"][0]["member"]["term"] >= 1
    assert len(view["hosts"]) == 3
    assert "member.wal" in files["notebookos-support/files.txt"]
