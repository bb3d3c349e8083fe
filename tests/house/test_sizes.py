"""File and function lengths, duplicates and the share of native code."""

from __future__ import annotations

import statistics

import pytest

from . import cpp
from .duplicates import find_pairs, rate
from .tree import Source, functions, native_sources, python_sources, report

FILE_LINES = 400
MEDIAN_FILE_LINES = 150
FUNCTION_LINES = 60
P90_FUNCTION_LINES = 35
PAIRS_PER_1000_LINES = 1.5
LANGUAGES = ("python", "native")


def _sources(language: str) -> tuple[Source, ...]:
    return python_sources() if language == "python" else native_sources()


def _functions(language: str) -> list[tuple[str, int]]:
    """Every function as (place, lines)."""
    if language == "native":
        outlines = [(source, cpp.outline(source.text)) for source in native_sources()]
        return [(f"{s.name}:{f.line} {f.name}", f.lines) for s, found in outlines for f in found.functions]
    nodes = [(source, node) for source in python_sources() for node in functions(source)]
    return [(f"{s.name}:{n.lineno} {n.name}", (n.end_lineno or n.lineno) - n.lineno + 1) for s, n in nodes]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_file_is_longer_than_400_lines(language: str) -> None:
    long = [f"{s.name}: {len(s.lines)} lines" for s in _sources(language) if len(s.lines) > FILE_LINES]
    assert not long, report(f"Files over {FILE_LINES} lines", long, "Split each by what its parts are for.")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_median_file_has_at_most_150_lines(language: str) -> None:
    lengths = sorted(((len(s.lines), s.name) for s in _sources(language)), reverse=True)
    median = statistics.median(length for length, _ in lengths)
    longest = [f"{name}: {length}" for length, name in lengths[:10]]
    assert median <= MEDIAN_FILE_LINES, report(
        f"The median file has {median} lines", longest, "Split the longest."
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_function_is_longer_than_60_lines(language: str) -> None:
    long = [f"{place}: {lines} lines" for place, lines in _functions(language) if lines > FUNCTION_LINES]
    assert not long, report(f"Functions over {FUNCTION_LINES} lines", long, "Name the steps and call them.")


@pytest.mark.parametrize("language", LANGUAGES)
def test_nine_of_ten_functions_have_at_most_35_lines(language: str) -> None:
    lengths = sorted(((lines, place) for place, lines in _functions(language)), reverse=True)
    p90 = statistics.quantiles([lines for lines, _ in lengths], n=10)[-1]
    longest = [f"{place}: {lines}" for lines, place in lengths[:20]]
    assert p90 <= P90_FUNCTION_LINES, report(f"p90 is {p90:.0f} lines", longest, "Shorten the longest.")


def test_code_is_written_once() -> None:
    sources = [*python_sources(), *native_sources()]
    pairs = find_pairs(sources)
    found = rate(len(pairs), sources)
    assert found <= PAIRS_PER_1000_LINES, report(
        f"{found:.2f} duplicate pairs per 1,000 lines, allowed are {PAIRS_PER_1000_LINES}",
        [str(pair) for pair in sorted(pairs, key=lambda pair: -pair.length)],
        "Give what is equal one home (a function, a fixture, a parametrized test) and call it.",
    )


def test_native_code_stays_under_a_third_of_the_python_code() -> None:
    native = sum(len(source.lines) for source in native_sources())
    python = sum(len(source.lines) for source in python_sources("src", "tests"))
    assert native * 3 <= python, (
        f"{native} native lines for {python} Python lines (src and tests on both sides): more than a third.\n"
        "Move decisions to Python: native code only moves, sums and schedules bytes."
    )
