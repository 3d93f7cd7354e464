"""Rejects words that keep readers from searching for what they know: ``python -m tests.words``, part of ``make lint``.

``banned_words.toml`` has the rules, ``words_todo.toml`` the files that break some of them still. ``--prune`` drops from that list
what has been cleaned.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = Path(__file__).with_name("banned_words.toml")
TODO = Path(__file__).with_name("words_todo.toml")
TODO_HEADER = (
    "# File → rules of banned_words.toml that it does not keep yet. It only shrinks: python -m tests.words --prune\n\n[todo]\n"
)
FOLDERS = ("floodplain", "examples", "tests", "docs")
READ_WHOLE = ("floodplain/", "examples/", "docs/")
"""Of other Python files, such as tests, only docstrings are read."""


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: str
    where: tuple[str, ...]
    write: str
    example: str
    exceptions: tuple[str, ...] = ()

    def finds(self, path: str, word: "Word") -> str | None:
        """The banned words in it, if there are any."""
        if word.kind == "prose":
            match = re.search(self.pattern, word.text, re.IGNORECASE) if "prose" in self.where else None
        else:
            kinds = {"class": {"names", "classes"}, "name": {"names"}}[word.kind]
            match = re.fullmatch(self.pattern, word.text.lstrip("_")) if kinds & set(self.where) else None
        excepted = any(re.search(exception, f"{path}: {word.text}") for exception in self.exceptions)
        return match.group() if match and not excepted else None


@dataclass(frozen=True)
class Word:
    """A name that code defines (``class`` or ``name``), or a line of ``prose``."""

    kind: str
    line: int
    text: str


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


def todo() -> dict[str, list[str]]:
    return tomllib.loads(TODO.read_text())["todo"]


def files() -> list[str]:
    """Python of all folders, Markdown of the documentation and the front page. The changelog keeps the words of its day."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    paths += [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def findings(path: str, text: str, banned: Iterable[Rule]) -> list[Finding]:
    words = list(python_words(path, text) if path.endswith(".py") else markdown_words(text))
    return [Finding(path, word.line, hit, rule) for rule in banned for word in words if (hit := rule.finds(path, word))]


def markdown_words(text: str) -> Iterator[Word]:
    """All lines but those of code blocks."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield Word("prose", number, line)


def python_words(path: str, text: str) -> Iterator[Word]:
    tree = ast.parse(text)
    if not path.startswith(READ_WHOLE):
        yield from _docstrings(tree)
        return
    yield Word("name", 1, Path(path).stem)
    for node in ast.walk(tree):
        yield from _defined(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _lines(node.lineno, node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Word("prose", token.start[0], token.string)


def _docstrings(tree: ast.Module) -> Iterator[Word]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _lines(node.lineno, node.value.value)


def _lines(first: int, text: str) -> Iterator[Word]:
    return (Word("prose", number, line) for number, line in enumerate(text.splitlines(), first))


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


def prune() -> None:
    """Drops from the to-do list what has been done. It never grows: what is new is a finding."""
    left = {path: sorted(set(names) & _broken(path)) for path, names in todo().items()}
    TODO.write_text(TODO_HEADER + "".join(f'"{path}" = {names}\n'.replace("'", '"') for path, names in left.items() if names))


def _broken(path: str) -> set[str]:
    """Names of the rules that a file does not keep."""
    file = ROOT / path
    return {finding.rule.name for finding in findings(path, file.read_text(), rules())} if file.exists() else set()


def main(arguments: list[str]) -> int:
    if arguments == ["--prune"]:
        prune()
    banned, allowed = rules(), todo()
    new = [
        finding
        for path in files()
        for finding in findings(path, (ROOT / path).read_text(), banned)
        if finding.rule.name not in allowed.get(path, ())
    ]
    for finding in new:
        print(finding)
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
