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


def test_the_latest_results_follow_from_replica_to_replica(replicas):
    group = replicas(2)
    for number in range(1, 5):
        group.cell(f"[{number}]", on=number % 2)
    assert group.cell("print(_, __, ___)", on=1) == "[4] [3] [2]\n"
    group.cell("_ = 'mine'", on=0)
    assert group.cell("[5]; print(_)", on=1) == "mine\n"
    assert group.problems == []


def test_directories_are_paths_on_every_replica(replicas):
    group = replicas(2)
    group.cell("%cd -q .")
    assert group.cell("print({type(each).__name__ for each in _dh})", on=1) == "{'PosixPath'}\n"
