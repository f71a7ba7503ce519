"""Two of three hosts are gone: the kernel waits, or goes on with what the third one knows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_rig import HANG_S, Notebook, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import Infeasible, NotFound, StorageFull
from notebookos_ext.handlers.models import HostView
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_records import KernelRecord


def host(cluster: ClusterRuntime, name: str) -> HostView:
    return next(h for h in snapshot(cluster).hosts if h.id == name)


def lose(cluster: ClusterRuntime, *names: str) -> None:
    """Kill hosts' agents so that they cannot start again."""
    for name in names:
        folder = cluster.folder.host(name)
        pid = host(cluster, name).pid
        # Nothing can be started in a folder that is not there.
        folder.rename(f"{folder}.aside")
        folder.touch()
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(host(cluster, n).state == "lost" for n in names), "lost hosts")


def bring_back(cluster: ClusterRuntime, *names: str) -> None:
    """Let them come back with their logs."""
    for name in names:
        folder = cluster.folder.host(name)
        folder.unlink()
        Path(f"{folder}.aside").rename(folder)
    until(lambda: all(host(cluster, n).state == "ready" for n in names), "hosts that are back")


@contextmanager
def gone(cluster: ClusterRuntime, *names: str) -> Iterator[None]:
    """Without these hosts."""
    lose(cluster, *names)
    yield
    bring_back(cluster, *names)


def groups(cluster: ClusterRuntime, kernel: Notebook, name: str) -> set[str]:
    """The groups of which the host has a log."""
    folder = cluster.folder.host(name) / "kernels" / kernel.id
    return {path.parent.name for path in folder.glob("*/member.wal")}


def go_on(kernel: Notebook) -> None:
    controller = kernel.runtime.controller
    controller.continue_unprotected(KernelId(kernel.id)).result(HANG_S)


def others(kernel: Notebook) -> list[str]:
    executor = kernel.executor().host_id
    return [r.host_id for r in kernel.view().replicas if r.host_id != executor]


def whole_again(cluster: ClusterRuntime, kernel: Notebook, old: set[str]) -> None:
    """Three members of one new group, and nothing left of the old one."""
    kernel.wait_for_replicas()
    view = kernel.view()
    assert not view.unprotected
    now = [groups(cluster, kernel, replica.host_id) for replica in view.replicas]
    assert now[0] == now[1] == now[2]
    assert len(now[0]) == 1
    assert not now[0] & old
    until(
        lambda: all(r.member and r.member.votes for r in kernel.view().replicas),
        "three members that vote",
    )


def test_the_survivor_goes_on_when_it_is_asked_to() -> None:
    with (
        private_cluster(
            hosts=3, max_hosts=3, poll_s=0.1, scheduling={"majority_grace_s": 0.5}
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        kernel.run("shared = [1]; alias = shared")
        with pytest.raises(Infeasible, match="enough of its members are there"):
            go_on(kernel)
        with pytest.raises(NotFound):
            cluster.controller.continue_unprotected(KernelId("unknown")).result(HANG_S)
        survivor = kernel.executor()
        old = groups(cluster, kernel, survivor.host_id)
        with gone(cluster, *others(kernel)):
            view = until(lambda: (v := kernel.view()).state == "no-majority" and v, "no majority")
            assert "1 of its 3 members" in view.majority_lost
            assert view.can_continue
            kernel.submit("alias.append(2); print(shared, alias is shared)")
            waiting = until(lambda: snapshot(cluster).waiting, "a cell that waits")
            assert waiting[0].reason == view.majority_lost
            go_on(kernel)
            assert kernel.reply()["status"] == "ok"
            view = kernel.view()
            assert view.unprotected
            assert not view.can_continue
            # Its process was never ended: what only that has is there, too.
            assert [r.pid for r in view.replicas] == [survivor.pid]
            said = [w.message for w in snapshot(cluster).warnings if "unprotected" in w.message]
            assert "everything that answered cells did is there" in said[-1]
            assert groups(cluster, kernel, survivor.host_id).isdisjoint(old)
            # What it commits alone is on its disk: a new process has it.
            kernel.kill_executor()
            assert kernel.run("print(shared, alias is shared)").text == "[1, 2] True\n"
        whole_again(cluster, kernel, old)
        assert kernel.run("shared.append(3); print(shared)").text == "[1, 2, 3]\n"
        # The group needs nothing of the survivor any more.
        with gone(cluster, survivor.host_id):
            assert kernel.run("print(alias)").text == "[1, 2, 3]\n"


def test_by_a_setting_it_goes_on_by_itself_and_says_what_is_lost() -> None:
    with (
        private_cluster(
            hosts=3,
            max_hosts=3,
            poll_s=0.1,
            scheduling={"majority_grace_s": 0.5, "without_majority": "continue"},
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        kernel.run("x = 1")
        executor = kernel.executor().host_id
        behind, witness = others(kernel)
        old = groups(cluster, kernel, behind)
        # What comes now is on the two others alone.
        lose(cluster, behind)
        assert kernel.run("x = 2").status == "ok"
        assert kernel.run("y = 3").status == "ok"
        with gone(cluster, executor, witness):
            bring_back(cluster, behind)
            until(lambda: kernel.view().unprotected, "a kernel that goes on")
            shown = kernel.run("print(x, 'y' in globals())")
            assert shown.text.endswith("1 False\n")
            assert "NotebookOS: the kernel goes on unprotected" in shown.text
            assert "(`x = 2`, `y = 3`)" in shown.text
            # Once is enough.
            assert kernel.run("x = 10; print(x)").text == "10\n"
        whole_again(cluster, kernel, old)
        for _ in range(3):
            assert kernel.run("print(x, 'y' in globals())").text == "10 False\n"
            kernel.kill_executor()
            kernel.wait_for_replicas()


def test_nobody_goes_on_where_the_new_key_cannot_be_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later server would know the old group alone, and lose what the new one had."""

    def full(_self: Keeper, _record: KernelRecord) -> None:
        raise StorageFull("no space is left for the kernel's record; free some")

    def warnings() -> list[str]:
        return [w.message for w in snapshot(cluster).warnings]

    with (
        private_cluster(
            hosts=3, max_hosts=3, poll_s=0.1, scheduling={"majority_grace_s": 0.5}
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        kernel.run("x = [1]")
        survivor = kernel.executor()
        old = groups(cluster, kernel, survivor.host_id)
        with gone(cluster, *others(kernel)):
            until(lambda: kernel.view().can_continue, "a kernel that can go on")
            monkeypatch.setattr(Keeper, "write", full)
            go_on(kernel)
            said = "could not go on unprotected: no space is left for the kernel's record"
            until(lambda: any(said in message for message in warnings()), "the reason")
            assert old <= groups(cluster, kernel, survivor.host_id)
            view = until(lambda: (v := kernel.view()).can_continue and v, "another chance")
            assert not view.unprotected
            monkeypatch.undo()
            go_on(kernel)
            until(lambda: kernel.view().unprotected, "a kernel that goes on")
            assert kernel.run("x.append(2); print(x)").text.endswith("[1, 2]\n")
            assert [r.pid for r in kernel.view().replicas] == [survivor.pid]
        whole_again(cluster, kernel, old)
        assert kernel.run("print(x)").text == "[1, 2]\n"


def test_of_two_survivors_the_one_that_knows_more_goes_on() -> None:
    with (
        private_cluster(
            hosts=5,
            max_hosts=5,
            replica_count=5,
            poll_s=0.1,
            scheduling={"majority_grace_s": 0.5},
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas(5)
        kernel.run("x = 1")
        # The one that is asked first is the one that knows less.
        behind, witness, *gone_for_good = [*others(kernel), kernel.executor().host_id]
        lose(cluster, behind)
        assert kernel.run("x = 2").status == "ok"
        with gone(cluster, *gone_for_good):
            bring_back(cluster, behind)
            until(lambda: kernel.view().majority_lost, "a kernel that says what it lacks")
            go_on(kernel)
            assert kernel.run("print(x)").text.endswith("2\n")
            said = [w.message for w in snapshot(cluster).warnings if "unprotected" in w.message]
            assert f"with what {witness} knows" in said[-1]
            assert "everything that answered cells did is there" in said[-1]
            # The other survivor learns it anew, as the second of two.
            until(lambda: len(kernel.view().replicas) == 2, "the other survivor")
        kernel.wait_for_replicas(5)
        assert kernel.run("print(x)").text == "2\n"
