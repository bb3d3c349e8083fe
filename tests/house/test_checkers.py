"""The checkers themselves: each finds a planted fault and passes over its harmless neighbour."""

from __future__ import annotations

import pytest

from . import cpp, test_rules
from .duplicates import find_pairs
from .tree import ROOT, Source

LINES = [f"value{i} = call{i}(first, {i}) + other" for i in range(3)] + ["for x in y:", "    z(x)"]
BODY = "".join(f"    {line}\n" for line in LINES)
CLASS = """namespace a {
class B : C {
 public:
  B() : x_{1} {
    go();
  }
  int x_;
};
}
int f(int a)
{
}
"""


def _source(text: str, name: str = "planted.py") -> Source:
    return Source(ROOT / name, text)


def test_a_copy_with_other_names_is_found() -> None:
    copied = BODY.replace("value", "result").replace("other", "more")
    first = _source(f"import os\n\ndef one(first, other):\n{BODY}    return 1\n")
    second = _source(f"\ndef two(first, more):\n    # a comment\n{copied}    return 'two'\n", "second.py")
    pairs = find_pairs([first, second])
    assert [(pair.first, pair.second, pair.length) for pair in pairs] == [("planted.py:3", "second.py:2", 6)]


def test_five_equal_lines_are_no_copy() -> None:
    text = "\n".join(LINES)
    assert not find_pairs([_source(text), _source(text, "second.py")])


def test_tables_and_fields_are_no_copies() -> None:
    rows = "".join(f"    ({i}, 'a'),\n" for i in range(20))
    fields = "".join(f"    field{i}: int = {i}\n" for i in range(20))
    assert not find_pairs([_source(f"TABLE = (\n{rows})\nclass A:\n{fields}")])
    assert not find_pairs([_source("struct A {\n" + "  int a = 0;\n" * 20 + "};\n", "planted.cc")])


def test_a_copy_in_native_code_is_found() -> None:
    body = "".join(f"  total += part[{i}] * {i};\n  if (total > limit) return;\n" for i in range(3))
    text = f"#include <a.h>\nvoid one() {{\n{body}}}\n\n// again\nvoid two() {{\n{body}}}\n"
    assert len(find_pairs([_source(text.replace("part", "whole", 1), "planted.cc")])) == 1


def test_native_functions_are_measured() -> None:
    found = [(function.name, function.lines) for function in cpp.outline(CLASS).functions]
    assert found == [("B", 3), ("f", 3)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("int counter = 0;", 1),
        ("namespace a { std::vector<int> list{}; }", 1),
        ("void f() { static int calls = 0; }", 1),
        ("thread_local int depth;", 1),
        ("namespace short_name = long_name; constexpr int kSize = 4; const char* const kName = f(1);", 0),
        ("void f() { static constexpr int kSize = 1; int local = 2; }", 0),
        ("int f(int x); struct A { int member = 0; static int make(int); }; using B = A;", 0),
        ("A& A::operator=(const A& other) { size_ = 0; return *this; }", 0),
    ],
)
def test_native_globals_are_found(text: str, count: int) -> None:
    assert len(cpp.outline(text).globals) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cache = {}", 1),
        ("CACHE = {}\ndef put(k): CACHE[k] = 1", 1),
        ("SEEN: set[int] = set()", 1),
        ("lock = threading.Lock()", 1),
        ("class A:\n    all = []", 1),
        ("@functools.cache\ndef f(): return 1", 1),
        ("def f():\n    global x\n    x = 1", 1),
        ("if True:\n    late = []", 1),
        ("TABLE = {1: 2}\nNAMES = ('a', 'b')\nlog = logging.getLogger('a')", 0),
        ("@dataclass\nclass A:\n    items: list[int] = field(default_factory=list)", 0),
        ("def f(): rows = []", 0),
    ],
)
def test_module_state_is_found(text: str, count: int) -> None:
    assert len(list(test_rules._hidden_state(_source(text)))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("sock.bind(('', 8080))", 1),
        ("listen(host, 8080)", 1),
        ("TCPStore('h', port=29500)", 1),
        ("url = 'tcp://127.0.0.1:29500'", 1),
        ("sock.bind(('', 0)); listen(host, 0); address = 'peer:1234'", 0),
    ],
)
def test_fixed_ports_are_found(text: str, count: int) -> None:
    assert len(list(test_rules._fixed_ports(_source(text)))) == count
