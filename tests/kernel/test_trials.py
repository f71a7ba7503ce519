"""What pickles but does not load again is held and named, not lost on the other replicas."""

from __future__ import annotations

import pytest

UNLOADABLE = {
    "a __new__ that wants more": (
        (
            "class Metres(int):\n"
            "    def __new__(cls, value, unit):\n"
            "        made = super().__new__(cls, value); made.unit = unit; return made\n"
            "value = Metres(3, 'm')"
        ),
        "__new__",
    ),
    "an exception that wants more than its args": (
        "import urllib.error\nvalue = urllib.error.HTTPError('u', 404, 'm', {}, None)",
        "HTTPError.__init__",
    ),
    "a __setstate__ that raises": (
        (
            "class Once:\n"
            "    def __init__(self): self.v = 1\n"
            "    def __getstate__(self): return {'v': self.v}\n"
            "    def __setstate__(self, state): raise ValueError('not again')\n"
            "value = Once()"
        ),
        "ValueError: not again",
    ),
}

LOADABLE = {
    "a __new__ with its arguments": (
        (
            "class Metres(int):\n"
            "    def __new__(cls, value, unit):\n"
            "        made = super().__new__(cls, value); made.unit = unit; return made\n"
            "    def __getnewargs__(self): return int(self), self.unit\n"
            "value = Metres(3, 'm')"
        ),
        "value.unit",
        "'m'",
    ),
    "an exception of the notebook's": (
        (
            "class Odd(Exception):\n"
            "    def __init__(self, message='odd'): super().__init__(message)\n"
            "value = Odd()"
        ),
        "str(value)",
        "'odd'",
    ),
    "a __setstate__ that changes what it is given": (
        (
            "class Cached:\n"
            "    def __init__(self): self.cache = {'a': 1}; self.v = 2\n"
            "    def __setstate__(self, state): state.pop('cache'); self.__dict__ = state\n"
            "value = Cached()"
        ),
        "value.v",
        "2",
    ),
    "one of a kind": (
        (
            "class Only:\n"
            "    _made = None\n"
            "    calls = 0\n"
            "    def __new__(cls):\n"
            "        cls.calls += 1\n"
            "        cls._made = cls._made or super().__new__(cls)\n"
            "        return cls._made\n"
            "value = Only()"
        ),
        "(value is Only(), Only.calls >= 1)",
        "(True, True)",
    ),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_what_cannot_be_loaded_again_is_held(replicas, name: str):
    code, said = UNLOADABLE[name]
    group = replicas(2)
    group.cell(code)
    ((held, _, reason),) = group.handles[0].held()
    assert held == "value"
    assert said in reason
    assert group.problems == []
    # It goes when the name goes.
    group.cell("del value")
    assert group.handles[0].held() == []


@pytest.mark.parametrize("name", LOADABLE)
def test_what_can_be_loaded_travels(replicas, name: str):
    code, look, expected = LOADABLE[name]
    group = replicas(2)
    group.cell(code)
    assert group.handles[0].held() == []
    assert group.problems == []
    assert group.cell(f"print(repr({look}))", on=1).strip() == expected


def test_looking_changes_nothing_of_the_users(replicas):
    group = replicas(2)
    group.cell(LOADABLE["a __setstate__ that changes what it is given"][0])
    assert group.cell("print(value.cache)") == "{'a': 1}\n"
    group.cell(LOADABLE["one of a kind"][0].replace("value = Only()", "only = Only()"))
    assert group.cell("print(Only.calls)") == "1\n"
