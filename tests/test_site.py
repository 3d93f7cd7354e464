"""The pages as a whole: every link and anchor leads somewhere, the site builds, and what the architecture names exists."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import floodplain as fp

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
NAMED_PATH = re.compile(r"`([\w/]+(?:\.py|/))`")
POINTER = re.compile(r"docs/[\w/-]+\.md(?:#[\w-]+)?")
"""How code and messages point to a page."""


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and the site make them."""
    text = FENCED.sub("", page.read_text())
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)]
    seen: Counter[str] = Counter()
    for slug in slugs:
        seen[slug] += 1
    return set(seen) | {f"{slug}-{number}" for slug, count in seen.items() for number in range(1, count)}


def broken(page: Path, text: str) -> list[str]:
    return [link[0] for link in LINK.finditer(FENCED.sub("", text)) if not _leads_somewhere(page, link["path"], link["anchor"])]


def _leads_somewhere(page: Path, path: str, anchor: str | None) -> bool:
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (anchor is None or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page):
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize("link", ["[a](gone.md)", "[a](theory.md#gone)", "[a](#gone)"])
def test_a_broken_link_is_noticed(link):
    assert broken(DOCS / "index.md", link) == [link[2:]]


def test_code_points_to_pages_that_exist():
    sources = [path for folder in ("floodplain", "examples") for path in (ROOT / folder).rglob("*.py")]
    pointers = {(path, pointer) for path in sources for pointer in POINTER.findall(path.read_text())}
    assert not [(str(path), pointer) for path, pointer in pointers if not _leads_somewhere(ROOT / "x", *_parts(pointer))]
    assert not [str(path) for path in sources if "concepts" + ".md" in path.read_text()]


def _parts(pointer: str) -> tuple[str, str | None]:
    path, _, anchor = pointer.partition("#")
    return path, anchor or None


def test_what_the_architecture_names_exists():
    names = NAMED_PATH.findall((DOCS / "architecture.md").read_text())
    assert len(names) > 80, "the page says which files a row goes through"
    assert [name for name in names if not any((folder / name).exists() for folder in (ROOT, ROOT / "floodplain"))] == []


def test_every_logger_is_on_its_page():
    modules = {path for path in (ROOT / "floodplain").rglob("*.py") if "logging.getLogger(__name__)" in path.read_text()}
    loggers = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules}
    assert set(re.findall(r"^\| `(floodplain[\w.]+)`", (DOCS / "logging.md").read_text(), re.MULTILINE)) == loggers


def test_every_room_is_in_the_architecture():
    rooms = {path.parent.name for path in (ROOT / "floodplain").glob("*/__init__.py")}
    table = (DOCS / "architecture.md").read_text().partition("## The rooms")[2].partition("\n\n")[2]
    assert rooms <= set(re.findall(r"^\| `(\w+)/`", table, re.MULTILINE))


def test_the_site_builds_without_a_warning(tmp_path):
    """With search, and signatures in the reference."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-d", tmp_path / "trees"]
    done = subprocess.run([*command, DOCS, tmp_path / "site"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "searchindex.js").exists()
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert [name for name in fp.__all__ if f'id="floodplain.{name}"' not in reference] == []
    called = ["Stream.agg", "Stream.join", "Stream.window", "KeyedProcess.open", "Query.rescale", "Snapshot.table"]
    assert [name for name in called if f'id="floodplain.{name}"' not in reference] == [], "inherited methods are there, too"
    assert 'id="floodplain.pipeline.stream.Output.start"' in reference
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert all((tmp_path / "site" / page).exists() for page in pages)


def test_the_hooks_before_a_commit_are_the_checks_of_make():
    targets = re.findall(r"^(?:lint|types):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    checks = [line.strip().replace("$(BIN)", ".venv/bin") for lines in targets for line in lines.splitlines()]
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert [shlex.split(hook) for hook in hooks] == [shlex.split(check) for check in checks]


def test_the_newest_release_of_the_changelog_is_the_version():
    releases = re.findall(r"^## (\d+\.\d+\.\d+)\b.*: .+$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    parts = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(parts) <= {"Added", "Changed", "Fixed", "Removed"} and {"Added", "Changed", "Fixed"} <= set(parts)
