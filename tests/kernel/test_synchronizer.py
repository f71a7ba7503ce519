"""What is sent, when, and what happens to what cannot travel."""

from __future__ import annotations

import pytest

MEBIBYTE = 2**20


def test_values_and_history(replicas):
    group = replicas(2)
    assert group.cell("x = [1, 2]\ny = x\n'hello'") == "Out[1]: 'hello'\n"
    assert group.cell("y.append(3); print(x, _, In[-1], Out)", on=1) == (
        "[1, 2, 3] hello y.append(3); print(x, _, In[-1], Out) {1: 'hello'}\n"
    )
    seen = group.cell("print(x, x is y, _i)")
    assert seen == "[1, 2, 3] True y.append(3); print(x, _, In[-1], Out)\n"
    assert group.problems == []


def test_only_what_changed_is_sent(replicas):
    group = replicas(2)
    group.cell("a = [1]; b = [2]; c = b; n = 5; text = 'x' * 100_000\ndef f(): return a")
    group.cell("f().append(2)")
    assert group.sent == [("a",)]
    group.cell("c.append(3)", on=1)
    assert group.sent == [("b", "c")]
    group.cell("n += 1")
    assert group.sent == [("n",)]
    assert group.bytes_sent < 4_000
    group.cell("pass", on=1)
    assert group.sent == []
    group.cell("n = 6; a = a; b[0] = 2")
    assert group.sent == []


def test_nothing_at_all_is_none(replicas):
    (handle,) = replicas(1).handles
    handle.run("x = [1]")
    assert handle.collect() is not None
    assert handle.collect() is None
    handle.run("")
    handle.collect()
    assert handle.collect() is None


def test_names_deleted_and_made_again(replicas):
    group = replicas(2)
    group.cell("a = 1; b = [a]; c = b")
    group.cell("del a, b", on=1)
    assert group.deltas[-1].deleted == ("a", "b")
    assert group.cell("print('a' in dir(), 'b' in dir(), c)") == "False False [1]\n"
    group.cell("a = [c]", on=1)
    assert group.cell("print(a[0] is c)") == "True\n"


def test_a_changed_part_of_a_large_array_ships_alone(replicas):
    group = replicas(2, early_bytes=0)
    group.cell("import numpy as np; a = np.arange(3_000_000.0)")
    first = dict(group.handles[0].evaluate_puts())
    assert sum(first.values()) == 24_000_000
    group.cell("a[0] = -1; part = a[1_000_000:]")
    later = [pair for pair in group.handles[0].evaluate_puts() if pair[0] not in first]
    assert [size for _, size in later] == [4 * MEBIBYTE]
    group.cell("a[-1] = -2", on=1)
    assert sum(size for _, size in group.handles[1].evaluate_puts()) <= 4 * MEBIBYTE
    assert group.cell("print(a[0], a[-1], part[-1], part.base is a)") == "-1.0 -2.0 -2.0 True\n"


def test_large_components_come_late_with_what_needs_them(replicas):
    group = replicas(2, early_bytes=MEBIBYTE)
    group.cell(
        "import numpy as np\nbig = np.ones(1_000_000); small = [1]\n"
        "def reader(data):\n    def read(): return data.sum()\n    return read\n"
        "read = reader(big); plain = lambda: 1"
    )
    delta = group.deltas[-1]
    assert set(delta.pending) == {"big", "read"}
    assert {name for each in delta.components for name in each.names} >= {"small", "plain"}
    assert group.cell("big[0] = 11; print(read(), plain(), small)", on=1) == "1000010.0 1 [1]\n"
    assert group.cell("print(read())") == "1000010.0\n"


def test_a_late_part_is_as_it_was_when_collected(replicas):
    executor, standby = replicas(2, early_bytes=0).handles
    executor.run("import numpy as np; a = np.zeros(500_000)")
    early, _, _ = executor.collect_and_change("a[:] = 7")
    standby.apply(early)
    assert standby.evaluate("'a' in dir()") is False
    standby.apply(executor.ship_kept())
    assert standby.evaluate("float(a.max())") == 0.0


def test_large_pickles_go_to_the_store_too(replicas):
    group = replicas(2, inline_bytes=1_000)
    group.cell("rows = [{'n': i} for i in range(5_000)]; word = 'w' * 5_000")
    for component in group.deltas[-1].components:
        assert len(component.skeleton) <= 1_000
    assert group.cell("print(rows[-1], len(word))", on=1) == "{'n': 4999} 5000\n"


def test_what_cannot_travel_is_held_and_named(replicas):
    group = replicas(2)
    group.cell(
        "import socket, threading\ng = (i for i in range(3)); next(g)\nbox = [1, g, 'kept']\n"
        "s = socket.socket(); l = threading.Lock(); l.acquire(); f = open('/dev/null', 'w')\n"
        "fine = [1]"
    )
    held = {name: kind for name, kind, _ in group.handles[0].held()}
    assert held == {
        "box": "generator",
        "f": "_io.TextIOWrapper",
        "g": "generator",
        "l": "_thread.lock",
        "s": "socket.socket",
    }
    assert group.handles[1].held() == group.handles[0].held()
    assert len(group.notes) == 5
    assert "NotebookOS: g (generator) cannot travel to another replica" in group.notes[2]
    # Said once, held on; let go when the objects are gone.
    group.cell("next(g)")
    assert len(group.notes) == 5
    assert group.cell("print(next(g), box[1] is g)") == "2 True\n"
    other = group.handles[1]
    assert other.evaluate("(box[0], box[2], fine)") == (1, "kept", [1])
    assert "HeldElsewhere" in other.run("next(g)")[1]
    assert "run the cell that makes it again" in other.run("g.send(None)")[1]
    assert "HeldElsewhere" in other.run("for x in box[1]: pass")[1]
    group.cell("s.close(); l.release(); f.close(); del g, box, s")
    assert group.handles[0].held() == []


def test_a_tombstone_travels_on_without_holding(replicas):
    group = replicas(3)
    group.cell("g = (i for i in range(3)); box = [g, 1]")
    # The executor is lost; the second replica takes over.
    group.handles[0], lost = group.handles[2], group.handles[0]
    lost.close()
    group.cell("box.append(2)", on=1)
    assert group.handles[1].held() == []
    assert group.handles[0].evaluate("box[1:]") == [1, 2]
    assert "did not survive" in group.handles[0].run("next(box[0])")[1]
    group.cell("g = (i for i in range(9)); box[0] = g", on=1)
    assert [name for name, _, _ in group.handles[1].held()] == ["box", "g"]


def test_what_cannot_be_loaded_is_a_tombstone_and_the_rest_is_there(replicas):
    group = replicas(2)
    group.cell(
        "class Picky:\n    def __init__(self, v): self.v = v\n"
        "    def __reduce__(self): return (Picky.make, (self.v,))\n"
        "    @staticmethod\n    def make(v): raise ValueError('not today')\n"
        "p = Picky(1); ok = [1]"
    )
    assert group.handles[1].evaluate("ok") == [1]
    assert group.problems == ["p could not be loaded on this replica: not today"]
    assert "HeldElsewhere" in group.handles[1].run("p.v")[1]


def test_a_pickle_that_fails_holds_its_name_only(replicas):
    group = replicas(2)
    group.cell(
        "class Bad:\n    def __reduce_ex__(self, p): raise RuntimeError('never')\n"
        "bad = Bad(); good = [1]; both = [good, bad]"
    )
    assert ("bad", "Bad", "never") in group.handles[0].held()
    assert group.cell("both[0].append(2); print(good)") == "[1, 2]\n"
    assert group.handles[1].evaluate("(good, both[0] is good)") == ([1, 2], True)


def test_a_missing_chunk_leaves_the_namespace_as_it_was(replicas, tmp_path):
    group = replicas(2, inline_bytes=0)
    group.cell("a = [1]; word = 'before'")
    executor, standby = group.handles
    executor.run("a.append(2); word = 'after'")
    delta, _, _ = executor.collect()
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path in kept:
        path.unlink()
    with pytest.raises(AssertionError, match="No such file"):
        standby.apply(delta)
    assert standby.evaluate("(a, word)") == ([1], "before")
    for path, data in kept.items():
        path.write_bytes(data[:-1] + b"!")
    with pytest.raises(AssertionError, match="came back from the checkpoint store"):
        standby.apply(delta)
    assert standby.evaluate("(a, word)") == ([1], "before")
    for path, data in kept.items():
        path.write_bytes(data)
    standby.apply(delta)
    assert standby.evaluate("(a, word)") == ([1, 2], "after")


def test_what_was_forgotten_is_sent_again(replicas):
    executor, standby = replicas(2).handles
    executor.run("a = [1]; n = 1; gone = 2; rest = ['r'] * 5_000\nclass C: v = 1\nc = C()")
    executor.collect()
    executor.run("a.append(2); n = 2; C.v = 2; del gone")
    executor.collect()
    executor.forget(["a", "n", "gone"])
    delta, _, _ = executor.collect()
    executor.forget_all()
    everything, _, _ = executor.collect()
    assert len(everything) > len(delta) + 5_000
    standby.apply(everything)
    assert standby.evaluate("(a, n, C.v, c.v, In[1][:7])") == ([1, 2], 2, 2, 2, "a = [1]")
    assert executor.collect() is None


def test_what_refers_to_a_lost_definition_is_sent_again(replicas):
    executor, standby = replicas(2).handles
    executor.run(
        "import numpy as np\ndef make(d):\n    return lambda: d.sum()\nf = make(np.ones(3))"
    )
    assert executor.collect() is not None  # and lost on its way
    executor.run("box = [f]; other = [1]")
    delta, _, _ = executor.collect()
    standby.apply(delta)
    assert "HeldElsewhere" in standby.run("box[0]()")[1]
    executor.forget(["f", "make"])
    again, _, _ = executor.collect()
    standby.apply(again)
    assert standby.evaluate("(box[0](), box[0] is f, other)") == (3, True, [1])


def test_a_failed_put_counts_as_not_sent(replicas):
    executor, standby = replicas(2, inline_bytes=0).handles
    executor.run("a = ['x' * 1000]")
    executor.break_store()
    with pytest.raises(AssertionError, match="the store is away"):
        executor.collect()
    executor.mend_store()
    delta, _, _ = executor.collect()
    standby.apply(delta)
    assert standby.evaluate("(a, In[1])") == (["x" * 1000], "a = ['x' * 1000]")


def test_large_results_without_a_name_stay_here(replicas):
    group = replicas(2)
    group.cell("import numpy as np; keep = np.ones(1_200_000); keep")
    group.cell("np.ones(1_200_000)")
    other = group.handles[1]
    assert other.evaluate("(Out[1] is keep, float(_1.sum()))") == (True, 1_200_000.0)
    assert "9 MiB in Out" in other.run("Out[2].sum()")[1]
    assert group.handles[0].held() == []


def test_several_replicas_take_turns(replicas):
    group = replicas(3)
    group.cell("d = {}; alias = d\ndef put(k):\n    d[k] = len(d)\n    return d")
    for number in range(9):
        group.cell(f"assert put({number}) is alias", on=number % 3)
    assert {str(each.evaluate("alias")) for each in group.handles} == {
        str({number: number for number in range(9)})
    }


def test_two_definitions_with_one_name_stay_apart(replicas):
    group = replicas(2)
    group.cell("def f(): return 1\ng = f")
    group.cell("def f(): return 2", on=1)
    assert group.cell("print(f(), g(), f is g)") == "2 1 False\n"


def test_the_process_keeps_no_user_object_alive(replicas):
    (handle,) = replicas(1).handles
    handle.run(
        "import weakref\nclass Big: pass\nb = Big(); b.self = [b]; box = [b]\nends = []\n"
        "r = weakref.ref(b); weakref.finalize(box[0].self[0], ends.append, 1)"
    )
    handle.collect()
    handle.run("import gc; del b, box; gc.collect(); alive = r() is not None")
    assert handle.evaluate("(alive, ends)") == (False, [1])


def test_warnings_of_libraries_are_neither_shown_nor_swallowed(replicas):
    group = replicas(2)
    group.cell(
        "import warnings\nclass W:\n    def __reduce__(self):\n"
        "        warnings.warn('pickled'); return (W, ())\nwarnings.simplefilter('error'); w = W()"
    )
    assert group.handles[0].held() == []
    assert "UserWarning: mine" in group.cell("warnings.warn('mine')", on=1)


def test_bytes_of_a_stream_keep_the_storage_they_are_of():
    import gc
    import weakref

    import torch

    from notebookos_ext.kernel.tensors import StorageRoot, reduce_root

    class Pickler:
        def buffer(self, view):
            return view

    storage = torch.zeros(1_000).untyped_storage()
    alive = weakref.ref(storage)
    root = StorageRoot(storage)
    del storage
    _, (view,) = reduce_root(Pickler(), root)
    del root
    gc.collect()
    assert alive() is not None
    assert bytes(view[:4]) == bytes(4)
    del view
    gc.collect()
    assert alive() is None
