"""The extension in a real server process: it starts, it shows itself, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from live_rig import gone, until
from traitlets.config import Config
from traitlets.config.loader import DeferredConfigList, DeferredConfigString

from notebookos_ext import _jupyter_labextension_paths, _jupyter_server_extension_points
from notebookos_ext.app import NotebookOSApp, send_small_frames_at_once
from notebookos_ext.errors import InvalidSettings
from notebookos_ext.live import cli
from notebookos_ext.live.cli import asking
from notebookos_ext.live.websocket import NoDelayWebsocketConnection
from notebookos_ext.settings import Settings, names


def test_every_setting_is_a_trait_with_the_same_default() -> None:
    traits = NotebookOSApp.class_traits(config=True)
    defaults = Settings()
    for name in names():
        assert name in traits, f"{name} cannot be configured"
        default = traits[name].default()
        assert tuple(default) == () if name == "preload" else default == getattr(defaults, name)
        assert traits[name].help


def test_the_hooks_name_the_app_and_the_front_end() -> None:
    assert _jupyter_server_extension_points() == [
        {"module": "notebookos_ext", "app": NotebookOSApp}
    ]
    assert _jupyter_labextension_paths() == [{"src": "labextension", "dest": "notebookos-ext"}]


class Chosen(ZMQChannelsWebsocketConnection):
    """What somebody else's extension set before."""


@pytest.mark.parametrize(
    ("before", "nodelay", "after"),
    [
        (ZMQChannelsWebsocketConnection, True, NoDelayWebsocketConnection),
        (ZMQChannelsWebsocketConnection, False, ZMQChannelsWebsocketConnection),
        (Chosen, True, Chosen),
    ],
)
def test_small_frames_are_sent_at_once_unless_another_class_was_chosen(
    before: type, nodelay: bool, after: type
) -> None:
    settings: dict[str, type] = {"kernel_websocket_connection_class": before}
    send_small_frames_at_once(settings, wanted=nodelay)
    assert settings == {"kernel_websocket_connection_class": after}


@contextmanager
def with_ctrl_c() -> Iterator[None]:
    """What is started here hears SIGINT, which all that a shell runs in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def server(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """`jupyter server` on folders of its own; its description once it listens."""
    env = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    with (folder / "log").open("wb") as log, with_ctrl_c(), subprocess.Popen(
        [
            sys.executable, "-m", "jupyter_server", "--no-browser", "--ServerApp.port=0",
            "--ServerApp.allow_root=True", f"--ServerApp.root_dir={folder}", *options,
        ],
        env=env, stdout=log, stderr=log,
    ) as process:  # fmt: skip
        try:

            def listening() -> dict[str, Any] | None:
                assert process.poll() is None, (folder / "log").read_text()
                for path in (folder / "runtime").glob("jpserver-*.json"):
                    try:
                        described = dict(json.loads(path.read_text()))
                        ask(described, "api/status")
                    except (ValueError, OSError):
                        continue
                    return described
                return None

            yield process, until(listening, "the server listens")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def test_a_server_shows_its_cluster_and_ends_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with server(tmp_path, "--NotebookOSApp.hosts=2") as (process, described):
        arguments = ["status", "--server", described["url"], "--token", described["token"]]

        def two_hosts() -> list[dict[str, Any]] | None:
            assert cli.main([*arguments, "--json"]) == 0
            (cluster,) = json.loads(capsys.readouterr().out)
            return cluster["hosts"] if len(cluster["hosts"]) == 2 else None

        pids = [host["pid"] for host in until(two_hosts, "two hosts")]
        assert cli.main(arguments) == 0
        shown = capsys.readouterr().out
        assert "host-1" in shown
        assert "simulated" in shown
        assert "no kernel" in shown
        assert (tmp_path / "data" / "notebookos" / "token").exists()
        assert cli.main([*arguments[:3], "--token", "wrong"]) == 1
        assert "wants a token" in capsys.readouterr().err
    assert process.returncode == 0
    assert all(gone(pid) for pid in pids)


def ask(described: dict[str, Any], path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        described["url"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {described['token']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_server_that_ends_leaves_no_process_and_its_kernels_logs(tmp_path: Path) -> None:
    with server(tmp_path, "--NotebookOSApp.hosts=3") as (process, described):
        # Its user's kernelspecs are hidden by JUPYTER_DATA_DIR, not those of its environment.
        kernel = ask(described, "api/kernels", {"name": "notebookos"})["id"]

        def replicas() -> list[int] | None:
            view = ask(described, f"notebookos/api/kernels/{kernel}")
            pids = [replica["pid"] for replica in view["replicas"] if replica["pid"]]
            return pids if len(pids) == 3 else None

        pids = until(replicas, "three replicas")
    assert process.returncode == 0
    assert all(gone(pid) for pid in pids)
    # What the next server needs to have the kernel back.
    state = tmp_path / "data" / "notebookos"
    assert {path.name for path in state.glob("hosts/*/kernels/*")} == {kernel}
    assert [path.stem for path in state.glob("kernels/*")] == [kernel]


def test_ctrl_c_without_a_terminal_leaves_nothing(tmp_path: Path) -> None:
    with server(tmp_path, "--NotebookOSApp.hosts=1") as (process, described):

        def one_host() -> list[dict[str, Any]]:
            hosts: list[dict[str, Any]] = ask(described, "notebookos/api/cluster")["hosts"]
            return hosts

        (host,) = until(one_host, "one host")
        process.send_signal(signal.SIGINT)
        process.wait()
    assert gone(host["pid"])


def test_no_server_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking, "list_running_servers", lambda: iter([]))
    assert cli.main(["status"]) == 1
    assert "no Jupyter server of yours is running" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--server", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9/ does not answer" in capsys.readouterr().err


def test_an_address_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--server", "file:///etc/passwd"]) == 1
    assert "is not the address of a server" in capsys.readouterr().err


def test_a_configuration_is_taken_as_it_is() -> None:
    config = Config({"NotebookOSApp": {"hosts": 2, "preload": ["numpy"], "state_folder": "/x"}})
    settings = NotebookOSApp(config=config)._settings()
    assert (settings.hosts, settings.preload, settings.state_folder) == (2, ("numpy",), "/x")


@pytest.mark.parametrize(
    "texts",
    [
        ['{"quota": 4, "autoscaler": {"least_hosts": 2, "rule": "committed"}}'],
        ["quota=4", "autoscaler.least_hosts=2", "autoscaler.rule=committed"],
        ['{"quota": 4}', 'autoscaler={"least_hosts": 2, "rule": "committed"}'],
    ],
)
def test_scheduling_is_written_as_json_or_one_by_one(texts: list[str]) -> None:
    config = Config({"NotebookOSApp": {"scheduling": DeferredConfigList(texts)}})
    assert NotebookOSApp(config=config)._settings().scheduling == {
        "quota": 4,
        "autoscaler": {"least_hosts": 2, "rule": "committed"},
    }


def test_scheduling_that_is_neither_is_refused_in_a_sentence() -> None:
    config = Config({"NotebookOSApp": {"scheduling": DeferredConfigList(["{quota: 4"])}})
    with pytest.raises(InvalidSettings, match="options by name"):
        NotebookOSApp(config=config)._settings()


@pytest.mark.parametrize(
    ("given", "modules"),
    [
        (DeferredConfigString("numpy"), ["numpy"]),
        (DeferredConfigList(["numpy", "torch.nn"]), ["numpy", "torch.nn"]),
        (DeferredConfigString("['numpy', 'torch']"), ["numpy", "torch"]),
    ],
)
def test_modules_to_preload_are_named_on_the_command_line(given: Any, modules: list[str]) -> None:
    # The server parses its command line before it knows our settings.
    assert NotebookOSApp(config=Config({"NotebookOSApp": {"preload": given}})).preload == modules
