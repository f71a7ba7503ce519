"""lxml's elements, which refuse to be pickled: a tree travels as its text, an element as its place.

Used only when the user's kernel has loaded lxml. Names for parts of one tree go on being parts of
one tree. Trees whose elements are of classes of their own (HTML, objectify) are held.
"""

from __future__ import annotations

import sys
from typing import Any

from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction

_KINDS = frozenset({"_Element", "_Comment", "_ProcessingInstruction"})


def reduce_element(pickler: Reduction, element: Any) -> Reduced:
    """An element is its place below the topmost one, and that one is the text of its tree."""
    if type(element).__name__ not in _KINDS:
        return pickler.hold(element, "an element of a class that its document's parser chose")
    place: list[int] = []
    top = element
    while (parent := top.getparent()) is not None:
        place.append(parent.index(top))
        top = parent
    if place:
        return load_element, (top, tuple(reversed(place)))
    return load_top, (sys.modules["lxml.etree"].tostring(top.getroottree()), top.tail)


def reduce_tree(_: Reduction, tree: Any) -> Reduced:
    """A tree is found by its topmost element."""
    root = tree.getroot()
    return load_tree, (() if root is None else (root,))


def load_top(text: bytes, tail: str | None) -> Any:
    """The topmost element of a tree."""
    etree = __import__("lxml.etree").etree
    # As the text was written here, nothing in it is looked up elsewhere.
    top = etree.fromstring(text, etree.XMLParser(resolve_entities=False, huge_tree=True))
    top.tail = tail
    return top


def load_element(top: Any, place: tuple[int, ...]) -> Any:
    """The element at that place below the topmost one."""
    found = top
    for number in place:
        found = found[number]
    return found


def load_tree(*root: Any) -> Any:
    """The tree of that topmost element."""
    return root[0].getroottree() if root else __import__("lxml.etree").etree.ElementTree()


BY_NAME: dict[tuple[str, str], Reducer] = {
    ("lxml.etree", "_Element"): reduce_element,
    ("lxml.etree", "_ElementTree"): reduce_tree,
}
