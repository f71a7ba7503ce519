"""Bindings of real devices: shared by all hosts of a machine, refused while strangers compute."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path

import pytest
from agent.fake_nvml import FakeNvml, gpu

from notebookos_ext.agent.binding import DeviceBindings, Holder, Refusal
from notebookos_ext.agent.inventory import HostInventory
from notebookos_ext.agent.nvml import NvmlReader
from notebookos_ext.agent.procfs import belongs_to_an_agent
from notebookos_ext.cluster.model import CellId, DeviceId, KernelId, ReplicaId
from notebookos_ext.errors import StorageError

A, B = DeviceId("GPU-a"), DeviceId("GPU-b")
FOREIGN, OURS = 111, 222


def holder(replica: str = "k:1", attempt: int = 1, pid: int = 1) -> Holder:
    return Holder(KernelId("k"), CellId("c"), attempt, ReplicaId(replica), pid)


class Machine:
    """Two real devices; any number of hosts that share them."""

    def __init__(self, locks: Path) -> None:
        self.locks = locks
        self.gpus = gpu("GPU-a"), gpu("GPU-b")

    def host(self) -> DeviceBindings:
        reader = NvmlReader(FakeNvml(*self.gpus))
        inventory = HostInventory(reader.devices, reader)
        return DeviceBindings(inventory, self.locks, is_ours=lambda pid: pid == OURS)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def run(coroutine: Coroutine[object, object, Refusal | None]) -> Refusal | None:
    return asyncio.run(coroutine)


def test_a_real_device_is_bound_once_on_the_whole_machine(machine: Machine) -> None:
    one, other = machine.host(), machine.host()
    assert run(one.bind((A, B), holder())) is None
    refusal = run(other.bind((B,), holder("j:1")))
    assert refusal == Refusal("GPU-b is bound by another host of this machine", (B,))
    one.release((A, B), ReplicaId("k:1"), attempt=1)
    assert run(other.bind((B,), holder("j:1"))) is None
    other.release_all(pid=1)


def test_a_refused_bind_gives_back_what_it_had(machine: Machine) -> None:
    one, other = machine.host(), machine.host()
    assert run(one.bind((B,), holder())) is None
    assert run(other.bind((A, B), holder("j:1"))) is not None
    assert other.held_by(ReplicaId("j:1")) == ()
    assert run(one.bind((A,), holder())) is None
    one.release_all(pid=1)


def test_a_device_that_a_stranger_computes_on_is_busy(machine: Machine) -> None:
    machine.gpus[1].owners = {OURS: 5, FOREIGN: 7}
    host, other = machine.host(), machine.host()
    refusal = run(host.bind((A, B), holder()))
    words = "GPU-b is in use by process 111, which is not a replica"
    assert refusal == Refusal(words, (B,))
    assert run(other.bind((A,), holder("j:1"))) is None
    machine.gpus[1].owners = {OURS: 5}
    assert run(host.bind((B,), holder())) is None
    for bindings in (host, other):
        bindings.release_all(pid=1)


def test_a_release_of_another_attempt_changes_nothing(machine: Machine) -> None:
    host = machine.host()
    assert run(host.bind((A,), holder(attempt=1))) is None
    assert run(host.bind((A, B), holder(attempt=2))) is None
    host.release((A,), ReplicaId("k:1"), attempt=1)
    host.release((A,), ReplicaId("j:1"), attempt=2)
    assert set(host.held_by(ReplicaId("k:1"))) == {A, B}
    host.release((A, B), ReplicaId("k:1"), attempt=2)
    assert host.held_by(ReplicaId("k:1")) == ()


def test_what_stays_on_a_device_is_measured_for_our_processes_only(machine: Machine) -> None:
    machine.gpus[0].owners = {OURS: 300, FOREIGN: 7}
    machine.gpus[1].owners = {OURS: 40}
    host = machine.host()
    assert asyncio.run(host.residual_bytes((A, B), {OURS})) == 340
    machine.gpus[0].owners = {OURS: None}
    assert asyncio.run(host.residual_bytes((A,), {OURS})) is None


def test_a_lock_that_cannot_be_made_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.locks = tmp_path / "missing"
    host = machine.host()
    with pytest.raises(StorageError, match="missing/GPU-a cannot be opened: No such file"):
        run(host.bind((A,), holder()))


def test_the_end_of_a_process_frees_its_locks(tmp_path: Path) -> None:
    """A killed agent leaves no device locked."""
    program = (
        "import fcntl, os, sys\n"
        f"f = os.open({str(tmp_path / 'GPU-a')!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    host = Machine(tmp_path).host()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        assert run(host.bind((A,), holder())) is not None
        process.kill()
    assert run(host.bind((A,), holder())) is None
    host.release_all(pid=1)


def test_only_descendants_of_agents_are_ours() -> None:
    assert not belongs_to_an_agent(os.getpid())
    # Nobody here can see that process, so it cannot be told from one of ours.
    assert belongs_to_an_agent(2**22 + 1)
    program = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    arguments = [sys.executable, "-c", program, "notebookos_ext.agent"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert belongs_to_an_agent(int(process.stdout.readline()))
        assert process.stdin is not None
        process.stdin.close()
