"""What is replicated around the namespace, and what never is."""

from __future__ import annotations


def test_inherited_variables_never_travel(replicas):
    group = replicas(2)
    group.cell("import os; os.environ['MINE'] = 'x'; os.environ['NOTEBOOKOS' + '_REPLICA'] = 'me'")
    environment = group.deltas[-1].environment
    assert b"MINE" in environment
    assert b"NOTEBOOKOS_REPLICA" not in environment
    assert b"PYTHONHASHSEED" not in environment
    assert group.handles[1].evaluate("__import__('os').environ.get('NOTEBOOKOS_REPLICA')") is None


def test_a_quiet_cell_sends_little(replicas):
    group = replicas(2)
    group.cell("import numpy, torch, pandas, matplotlib.pyplot")
    group.cell("x = 1")
    group.cell("x = 2")
    assert group.bytes_sent < 1_000


def test_random_states_of_the_standby_are_the_executors(replicas):
    group = replicas(2)
    group.cell("import random, numpy as np, torch")
    draw = "print(random.random(), np.random.rand(), torch.rand(1).item(), np.random.randint(9))"
    assert group.cell(draw) != group.cell(draw)
    first = group.handles[0].run(draw)
    assert group.handles[1].run(draw) == first


def test_extensions_and_their_magics_are_loaded(replicas):
    group = replicas(2)
    group.cell("%load_ext autoreload\n%autoreload 2")
    loaded = group.handles[1].evaluate("get_ipython().extension_manager.loaded")
    assert loaded == {"IPython.extensions.autoreload"}
    assert group.cell("%autoreload 0", on=1) == ""


def test_futures_of_the_compiler(replicas):
    group = replicas(2)
    group.cell("from __future__ import annotations")
    assert group.cell("def f(a: nowhere): pass\nprint(f.__annotations__)", on=1) == (
        "{'a': 'nowhere'}\n"
    )


def test_submodules_that_an_import_made_usable(replicas):
    group = replicas(2)
    group.cell("import xml.etree.ElementTree\nimport wsgiref")
    group.cell("import wsgiref.headers")
    assert group.cell("print(wsgiref.headers.Headers([]).keys())", on=1) == "[]\n"
    assert group.problems == []


def test_the_graph_of_a_tensor_holds_it_until_it_was_used(replicas):
    group = replicas(2)
    group.cell("import torch\nw = torch.ones(2, requires_grad=True); loss = (w * w).sum()")
    assert [(name, kind) for name, kind, _ in group.handles[0].held()] == [("loss", "torch.Tensor")]
    assert group.handles[1].evaluate("loss.item()") == 2.0
    group.cell("loss.backward()")
    assert group.handles[0].held() == []
    assert group.cell("print(w.grad, loss.item())", on=1) == "tensor([2., 2.]) 2.0\n"


def test_gpu_names_reach_the_standbys(replicas):
    group = replicas(2)
    group.cell("import torch\nm = torch.nn.Linear(1, 1)\ndef train(): return m\nx = [1]")
    assert group.deltas[-1].gpu_names == ("m", "torch", "train")
    assert group.handles[1].gpu_names() == ("m", "torch", "train")
    group.cell("del m, train")
    assert group.handles[1].gpu_names() == ("torch",)


def test_what_a_cell_sets_in_classes_of_libraries(replicas):
    group = replicas(2)
    group.cell(
        "import json, pandas as pd\nfrom collections import UserDict\n"
        "pd.DataFrame.twice = lambda self: self * 2\n"
        "json.JSONEncoder.default = lambda self, value: 'shown'\n"
        "setattr(UserDict, 'kind', property(lambda self: 'mine'))"
    )
    assert group.cell("print(pd.DataFrame({'a': [1]}).twice().a[0])", on=1) == "2\n"
    assert group.cell("print(json.dumps([object()]), UserDict().kind)", on=1) == '["shown"] mine\n'
    group.cell("UserDict.kind = 'theirs'", on=1)
    assert group.cell("print(UserDict.kind)") == "theirs\n"
    assert group.problems == []


def test_hooks_that_the_shell_takes_back_hold_nothing(replicas):
    group = replicas(2)
    group.cell("import sys\nsys.excepthook = sys.displayhook = lambda *_: None")
    assert group.handles[0].held() == []
    assert group.notes == []


def test_the_mode_of_tracebacks(replicas):
    group = replicas(2)
    group.cell("%xmode Verbose")
    assert group.handles[1].evaluate("get_ipython().InteractiveTB.mode") == "Verbose"


def test_flags_of_cudnn(replicas):
    group = replicas(2)
    group.cell("import torch\ntorch.backends.cudnn.deterministic = True")
    group.cell("torch.backends.cudnn.benchmark = True")
    flags = "torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark"
    assert group.handles[1].evaluate(flags) == (True, True)


def test_a_figure_shows_as_an_image_where_no_figure_was_made(replicas):
    group = replicas(2)
    group.cell("import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(); plt.close()")
    formats = "set(get_ipython().display_formatter.format(figure)[0])"
    assert group.handles[0].evaluate(formats) == {"text/plain", "image/png"}
    assert group.handles[1].evaluate(formats) == {"text/plain", "image/png"}
