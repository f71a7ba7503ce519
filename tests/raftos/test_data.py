"""Operations on the replicated values, without a cluster."""

from __future__ import annotations

import pytest

from notebookos_ext.errors import ProtocolError
from notebookos_ext.raftos.data import Append, Data, Extend, Pop, Set, Update, encode
from notebookos_ext.raftos.serializers import JSONSerializer, MessagePackSerializer

pack = MessagePackSerializer.pack
EMPTY_DICT, EMPTY_LIST = pack({}), pack([])


def whole(value: object) -> object:
    return value


@pytest.fixture
def data() -> Data:
    return Data(MessagePackSerializer())


def test_operations_change_values_in_order(data: Data) -> None:
    data.apply(encode(Set("x", pack(1))))
    data.apply(encode(Update("d", EMPTY_DICT, pack({"a": 1, 2: b"\n"}))))
    data.apply(encode(Update("d", EMPTY_DICT, pack({"a": 3}))))
    data.apply(encode(Append("l", pack(["start"]), pack([1, 2]))))
    data.apply(encode(Extend("l", EMPTY_LIST, pack([3, 4]))))
    assert data.read("x", None, whole) == 1
    assert data.read("d", {}, whole) == {"a": 3, 2: b"\n"}
    assert data.read("l", [], whole) == ["start", [1, 2], 3, 4]
    assert data.read("d", {}, len) == 2
    assert data.read("nothing", "default", whole) == "default"


def test_pop_answers(data: Data) -> None:
    key = pack(("a", 1))
    data.apply(encode(Update("d", EMPTY_DICT, pack({("a", 1): "x"}))))
    assert data.apply(encode(Pop("d", EMPTY_DICT, key, None))) == "x"
    assert data.apply(encode(Pop("d", EMPTY_DICT, key, pack("instead")))) == "instead"
    with pytest.raises(KeyError):
        data.apply(encode(Pop("d", EMPTY_DICT, key, None)))


@pytest.mark.parametrize(
    "operation",
    [
        Append("x", EMPTY_LIST, pack(1)),
        Extend("x", EMPTY_LIST, pack([1])),
        Update("x", EMPTY_DICT, pack({"a": 1})),
        Pop("x", EMPTY_DICT, pack("a"), None),
    ],
)
def test_an_operation_that_does_not_fit_changes_nothing(data: Data, operation: object) -> None:
    data.apply(encode(Set("x", pack("text"))))
    with pytest.raises(AttributeError):
        data.apply(encode(operation))
    assert data.read("x", None, whole) == "text"


def test_a_failed_first_operation_makes_no_value(data: Data) -> None:
    with pytest.raises(KeyError):
        data.apply(encode(Pop("d", EMPTY_DICT, pack("a"), None)))
    assert data.read("d", "none yet", whole) == "none yet"


def test_values_do_not_leave(data: Data) -> None:
    data.apply(encode(Set("x", pack({"inner": []}))))
    data.read("x", None, whole)["inner"].append("mine")
    default: list[int] = []
    data.read("y", default, whole).append(1)
    assert (data.read("x", None, whole), default) == ({"inner": []}, [])


def test_everything_goes_into_a_snapshot_and_comes_out_of_it(data: Data) -> None:
    data.apply(encode(Set("x", pack({("a", 1): b"\n"}))))
    data.apply(encode(Append("l", EMPTY_LIST, pack(1))))
    packed = data.packed()
    data.apply(encode(Append("l", EMPTY_LIST, pack(2))))
    other = Data(MessagePackSerializer())
    other.apply(encode(Set("gone", pack(1))))
    other.load(packed)
    assert other.read("x", None, whole) == {("a", 1): b"\n"}
    assert other.read("l", [], whole) == [1]
    assert other.read("gone", None, whole) is None
    for garbage in (b"\xff", b"\x81\xa1x\xc4\x01\xc1"):
        with pytest.raises(ProtocolError, match="snapshot cannot be read"):
            other.load(garbage)
    assert other.read("l", [], whole) == [1]


def test_json_keeps_json(data: Data) -> None:
    json = Data(JSONSerializer())
    json.apply(encode(Set("x", JSONSerializer.pack({"a": [1, None]}))))
    assert json.read("x", None, whole) == {"a": [1, None]}
    with pytest.raises(TypeError):
        JSONSerializer.pack(b"bytes")


def test_what_is_no_operation_is_named(data: Data) -> None:
    with pytest.raises(ProtocolError, match="no operation"):
        data.apply(b"\x01")
