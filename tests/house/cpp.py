"""A small reader for C++ files: tokens, function bodies and variables at namespace scope.

It knows just enough of the language for the house tests: comments, strings, preprocessor lines and braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n\\]|\\.)*|\\\n)
    |(?P<string>(?:u8|[uUL])?R"(?P<d>[^()\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[\w.']|(?<=[eEpP])[+-])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<operator>->\*?|::|<<=?|>=|<=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|\.\.\.|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_NOT_A_VARIABLE = {
    "using",
    "typedef",
    "template",
    "friend",
    "static_assert",
    "extern",
    "concept",
    "namespace",
}
_CONSTANT = {"const", "constexpr", "consteval"}


@dataclass(frozen=True)
class Token:
    """One token: ``kind`` is ``string``, ``number``, ``name`` or ``operator``; ``line`` counts from 1."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True)
class Function:
    """One function body with its signature."""

    name: str
    line: int
    lines: int


@dataclass
class Outline:
    """What one file holds: functions, mutable variables that outlive a call, lines that only declare."""

    functions: list[Function] = field(default_factory=list)
    globals: list[tuple[int, str]] = field(default_factory=list)
    declaring: set[int] = field(default_factory=set)


def tokens(text: str) -> Iterator[Token]:
    """All tokens of a file; comments and preprocessor lines are passed over."""
    line, counted = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        kind = match.lastgroup if match.lastgroup != "d" else "string"
        if kind is not None and kind != "skip":
            yield Token(kind, match.group(), line)


def outline(text: str) -> Outline:
    """Walk the braces of a file and note functions and non-constant variables with static lifetime."""
    found = Outline()
    scopes: list[tuple[str, list[Token]]] = []
    head: list[Token] = []
    for token in tokens(text):
        inside = scopes[-1][0] if scopes else "namespace"
        if token.text == "{":
            scopes.append((_scope(head, inside), head))
            head = []
        elif token.text == "}":
            kind, opener = scopes.pop()
            if kind == "class":
                found.declaring.update(part.line for part in head)  # enumerators
            if kind == "function":
                found.functions.append(_function(opener, token.line))
            # A braced initializer belongs to the statement that it interrupts; any other block ends one.
            head = [*opener, token] if kind == "initializer" else []
        elif token.text == ";":
            if _is_mutable_static(head, inside):
                found.globals.append((head[0].line, " ".join(part.text for part in head)))
            if inside in {"namespace", "class"} and "(" not in [part.text for part in head]:
                found.declaring.update(part.line for part in [*head, token])
            head = []
        elif token.text == ":" and len(head) == 1 and head[0].text in {"public", "private", "protected"}:
            head = []
        else:
            head.append(token)
    return found


def _scope(head: list[Token], inside: str) -> str:
    """What a brace opens, from the tokens before it and the scope around it."""
    words = [token.text for token in head]
    if inside not in {"namespace", "class"}:
        return "block"
    if "namespace" in words or words[:1] == ["extern"]:
        return "namespace"
    if {"class", "struct", "union", "enum"} & set(words) and ")" not in words:
        return "class"
    outside = _outside_brackets(words)
    member = ":" in outside and head[-1].kind == "name"  # ``Constructor() : member_{1} {``
    return "initializer" if member or ")" not in words or "=" in outside else "function"


def _outside_brackets(words: list[str]) -> list[str]:
    """The words that are in no round bracket; ``operator=`` and its kind are no assignment."""
    depth, kept = 0, list[str]()
    for before, word in zip(["", *words], words, strict=False):
        depth += (word == "(") - (word == ")")
        if depth == 0 and before != "operator":
            kept.append(word)
    return kept


def _function(head: list[Token], last_line: int) -> Function:
    opening = next((i for i, token in enumerate(head) if token.text == "("), 0)
    name = head[max(0, opening - 1)]
    return Function(name.text, head[0].line, last_line - head[0].line + 1)


def _is_mutable_static(head: list[Token], inside: str) -> bool:
    """Whether a statement declares a variable that lives as long as the process and can change."""
    words = [token.text for token in head]
    if not words or _CONSTANT & set(words) or words[0] in _NOT_A_VARIABLE:
        return False
    if "static" in words or "thread_local" in words:
        return "(" not in _outside_templates(words) or "=" in words
    if inside != "namespace" or {"class", "struct", "union", "enum"} & set(words[:2]):
        return False
    return len(words) > 1 and "(" not in words[: words.index("=") if "=" in words else len(words)]


def _outside_templates(words: list[str]) -> list[str]:
    depth, kept = 0, list[str]()
    for word in words:
        depth += (word == "<") - (word == ">")
        if depth <= 0:
            kept.append(word)
    return kept
