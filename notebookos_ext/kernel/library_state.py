"""Process-wide state of numpy, torch, pandas and matplotlib that user code sets.

Every function first looks whether the library is loaded. A section that is None is left alone.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any


def _loaded(name: str) -> Any:
    """The library if user code has loaded it, completely."""
    module = sys.modules.get(name)
    specification = getattr(module, "__spec__", None)
    return None if getattr(specification, "_initializing", False) else module


def _numpy_random() -> Any:
    numpy = _loaded("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return None
    # A tuple with the key as bytes: arrays would be compared as memory of their own.
    kind, keys, position, has_gauss, gauss = numpy.random.get_state()
    return (kind, keys.tobytes(), position, has_gauss, gauss)


def _set_numpy_random(state: Any) -> None:
    numpy = importlib.import_module("numpy")
    kind, keys, *rest = state
    numpy.random.set_state((kind, numpy.frombuffer(keys, dtype="u4"), *rest))


def _numpy_print() -> Any:
    numpy = _loaded("numpy")
    return None if numpy is None else dict(numpy.get_printoptions())


def _set_numpy_print(options: dict[str, Any]) -> None:
    options.pop("override_repr", None)
    importlib.import_module("numpy").set_printoptions(**options)


def _numpy_errors() -> Any:
    numpy = _loaded("numpy")
    return None if numpy is None else dict(numpy.geterr())


def _set_numpy_errors(options: dict[str, str]) -> None:
    importlib.import_module("numpy").seterr(**options)


def _torch_random() -> Any:
    torch = _loaded("torch")
    if torch is None:
        return None
    state = torch.get_rng_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _set_torch_random(state: bytes) -> None:
    torch = importlib.import_module("torch")
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_TORCH_PRINT = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


_CUDNN = ("enabled", "benchmark", "deterministic")


def _torch_options() -> Any:
    torch = _loaded("torch")
    if torch is None:
        return None
    printing = torch._tensor_str.PRINT_OPTS  # noqa: SLF001
    cudnn = torch.backends.cudnn
    return {
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "print": {name: getattr(printing, name) for name in _TORCH_PRINT},
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
        "cudnn": {name: getattr(cudnn, name) for name in _CUDNN},
    }


def _set_torch_options(options: dict[str, Any]) -> None:
    torch = importlib.import_module("torch")
    now = _torch_options()
    for name, value in options.pop("print").items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)  # noqa: SLF001
    for name, value in options.pop("cudnn").items():
        setattr(torch.backends.cudnn, name, value)
    setters = {
        "dtype": lambda name: torch.set_default_dtype(getattr(torch, name)),
        "grad": torch.set_grad_enabled,
        "deterministic": torch.use_deterministic_algorithms,
        "precision": torch.set_float32_matmul_precision,
        "anomaly": torch.autograd.set_detect_anomaly,
        "threads": torch.set_num_threads,
    }
    for name, value in options.items():
        # Some of them load half of torch.
        if now[name] != value:
            setters[name](value)


def _pandas_options() -> Any:
    if _loaded("pandas") is None:
        return None
    config = sys.modules["pandas._config.config"]
    defaults = config._registered_options  # noqa: SLF001
    changed: dict[str, Any] = {}
    _walk(config._global_config, "", defaults, changed)  # noqa: SLF001
    return changed


def _walk(
    tree: dict[str, Any], prefix: str, defaults: dict[str, Any], changed: dict[str, Any]
) -> None:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in defaults:
            _walk(value, name + ".", defaults, changed)
        elif name in defaults and value != defaults[name].defval:
            changed[name] = value


def _set_pandas_options(options: dict[str, Any]) -> None:
    pandas = importlib.import_module("pandas")
    for name in _pandas_options():
        if name not in options:
            pandas.reset_option(name)
    for name, value in options.items():
        pandas.set_option(name, value)


_EXTENDED = ("Series", "DataFrame", "Index")
_GROUPED = ("DataFrameGroupBy", "SeriesGroupBy", "GroupBy")
_seen_sizes: list[int] = []
_seen_extensions: dict[tuple[str, str], Any] = {}


def _pandas_classes() -> dict[str, type]:
    pandas = sys.modules["pandas"]
    groups = sys.modules["pandas.core.groupby"]
    windows = sys.modules["pandas.core.window"]
    return {
        **{name: getattr(pandas, name) for name in _EXTENDED},
        **{name: getattr(groups, name) for name in _GROUPED if hasattr(groups, name)},
        **{name: getattr(windows, name) for name in ("Rolling", "Expanding")},
    }


def _pandas_extensions() -> Any:
    """What others put onto pandas' classes: accessors, and methods such as `progress_apply`."""
    if _loaded("pandas") is None:
        return None
    classes = _pandas_classes()
    sizes = [len(vars(kind)) for kind in classes.values()]
    if sizes != _seen_sizes:
        # Looked at only when something was added: the classes have thousands of attributes.
        _seen_sizes[:] = sizes
        _seen_extensions.clear()
        for owner, kind in classes.items():
            for name, value in vars(kind).items():
                made = getattr(value, "_accessor", value)
                module = getattr(made, "__module__", None) or "pandas"
                if callable(made) and module.partition(".")[0] not in {"pandas", "builtins"}:
                    _seen_extensions[owner, name] = value
    return dict(_seen_extensions)


def _set_pandas_extensions(extensions: dict[tuple[str, str], Any]) -> None:
    importlib.import_module("pandas")
    classes = _pandas_classes()
    for (owner, name), value in extensions.items():
        setattr(classes[owner], name, value)
        if hasattr(value, "_accessor"):
            classes[owner]._accessors.add(name)  # type: ignore[attr-defined]  # noqa: SLF001


def _sklearn_options() -> Any:
    sklearn = _loaded("sklearn")
    return None if sklearn is None else dict(sklearn.get_config())


def _set_sklearn_options(options: dict[str, Any]) -> None:
    importlib.import_module("sklearn").set_config(**options)


_NOT_STYLE = {"backend", "backend_fallback", "interactive"}


def _matplotlib_parameters() -> Any:
    matplotlib = _loaded("matplotlib")
    if matplotlib is None:
        return None
    # dict's own items(): asking RcParams for the backend would choose one.
    values = {
        # Copies: figures hold some of these lists.
        key: list(value) if isinstance(value, list) else value
        for key, value in dict.items(matplotlib.rcParams)
        if key not in _NOT_STYLE
    }
    backend = dict.get(matplotlib.rcParams, "backend")
    pyplot = _loaded("matplotlib.pyplot")
    return {
        "style": values,
        "backend": backend if isinstance(backend, str) else None,
        # Loading the backend is what makes figures show as images.
        "shows": pyplot is not None and pyplot._backend_mod is not None,  # noqa: SLF001
    }


def _set_matplotlib_parameters(state: dict[str, Any]) -> None:
    matplotlib = importlib.import_module("matplotlib")
    for key, value in state["style"].items():
        dict.__setitem__(matplotlib.rcParams, key, value)
    backend = state["backend"]
    if backend is None:
        return
    pyplot = importlib.import_module("matplotlib.pyplot") if state["shows"] else None
    other = dict.get(matplotlib.rcParams, "backend") != backend
    if pyplot is None and other:
        matplotlib.use(backend)
    elif pyplot is not None and (other or pyplot._backend_mod is None):  # noqa: SLF001
        pyplot.switch_backend(backend)


SECTIONS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "numpy.print": (_numpy_print, _set_numpy_print),
    "numpy.errors": (_numpy_errors, _set_numpy_errors),
    "torch.options": (_torch_options, _set_torch_options),
    "pandas.options": (_pandas_options, _set_pandas_options),
    "pandas.extensions": (_pandas_extensions, _set_pandas_extensions),
    "sklearn.options": (_sklearn_options, _set_sklearn_options),
    "matplotlib": (_matplotlib_parameters, _set_matplotlib_parameters),
}
"""Each section's name with what reads it and what sets it."""

RANDOM: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "numpy.random": (_numpy_random, _set_numpy_random),
    "torch.random": (_torch_random, _set_torch_random),
}
"""Set after everything else."""
