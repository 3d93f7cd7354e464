"""Renders README, changelog and docs to ``site/`` and fails on a link that leads nowhere."""

import html
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; color: #1b2530 }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f2f5f8 } pre { padding: .8rem; overflow-x: auto }
table { border-collapse: collapse } td, th { border: 1px solid #ccd5de; padding: .25rem .6rem; text-align: left }
nav a { margin-right: 1rem } blockquote { border-left: 4px solid #4b8bbe; margin-left: 0; padding-left: 1rem }
img { max-width: 100% }
"""


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def target(page: Path) -> Path:
    return SITE / page.relative_to(ROOT).with_suffix(".html")


def broken_links(page: Path, text: str) -> list[str]:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [link for link in links if "://" not in link and not (page.parent / link).exists()]


def render(page: Path, text: str) -> str:
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = re.sub(r'href="([^":]+)\.md"', r'href="\1.html"', body)
    up = "../" * (len(page.relative_to(ROOT).parts) - 1)
    nav = "".join(
        f'<a href="{up}{target(p).relative_to(SITE)}">{html.escape(p.stem)}</a>' for p in pages() if p.parent.name != "design"
    )
    title = html.escape(text.partition("\n")[0].lstrip("# "))
    return f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style><nav>{nav}</nav>{body}'


def main() -> int:
    failed = 0
    for page in pages():
        text = page.read_text()
        for link in broken_links(page, text):
            print(f"{page.relative_to(ROOT)}: {link} does not exist", file=sys.stderr)
            failed += 1
        target(page).parent.mkdir(parents=True, exist_ok=True)
        target(page).write_text(render(page, text))
    shutil.copytree(ROOT / "docs" / "plots", SITE / "docs" / "plots", dirs_exist_ok=True)
    print(f"{len(pages())} pages in {SITE.relative_to(ROOT)}/, {failed} broken links")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
