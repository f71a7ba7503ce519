from __future__ import annotations

import types

from notebookos_ext.kernel.gpu_reach import gpu_names


def namespace(code: str) -> dict[str, object]:
    torch = types.ModuleType("torch")
    exec("class Tensor: pass\nclass Module: pass\ndef rand(): return Tensor()", vars(torch))
    for name in ("Tensor", "Module", "rand"):
        getattr(torch, name).__module__ = "torch"
    names: dict[str, object] = {"__name__": "__main__", "torch": torch}
    exec(code, names)
    del names["__builtins__"]
    return names


def reached(code: str) -> tuple[str, ...]:
    names = namespace(code)
    return gpu_names(names, [name for name in names if name != "torch" and name[:2] != "__"])


def test_instances_and_their_containers():
    code = "t = torch.rand(); box = [1, t]; d = {'a': t}; n = 1; plain = [1]; rand = torch.rand"
    assert reached(code) == ("box", "d", "rand", "t")


def test_functions_that_mention_them_through_others():
    names = namespace(
        "def outer(): return inner()\ndef inner(): return [torch.rand() for _ in range(2)]\n"
        "def other(): return len([])\nwrapped = lambda: outer"
    )
    assert gpu_names(names, names) == ("inner", "outer", "torch", "wrapped")


def test_classes_and_their_instances():
    names = namespace(
        "class Net(torch.Module): pass\nclass Uses:\n    def go(self): return Net()\n"
        "    @property\n    def p(self): return 1\n"
        "u = Uses(); n = Net(); bound = u.go\nclass Plain:\n    def go(self): return 1\np = Plain()"
    )
    assert gpu_names(names, names) == ("Net", "Uses", "bound", "n", "torch", "u")


def test_dead_proxies_and_lying_objects_are_survived():
    names = namespace(
        "import weakref\nclass W: pass\ndead = weakref.proxy(W())\n"
        "class Liar:\n    @property\n    def __class__(self): raise RuntimeError('no')\nl = Liar()"
    )
    assert gpu_names(names, names) == ("torch",)
