"""Rejects words that keep readers from searching for what they know: ``python -m tests.words``, part of ``make lint``.

``banned_words.toml`` has the rules.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = Path(__file__).with_name("banned_words.toml")
FOLDERS = ("floodplain", "examples", "tests", "tools", "docs")
READ_WHOLE = ("floodplain/", "examples/", "tools/", "docs/")
"""Of other Python files, such as tests, only docstrings are read."""
KINDS = {"class": {"names", "classes"}, "name": {"names"}, "prose": {"prose"}}
"""Kind of a ``Word`` → values of ``where`` by which rules apply to it."""
MARKS = re.compile(r"\s*([#>]+(\s+|$))*")
"""What a line of a comment, a heading or a quotation begins with."""


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: str
    where: tuple[str, ...]
    write: str
    example: str
    exceptions: tuple[str, ...] = ()

    def matches(self, path: str, word: "Word") -> list[re.Match[str]]:
        """Each occurrence of the banned words that no exception covers."""
        return [match for match in self._occurrences(word) if not self._excepted(match, path, word.text)]

    def _occurrences(self, word: "Word") -> Iterator[re.Match[str]]:
        if not KINDS[word.kind] & set(self.where):
            return iter(())
        if word.kind == "prose":
            return re.finditer(self.pattern, word.text, re.IGNORECASE)
        return iter([match] if (match := re.fullmatch(self.pattern, word.text.lstrip("_"))) else [])

    def _excepted(self, match: re.Match[str], path: str, text: str) -> bool:
        """An exception covers the words that it overlaps, not the rest of a paragraph."""
        start, end = (len(path) + len(": ") + offset for offset in match.span())
        covered = (each.span() for exception in self.exceptions for each in re.finditer(exception, f"{path}: {text}"))
        return any(first < end and start < last for first, last in covered)


@dataclass(frozen=True)
class Word:
    """A name that code defines (``class`` or ``name``), or a paragraph of ``prose``, its lines joined by spaces."""

    kind: str
    line: int
    text: str
    line_starts: tuple[int, ...] = (0,)
    """Where in ``text`` each line begins."""

    def line_at(self, offset: int) -> int:
        return self.line + bisect_right(self.line_starts, offset) - 1


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    text: str
    rule: Rule

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.text}": write {self.rule.write} [{self.rule.name}]'


def rules() -> list[Rule]:
    entries = tomllib.loads(RULES.read_text())["rules"].items()
    return [
        Rule(name, each["pattern"], tuple(each["where"]), each["write"], each["example"], tuple(each.get("except", ())))
        for name, each in entries
    ]


def files() -> list[str]:
    """Python of all folders, Markdown of the documentation and the front page. The changelog keeps the words of its day."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    paths += [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def findings(path: str, text: str, banned: Iterable[Rule]) -> list[Finding]:
    words = list(python_words(path, text) if path.endswith(".py") else markdown_words(text))
    return [
        Finding(path, word.line_at(match.start()), match.group(), rule)
        for rule in banned
        for word in words
        for match in rule.matches(path, word)
    ]


def markdown_words(text: str) -> Iterator[Word]:
    """All paragraphs but code blocks."""
    in_code, lines = False, []
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        lines.append("" if in_code or fence else line)
    return _paragraphs(enumerate(lines, 1))


def python_words(path: str, text: str) -> Iterator[Word]:
    tree = ast.parse(text)
    if not path.startswith(READ_WHOLE):
        yield from _docstrings(tree)
        return
    yield Word("name", 1, Path(path).stem)
    for node in ast.walk(tree):
        yield from _defined(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _string(node.lineno, node.value)
    yield from _comments(text)


def _docstrings(tree: ast.Module) -> Iterator[Word]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _string(node.lineno, node.value.value)


def _string(first: int, text: str) -> Iterator[Word]:
    return _paragraphs(enumerate(text.splitlines(), first))


def _comments(text: str) -> Iterator[Word]:
    """Comments on lines of their own that follow each other are one text; a comment after code stands alone."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.line.lstrip().startswith("#"):
            block.append((token.start[0], token.string))
        else:
            yield from _paragraphs([(token.start[0], token.string)])
    yield from _paragraphs(block)


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[Word]:
    """Lines that follow each other, up to one without words."""
    paragraph: list[tuple[int, str]] = []
    for number, line in lines:
        words = MARKS.sub("", line, count=1).rstrip()
        if paragraph and (not words or number != paragraph[-1][0] + 1):
            yield _joined(paragraph)
            paragraph = []
        if words:
            paragraph.append((number, words))
    if paragraph:
        yield _joined(paragraph)


def _joined(lines: list[tuple[int, str]]) -> Word:
    texts = [text for _, text in lines]
    starts = accumulate((len(text) + 1 for text in texts[:-1]), initial=0)
    return Word("prose", lines[0][0], " ".join(texts), tuple(starts))


def _defined(node: ast.AST) -> Iterator[Word]:
    match node:
        case ast.ClassDef(name=name):
            yield Word("class", node.lineno, name)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield Word("name", node.lineno, name)
        case ast.arg(arg=name):
            yield Word("name", node.lineno, name)
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield Word("name", node.lineno, name)


def main() -> int:
    banned = rules()
    broken = [finding for path in files() for finding in findings(path, (ROOT / path).read_text(), banned)]
    for finding in broken:
        print(finding)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
