"""Generates the table of ``docs/reliability.md`` from ``docs/reliability/soak.json``: ``python docs/reliability.py``.

That file is the last line that ``make soak`` printed, nothing changed. The part of the page between ``<!-- soak -->`` and
``<!-- end -->`` is generated from it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from figures import number, table

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "reliability.md"
RESULT = DOCS / "reliability" / "soak.json"
BLOCK = re.compile(r"(?<=<!-- soak -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
COLUMNS = ("tried", "lost", "duplicated", "silently_wrong", "unclear_error", "refused", "ok", "controls")
BAD = ("lost", "duplicated", "silently_wrong", "unclear_error", "controls_wrong")


def result() -> dict[str, Any]:
    return json.loads(RESULT.read_text())


def renewed(page: str, soak: dict[str, Any]) -> str:
    """The page with the table of this result."""
    if not BLOCK.search(page):
        raise ValueError("the page has no place for the table: add <!-- soak --> and <!-- end -->")
    return BLOCK.sub(lambda _: f"\n{figures(soak)}\n\n", page)


def figures(soak: dict[str, Any]) -> str:
    about, rows = soak["soak"], soak["faults"]
    total = {name: sum(row[name] for row in rows) for name in (*COLUMNS, "controls_wrong")}
    bad = [f"`{row['fault']}`" for row in rows if not row["tried"] or any(row[name] for name in BAD)]
    verdict = (
        f"**Failed: {', '.join(bad)}.**" if bad else "Nothing lost, duplicated, silently wrong or unclear; all controls held."
    )
    summary = (
        f"`make soak SOAK_MINUTES={about['minutes']:g}`, seed {about['seed']}, commit `{about['commit']}`, "
        f"{number(about['seconds'])} s: {number(total['tried'])} trials. {verdict}"
    )
    lines = [[f"`{row['fault']}`", *(_count(row, name) for name in COLUMNS)] for row in rows]
    lines.append(["all", *(_count(total, name) for name in COLUMNS)])
    return f"{summary}\n\n{table(['fault', *(name.replace('_', ' ') for name in COLUMNS)], lines)}"


def _count(row: dict[str, Any], name: str) -> str:
    shown = number(row[name])
    if name == "controls" and row["controls_wrong"]:
        return f"{shown}, **{row['controls_wrong']} wrong**"
    return f"**{shown}**" if name in BAD and row[name] else shown


def main() -> int:
    PAGE.write_text(renewed(PAGE.read_text(), result()))
    print(f"the table of {RESULT.name} in {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
