"""The life of an agent: who may command it, who takes it over, and that it ends without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from host_agents import HANG_S, KERNEL, ROOT, Hosts, begin, is_running, kill, until

from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import (
    Attach,
    AttemptBegun,
    AttemptEnded,
    Challenge,
    CloseMember,
    Done,
    Failure,
    FromAgent,
    Inventory,
    NewEpoch,
    OpenKernel,
    ReadInventory,
    RenewLease,
    StopAgent,
    ToAgent,
)
from notebookos_ext.cluster.model import DeviceKind, KernelId
from notebookos_ext.errors import InvalidRequest, NotFound, Refused
from notebookos_ext.live.agent_client import connect

pytestmark = pytest.mark.apart


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


def family(hosts: Hosts, host: str) -> list[int]:
    """The agent and everything below it."""
    agent = psutil.Process(hosts.processes[host].pid)
    return [agent.pid, *(child.pid for child in agent.children(recursive=True))]


async def until_ended(hosts: Hosts, host: str) -> int:
    return await asyncio.to_thread(hosts.processes[host].wait, HANG_S)


# ---- ends ---------------------------------------------------------------------------------------


def test_an_expired_lease_leaves_logs_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            await hosts["host-1"].request(begin("spawn;await-interrupt", 1), AttemptBegun)
            await until(lambda: any("child" in fact for fact in hosts.replica_log(1)))
            everything = family(hosts, "host-1")
            assert len(everything) >= 4
            await hosts["host-1"].request(RenewLease(lease_s=0.2), Done)
            assert await until_ended(hosts, "host-1") == 0
            assert not any(map(is_running, everything))
            assert list(hosts.sockets.iterdir()) == []
            left = {path.name for path in (tmp_path / "host-1").iterdir()}
            assert "agent.pid" not in left
            assert {"agent.log", "kernels"} <= left

    run(story())


def test_an_agent_that_no_controller_ever_attached_to_ends_too(tmp_path: Path) -> None:
    async def story() -> None:
        hosts = Hosts(tmp_path, lease_s=0.5)
        async with hosts:
            hosts["host-1"].client.close()
            assert await until_ended(hosts, "host-1") == 0

    run(story())


def test_renewals_keep_an_agent_alive(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, lease_s=1.0) as hosts:
            for _ in range(8):
                await asyncio.sleep(0.25)
                await hosts["host-1"].request(RenewLease(lease_s=1.0), Done)
            with pytest.raises(InvalidRequest, match="a lease of -1 s is not possible"):
                await hosts["host-1"].request(RenewLease(lease_s=-1.0), Done)
            await hosts["host-1"].request(RenewLease(lease_s=100.0), Done)

    run(story())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(tmp_path: Path, number: int) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, stubborn=True)
            everything = family(hosts, "host-1")
            hosts.processes["host-1"].send_signal(number)
            assert await until_ended(hosts, "host-1") == 0
            assert not any(map(is_running, everything))
            assert list(hosts.sockets.iterdir()) == []

    run(story())


def test_a_stopped_agent_answers_when_nothing_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            agent, *others = family(hosts, "host-1")
            await hosts["host-1"].request(StopAgent(delete_logs=True), Done)
            assert not any(map(is_running, others))
            assert not (tmp_path / "host-1" / "kernels").exists()
            assert await until_ended(hosts, "host-1") == 0
            assert not is_running(agent)

    run(story())


def test_a_killed_agent_takes_its_replicas_along_and_its_log_brings_them_back(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts["host-1"].request(NewEpoch(KERNEL, 1), Done)
            await hosts.launch(1, epoch=1)
            await hosts["host-1"].request(begin("commit x;spawn-in-session", 1), AttemptBegun)
            await hosts["host-1"].notice(AttemptEnded)
            await until(lambda: any("child" in fact for fact in hosts.replica_log(1)))
            (child,) = [fact["child"] for fact in hosts.replica_log(1) if "child" in fact]
            incarnation = hosts["host-1"].attached.spec.incarnation
            everything = [pid for pid in family(hosts, "host-1") if pid != child]
            kill(everything[0])
            await until_ended(hosts, "host-1")
            await until(lambda: not any(map(is_running, everything)))
            # The socket file is still there; a new agent takes its place.
            assert hosts.control_path("host-1").exists()
            hosts.control_path("host-1").unlink()
            hosts.start("host-1")
            await hosts.attach("host-1")
            # What the replica had started is ended by the next agent of the folder.
            await until(lambda: not is_running(child))
            assert hosts["host-1"].attached.spec.incarnation != incarnation
            assert hosts["host-1"].attached.kernels == ()
            await hosts.open_kernel()
            await hosts.launch(1, epoch=1)
            assert hosts.applied(1) == ["x"]
            await hosts["host-1"].request(begin("commit y", 2), AttemptBegun)

    run(story())


# ---- controllers --------------------------------------------------------------------------------


def test_a_second_controller_takes_over_and_hears_what_nobody_heard(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            ready = await hosts.launch(1)
            first = hosts["host-1"]
            await first.request(begin("await-interrupt;commit x", 1), AttemptBegun)
            first.client.close()
            await until(lambda: {"waits": True} in hosts.replica_log(1))
            os.kill(ready.pid, signal.SIGINT)
            await until(lambda: {"answered": "Committed", "error": ""} in hosts.replica_log(1))
            second = await hosts.attach("host-1")
            assert second.attached.kernels == (KERNEL,)
            (running,) = second.attached.replicas
            assert (running.replica, running.pid) == (ready.replica, ready.pid)
            assert running.endpoints == ready.endpoints
            await second.notice(AttemptEnded)
            third = await hosts.attach("host-1")
            await second.until_lost()
            await third.request(begin("commit y", 2), AttemptBegun)

    run(story())


def test_a_controller_that_does_not_know_the_token_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            with pytest.raises(Refused, match="does not know this cluster's token"):
                await connect(
                    str(hosts.control_path("host-1")),
                    token=secrets.token_bytes(32),
                    controller="stranger",
                    lease_s=HANG_S,
                    on_notice=lambda _: None,
                    on_lost=lambda _: None,
                )
            # The one that is attached stays so.
            await hosts["host-1"].request(RenewLease(lease_s=100.0), Done)

    run(story())


def talk(token: bytes, nonce: bytes) -> dict[str, ToAgent]:
    proof = hmac.digest(token, nonce, hashlib.sha256)
    good = Attach(proof=proof, controller="test", lease_s=100.0)
    return {
        "must be Attach": ToAgent(1, RenewLease(100.0)),
        "version 1 of the control protocol": ToAgent(1, msgspec.structs.replace(good, version=2)),
        "a lease of 0 s": ToAgent(1, msgspec.structs.replace(good, lease_s=0.0)),
    }


@pytest.mark.parametrize("words", list(talk(b"", b"")))
def test_a_bad_greeting_is_answered_and_ends_the_connection(tmp_path: Path, words: str) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            reader, writer = await asyncio.open_unix_connection(hosts.control_path("host-1"))
            decoder = FrameDecoder(FromAgent)
            (greeting,) = decoder.feed(await reader.read(1 << 16))
            assert isinstance(greeting.body, Challenge)
            request = talk(hosts.token, greeting.body.nonce)[words]
            # A request behind the refused one is not carried out.
            writer.write(encode_frame(request) + encode_frame(ToAgent(2, StopAgent(True))))
            (answer,) = decoder.feed(await asyncio.wait_for(reader.read(), HANG_S))
            assert isinstance(answer.body, Failure)
            assert words in answer.body.message
            writer.close()
            await hosts["host-1"].request(RenewLease(lease_s=100.0), Done)

    run(story())


def test_nonsense_ends_only_its_own_connection(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            for nonsense in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"\0\0\0\5hello",
                b"\0\1\0\0" + b"x" * 99999,
            ):
                reader, writer = await asyncio.open_unix_connection(hosts.control_path("host-1"))
                writer.write(nonsense)
                # It ends, or is cut off with what was not read.
                with contextlib.suppress(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), HANG_S)
                writer.close()
            await hosts["host-1"].request(RenewLease(lease_s=100.0), Done)

    run(story())


# ---- small requests -----------------------------------------------------------------------------


def test_simulated_devices_say_so_and_measure_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, simulated_gpus=3) as hosts:
            devices = hosts["host-1"].attached.spec.devices
            assert [d.device for d in devices] == [f"SIM-host-1-{n}" for n in range(3)]
            assert {d.kind for d in devices} == {DeviceKind.SIMULATED}
            assert {d.name for d in devices} == {"Simulated GPU"}
            inventory = await hosts["host-1"].request(ReadInventory(), Inventory)
            assert {u.memory_used_bytes for u in inventory.devices} == {None}

    run(story())


@pytest.mark.parametrize("kernel", ["", "../x", ".hidden", "a/b", "x" * 101])
def test_a_kernel_id_that_is_no_file_name_is_refused(tmp_path: Path, kernel: str) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            request = OpenKernel(KernelId(kernel), tuple(hosts.names), b"key", campaign=True)
            with pytest.raises(InvalidRequest, match="is not a kernel id"):
                await hosts["host-1"].request(request, Done)

    run(story())


def test_a_kernel_is_opened_with_one_key(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.open_kernel()
            other = OpenKernel(KERNEL, tuple(hosts.names), b"other key", campaign=True)
            with pytest.raises(InvalidRequest, match="another log key"):
                await hosts["host-1"].request(other, Done)
            with pytest.raises(NotFound, match="kernel-9 is not open"):
                await hosts["host-1"].request(NewEpoch(KernelId("kernel-9"), 1), Done)

    run(story())


def test_the_log_of_a_group_whose_end_was_missed_counts_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            for epoch in (1, 2, 3):
                await host.request(NewEpoch(KERNEL, epoch), Done)
            await host.request(CloseMember(KERNEL, delete=False), Done)
            (former,) = (tmp_path / "host-1" / "kernels" / KERNEL).iterdir()
            assert (former / "member.wal").exists()
            opening = OpenKernel(KERNEL, tuple(hosts.names), b"next key", campaign=True)
            await host.request(opening, Done)
            assert not former.exists()
            # In the former group this epoch had begun, so no replica of it could be launched.
            await hosts.launch(1, epoch=0)

    run(story())


# ---- bad beginnings -----------------------------------------------------------------------------


def start_and_fail(hosts: Hosts, host: str = "host-1") -> str:
    process = hosts.start(host)
    assert process.wait(HANG_S) == 2
    words = (hosts.root / f"{host}.err").read_text()
    assert words.count("\n") == 1, words
    return words


@pytest.fixture
def hosts(tmp_path: Path) -> Any:
    made = Hosts(tmp_path)
    yield made
    asyncio.run(made.__aexit__())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"gpus": "some"}, 'gpus is "some"; choose "auto", "simulated" or "none"'),
        ({"simulated_gpus": -1}, "simulated_gpus is -1"),
        ({"host": "a b"}, 'host "a b" is not a plain name'),
        ({"hash_seed": -5}, "hash_seed is -5"),
        ({"folder": "relative"}, "must be an absolute path"),
        ({"socket_folder": "/tmp/" + "x" * 100}, "longer than 107 bytes"),
        ({"token_file": "/nowhere/token"}, "token /nowhere/token cannot be read"),
        ({"folder": "/proc/nothing"}, "the folder /proc/nothing cannot be made"),
        ({"lease_s": 0.0}, "a lease of 0 s is not possible"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_sentence(
    hosts: Hosts, overrides: dict[str, Any], words: str
) -> None:
    hosts._overrides = overrides
    assert words in start_and_fail(hosts)


def test_a_token_that_others_can_read_is_refused(hosts: Hosts) -> None:
    (hosts.root / "token").chmod(0o644)
    assert "can be read by others; set its mode to 0600" in start_and_fail(hosts)


def test_a_file_that_is_no_configuration_is_named(hosts: Hosts) -> None:
    path = hosts.root / "broken.json"
    path.write_text('{"host": 5}')
    for arguments, words in ((["/nowhere.json"], "cannot be read"), ([str(path)], "is not valid")):
        done = subprocess.run(
            [sys.executable, "-m", "notebookos_ext.agent", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_second_agent_for_the_same_host_says_that_the_first_lives(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            first = hosts.processes["host-1"]
            try:
                words = await asyncio.to_thread(start_and_fail, hosts)
                assert f"a living host agent (process {first.pid}) already uses" in words
                # The same sockets with another folder.
                hosts._overrides = {"folder": str(tmp_path / "elsewhere")}
                words = await asyncio.to_thread(start_and_fail, hosts)
                assert "a living host agent already serves" in words
            finally:
                hosts.processes["host-1"] = first
            await hosts["host-1"].request(RenewLease(lease_s=100.0), Done)

    run(story())
