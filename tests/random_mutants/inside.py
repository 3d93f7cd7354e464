"""The part that runs beside mutmut, in a copy of the repository, by its path: it must not import ``tests`` from there.

``make`` makes all mutants and writes to a file what each changes; ``run`` runs those that a file names, which mutmut records
one by one.
"""

import ast
import json
import os
import sys
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, walk_mutatable_files
from mutmut.utils.format_utils import orig_function_and_class_names_from_key


def make(target: Path) -> None:
    Path("mutants").mkdir(exist_ok=True)
    copy_src_dir()
    copy_also_copy_files()
    mutmut.create_mutants(os.cpu_count() or 1)
    target.write_text(json.dumps({name: str(path) for path in walk_mutatable_files() for name in _codes(path)}))


def run(names: list[str], processes: int) -> None:
    mutmut._run(names, processes)


def tell(names: list[str], target: Path) -> None:
    """Writes where each mutant is, what it changes, and the code its tests ended with (none if they did not run yet)."""
    codes = {name: (path, code) for path in walk_mutatable_files() for name, code in _codes(path).items()}
    target.write_text(json.dumps([_tell(name, *codes[name]) for name in names]))


def _codes(path: Path) -> dict[str, int | None]:
    data = mutmut.SourceFileMutationData(path=path)
    data.load()
    return data.exit_code_by_key


def _tell(name: str, path: Path, code: int | None) -> dict[str, str | int | None]:
    changed = [line for line in get_diff_for_mutant(name, path=path).splitlines()[2:] if line[0] in "-+"]
    diff = "\n".join(f"{line[0]} {line[1:].strip()}" for line in changed)
    return {"name": name, "file": str(path), "line": _line(name, path, changed[0][1:].strip()), "diff": diff, "code": code}


def _line(name: str, path: Path, removed: str) -> int:
    function, owner = orig_function_and_class_names_from_key(name)
    source = path.read_text()
    body = ast.parse(source).body
    if owner:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
    start = next(node.lineno for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return next(n for n, line in enumerate(source.splitlines(), 1) if n >= start and line.strip() == removed)


if __name__ == "__main__":
    command, *files = sys.argv[1:]
    if command == "make":
        make(Path(files[0]))
    else:
        names = json.loads(Path(files[0]).read_text())
        run(names, int(files[1])) if command == "run" else tell(names, Path(files[1]))
