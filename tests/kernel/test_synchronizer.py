from __future__ import annotations


def test_values_and_history(replicas):
    group = replicas(2)
    assert group.cell("x = [1, 2]\ny = x\n'hello'") == "Out[1]: 'hello'\n"
    assert group.cell("y.append(3); print(x, _, In[-1], Out)", on=1) == (
        "[1, 2, 3] hello y.append(3); print(x, _, In[-1], Out) {1: 'hello'}\n"
    )
    assert (
        group.cell("print(x, x is y, _i)")
        == "[1, 2, 3] True y.append(3); print(x, _, In[-1], Out)\n"
    )
    assert group.problems == []
