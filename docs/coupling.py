"""Measures how far one row travels through the package: ``python docs/coupling.py [--tree PATH]``.

Two pipelines run on ``fp.PipelineKit``, without Spark: a process function and a tumbling window. A profiler records every call
between the start of an epoch with one row and the end of the publish of its result. The imports are read from the source.
The tree may be any commit that has ``fp.PipelineKit``: ``git worktree add /tmp/old COMMIT``. The last line printed is JSON.
"""

import argparse
import ast
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "floodplain"
ROOT = Path(__file__).resolve().parents[1]
MOST_COUPLED = 10
Call = tuple[str, str]
"""The module of the caller and that of the function called."""


class CallTrace:
    """Records calls within the package, in all threads, while it is recording. A resumed generator is a call.

    Install it before the first thread of the package starts: a profiler is given to a thread at its start.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._recording = False

    def __enter__(self) -> "CallTrace":
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def record(self, run: Callable[[], object]) -> None:
        self._recording = True
        try:
            run()
        finally:
            self._recording = False

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self._recording or event != "call":
            return
        callee = _module_of(frame)
        if callee is not None:
            self.calls.append((_caller_of(frame) or callee, callee))


def _module_of(frame: FrameType) -> str | None:
    """Read from the globals: methods that ``dataclass`` generates have no file."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.removeprefix(f"{PACKAGE}.") if name.startswith(f"{PACKAGE}.") else None


def _caller_of(frame: FrameType) -> str | None:
    """The nearest caller in the package: calls through Arrow, NumPy or the standard library are looked through."""
    caller = frame.f_back
    while caller is not None:
        module = _module_of(caller)
        if module is not None:
            return module
        caller = caller.f_back
    return None


def trace_process(fp: Any) -> list[Call]:
    """One row through a process function, to its sink."""

    class Count(fp.KeyedProcess):
        n = fp.Value("long", default=0)
        output = "user string, n long"

        def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[str, int]]:  # noqa: ARG002
            self.n.set(self.n.get() + len(rows))
            yield key.user, self.n.get()

    def build(stream: Any) -> Any:
        return stream.key_by("user").process(Count()).write("memory")

    with CallTrace() as trace:
        kit = fp.PipelineKit(build, rows="user string", slots=1)
        kit.epoch([{"user": "ada"}])
        trace.record(lambda: _expect(kit.epoch([{"user": "ada"}])["output"], [{"user": "ada", "n": 2}]))
    return trace.calls


def trace_window(fp: Any) -> list[Call]:
    """One row into a tumbling window; the next epoch, which has no rows, closes the window and publishes its result."""

    def build(stream: Any) -> Any:
        windows = stream.watermark("at", "1 second").key_by("user").window(fp.tumbling("10 seconds"))
        return windows.agg(n=fp.count()).write("memory")

    def run(second: int) -> list[int]:
        kit.epoch([{"user": "ada", "at": second * 1_000_000}], watermark_ms=second * 1_000)
        return [row["n"] for row in kit.epoch([], watermark_ms=(second + 10) * 1_000)["output"]]

    with CallTrace() as trace:
        kit = fp.PipelineKit(build, rows="user string, at timestamp", slots=1)
        run(10)
        trace.record(lambda: _expect(run(30), [1]))
    return trace.calls


def _expect(result: object, expected: object) -> None:
    if result != expected:
        raise AssertionError(f"the traced epochs gave {result!r} instead of {expected!r}")


def travel(calls: list[Call], files: Counter[str]) -> dict[str, int]:
    """How far the calls of a trace go. ``files``: how many modules each folder holds."""
    modules = set(chain.from_iterable(calls))
    folders = {folder(module) for module in modules}
    crossings = [(room(caller), room(callee)) for caller, callee in calls if room(caller) != room(callee)]
    return {
        "modules": len(modules),
        "files_in_the_folders_of_these": sum(files[name] for name in folders),
        "folders": len(folders),
        "rooms": len({room(module) for module in modules}),
        "calls": len(calls),
        "calls_between_rooms": len(crossings),
        "calls_between_folders": sum(folder(caller) != folder(callee) for caller, callee in calls),
        "pairs_of_rooms": len(set(crossings)),
    }


def room(module: str) -> str:
    """The top-level folder; the modules beside it are one room, the root."""
    return module.partition(".")[0] if "." in module else "."


def folder(module: str) -> str:
    return module.rpartition(".")[0] or "."


def sources(tree: Path) -> dict[str, str]:
    """The text of each module, by its dotted name below the package. ``__init__`` and ``__main__`` do not count."""
    package = tree / PACKAGE
    paths = (path for path in sorted(package.rglob("*.py")) if path.stem not in ("__init__", "__main__"))
    return {".".join(path.relative_to(package).with_suffix("").parts): path.read_text() for path in paths}


def imports(texts: dict[str, str]) -> set[Call]:
    """Which module imports which, both of the package."""
    pairs = ((module, imported) for module, text in texts.items() for imported in _imported(ast.parse(text)))
    return {(module, imported) for module, imported in pairs if imported in texts and imported != module}


def _imported(tree: ast.AST) -> Iterator[str]:
    """Names below the package; ``from a import b`` may mean the module ``a`` or the module ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}."))


def measure(tree: Path) -> dict[str, Any]:
    """All figures of a tree. Imports the package from it, so one process measures one tree."""
    texts = sources(tree)
    pairs = imports(texts)
    files = Counter(folder(module) for module in texts)
    degree = Counter(chain.from_iterable(pairs))
    fp = _package_of(tree)
    return {
        "row": {"process": travel(trace_process(fp), files), "window": travel(trace_window(fp), files)},
        "modules": len(texts),
        "rooms": len({room(module) for module in texts}),
        "folders": len(files),
        "most_files_in_a_folder": max(files.values()),
        "imports": len(pairs),
        "imports_between_rooms": sum(room(module) != room(imported) for module, imported in pairs),
        "files": dict(files.most_common()),
        "most_coupled": {
            module: {
                "imported_by": sum(imported == module for _, imported in pairs),
                "imports": sum(importer == module for importer, _ in pairs),
            }
            for module, _ in sorted(degree.items(), key=lambda item: (-item[1], item[0]))[:MOST_COUPLED]
        },
    }


def _package_of(tree: Path) -> Any:
    sys.path.insert(0, str(tree))
    package = import_module(PACKAGE)
    if Path(package.__file__ or "").resolve().parent != (tree / PACKAGE).resolve():
        raise RuntimeError(f"{PACKAGE} was imported from {package.__file__}, not from {tree}: run one process per tree")
    return package


def tables(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    totals = [[name.replace("_", " "), value] for name, value in figures.items() if isinstance(value, int)]
    measures = [[name.replace("_", " "), *(row[name] for row in figures["row"].values())] for name in figures["row"]["process"]]
    coupled = [[module, degree["imported_by"], degree["imports"]] for module, degree in figures["most_coupled"].items()]
    parts = (
        table(["one row crosses", *figures["row"]], measures),
        table(["the tree", "count"], totals),
        table(["folder", "files"], [list(item) for item in figures["files"].items()]),
        table(["most coupled module", "imported by", "imports"], coupled),
    )
    return "\n\n".join(parts)


def table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How far one row travels through the package, and how its modules are coupled.")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of any commit; this one by default")
    figures = measure(parser.parse_args(arguments).tree.resolve())
    print(tables(figures), json.dumps(figures), sep="\n\n")


if __name__ == "__main__":
    main()
