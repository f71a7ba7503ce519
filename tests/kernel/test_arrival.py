"""What a standby fetches of a changed array, and whose memory it may patch."""

from __future__ import annotations

import pytest

MEBIBYTE = 2**20
ARRAY = "import numpy as np; a = np.arange(3_000_000.0)"


def alike(group, expression):
    """The value of an expression, which is the same on both replicas."""
    values = [handle.evaluate(expression) for handle in group.handles]
    assert values[0] == values[1]
    return values[0]


def test_only_new_chunks_are_fetched_and_the_array_is_patched(replicas):
    group = replicas(2)
    group.cell(ARRAY)
    executor, standby = group.handles
    assert standby.take_fetched_bytes() == 24_000_000
    before = standby.evaluate("id(a)")
    group.cell("a[5] = -1")
    group.cell("a[2_999_999] = -2; a[1_000_000] = -3")
    assert standby.take_fetched_bytes() <= 3 * 4 * MEBIBYTE
    assert standby.evaluate("id(a)") == before
    assert alike(group, "(a[5], a[1_000_000], a[2_999_999], float(a.sum()))")[:3] == (-1, -3, -2)
    # The other way round: what the executor made itself serves it as well.
    group.cell("a[7] = -4", on=1)
    assert executor.take_fetched_bytes() <= 4 * MEBIBYTE
    assert alike(group, "float(a.sum())")


def test_views_and_second_names_are_patched_with_their_array(replicas):
    group = replicas(2)
    group.cell(ARRAY + "; b = a; tail = a[1_000_000:]; even = a[::2]")
    standby = group.handles[1]
    before = standby.evaluate("id(a)")
    group.cell("tail[0] = -1")
    assert standby.evaluate("id(a)") == before
    shared = "(b is a, tail.base is a, even.base is a, float(even[500_000]), float(a[1_000_000]))"
    assert alike(group, shared) == (True, True, True, -1.0, -1.0)


@pytest.mark.parametrize(
    "keep",
    [
        "import builtins; builtins.kept = a",
        "import builtins; builtins.kept = a[:5]",
        "import builtins; builtins.kept = memoryview(a)",
        "import builtins; builtins.kept = [a]",
        "import builtins, weakref; builtins.kept = weakref.ref(a)",
    ],
)
def test_memory_that_others_refer_to_is_left_alone(replicas, keep):
    group = replicas(2)
    group.cell(ARRAY)
    standby = group.handles[1]
    standby.run(keep)
    before = standby.evaluate("id(a)")
    group.cell("a[0] = -1")
    assert standby.evaluate("id(a)") != before
    assert alike(group, "float(a[0])") == -1.0
    if "ref" not in keep:
        assert standby.evaluate("float(np.asarray(kept).ravel()[0])") == 0.0


def test_a_new_variable_takes_chunks_from_others(replicas):
    group = replicas(2)
    group.cell(ARRAY)
    standby = group.handles[1]
    standby.take_fetched_bytes()
    group.cell("b = a.copy(); b[0] = -1; c = np.concatenate([a[1_048_576:], a[:1_048_576]])")
    # Of 48 MB: one chunk of b, and what no longer begins where a chunk of a does.
    assert standby.take_fetched_bytes() <= 4 * 4 * MEBIBYTE
    group.cell("a[0] = 5; d = b.copy()")
    assert alike(group, "(float(a[0]), float(b[0]), float(d[0]), float(c.sum()))")[:3] == (
        5,
        -1,
        -1,
    )


def test_chunks_that_move_within_an_array_come_out_right(replicas):
    group = replicas(2)
    group.cell(ARRAY)
    group.cell("a[:] = np.concatenate([a[1_048_576:], a[:1_048_576]])")
    assert alike(group, "[float(x) for x in a[::100_000]]")
    assert alike(group, "float(a[0])") == 1_048_576.0


@pytest.mark.parametrize(
    "code",
    [
        "a = a.astype('i8')",
        "a = a.reshape(3, -1)",
        "a = np.asfortranarray(a.reshape(2, -1))",
        "a = a.view('c16').copy()",
        "import torch; a = torch.from_numpy(a.copy())",
        "a = {'in': a}",
        "a = a[:2_000_000].copy()",
        "a = bytearray(a.tobytes())",
        "a.flags.writeable = False",
        "a = a.view(type('Special', (np.ndarray,), {})).copy()",
    ],
)
def test_a_version_of_another_kind_or_shape_is_made_anew(replicas, code):
    group = replicas(2)
    group.cell(ARRAY)
    group.cell(code)
    assert group.problems == []
    show = "a['in']" if "in'" in code else "a"
    assert alike(group, f"(type(a).__name__, np.asarray({show}).tobytes()[:64])")
    assert alike(group, f"float(np.asarray({show}).ravel()[-1])") is not None
    if "writeable" in code:
        assert alike(group, "a.flags.writeable") is False
        group.cell("a.flags.writeable = True; a[1] = 8; a.flags.writeable = False")
        assert alike(group, "(a.flags.writeable, float(a[1]))") == (False, 8.0)


def test_torch_and_frames_take_what_is_here_too(replicas):
    group = replicas(2)
    group.cell(
        "import torch, pandas as pd, numpy as np\n"
        "t = torch.zeros(3_000_000); half = t[1_500_000:]\n"
        "f = pd.DataFrame({'x': np.ones(2_000_000)})"
    )
    standby = group.handles[1]
    standby.take_fetched_bytes()
    group.cell("t[0] = 4; f.loc[0, 'x'] = 7.0")
    assert standby.take_fetched_bytes() <= 2 * 4 * MEBIBYTE
    assert alike(group, "(float(t[0]), float(f.x[0]), half.data_ptr() - t.data_ptr())") == (
        4.0,
        7.0,
        6_000_000,
    )


def test_a_failing_store_leaves_the_array_as_it_was(replicas):
    group = replicas(2)
    group.cell(ARRAY)
    executor, standby = group.handles
    executor.run("a[0] = -1")
    delta, _, _ = executor.collect()
    standby.break_store()
    with pytest.raises(AssertionError, match="the store is away"):
        standby.apply(delta)
    assert standby.evaluate("float(a[0])") == 0.0
    standby.mend_store()
    assert standby.apply(delta) == ()
    assert standby.evaluate("float(a[0])") == -1.0
