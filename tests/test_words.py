"""The words of the field are kept: see ``tests/words.py``."""

import pytest

from tests import words
from tests.words import Finding, Rule, findings, main, rules

CODE = "floodplain/store/example.py"


def texts(path: str, text: str) -> list[str]:
    return [finding.text for finding in findings(path, text, rules())]


def test_no_file_has_banned_words(capsys: pytest.CaptureFixture[str]):
    assert main() == 0, capsys.readouterr().out


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_each_rule_can_fire(rule: Rule):
    for where in rule.where:
        text = f'"""{rule.example}"""' if where == "prose" else rule.example
        (finding,) = findings(CODE, text, [rule])
        assert finding == Finding(CODE, 1, finding.text, rule)
        assert set(rule.where) <= {"prose", "names", "classes"}


def test_prose_is_read_in_docstrings_comments_messages_and_markdown():
    assert texts(CODE, 'x = 1\n"""Rows are\ntaken back."""') == ["taken back"]
    assert texts(CODE, "x = 1  # taken back") == ["taken back"]
    assert texts(CODE, 'raise ValueError(f"{x} is Taken back")') == ["Taken back"]
    assert texts("docs/page.md", "Rows are\ntaken back.\n```\ntaken back\n```\n") == ["taken back"]
    assert [finding.line for finding in findings(CODE, 'x = 1\n"""Rows are\ntaken back."""', rules())] == [3]


ACROSS_LINES = {
    "docstring": (CODE, 'def f():\n    """Sums.\n\n    Rows are taken\n    back.\n    """', 4),
    "comment": (CODE, "x = 1\n# Rows are taken\n# back.\ny = 2", 2),
    "indented comment": (CODE, "def f():\n    # Rows that came\n    # are taken\n    # back.\n    x = 1", 3),
    "message": (CODE, 'raise ValueError(\n    "Rows are taken "\n    "back")', 2),
    "docstring of a test": ("tests/test_x.py", '"""Rows are taken\nback."""', 1),
    "Markdown": ("docs/page.md", "# Rows\n\nSome rows,\nwhich are taken\nback.\n", 4),
    "list": ("docs/page.md", "* a row\n* rows are taken\n  back\n", 2),
    "quotation": ("docs/page.md", "> Rows are taken\n> back.\n", 1),
}


@pytest.mark.parametrize(("path", "text", "line"), ACROSS_LINES.values(), ids=ACROSS_LINES)
def test_words_are_seen_across_line_breaks(path: str, text: str, line: int):
    (finding,) = findings(path, text, rules())
    assert (finding.text, finding.line, finding.rule.name) == ("taken back", line, "retract")


APART = {
    "paragraphs of a docstring": (CODE, '"""Rows are taken\n\nback."""'),
    "paragraphs of a comment": (CODE, "# Rows are taken\n#\n# back."),
    "comments with code between them": (CODE, "# Rows are taken\nx = 1\n# back."),
    "comments after code": (CODE, "x = 1  # taken\ny = 2  # back"),
    "comment and comment after code": (CODE, "# taken\nx = 1  # back"),
    "strings": (CODE, 'x = ["taken",\n"back"]'),
    "paragraphs of Markdown": ("docs/page.md", "Rows are taken\n\nback.\n"),
    "text around code": ("docs/page.md", "Rows are taken\n```\ncode\n```\nback.\n"),
    "list items": ("docs/page.md", "* taken\n* back\n"),
}


@pytest.mark.parametrize(("path", "text"), APART.values(), ids=APART)
def test_separate_texts_are_not_joined(path: str, text: str):
    assert texts(path, text) == []


def test_each_occurrence_in_a_paragraph_is_a_finding():
    text = '"""Rows taken back\nand rows that are\ntaken back."""'
    assert [finding.line for finding in findings(CODE, text, rules())] == [1, 3]


def test_of_tests_only_docstrings_are_read():
    assert texts("tests/test_x.py", '"""Rows taken back."""\nfound = "taken back"  # taken back') == ["taken back"]


@pytest.mark.parametrize("code", ["found = 1", "self._found = 1", "def found(): ...", "def f(found): ...", "for found in x: ..."])
def test_names_are_what_code_defines(code: str):
    assert texts(CODE, code) == ["found"]
    assert texts(CODE.replace("example", "found"), "") == ["found"]


@pytest.mark.parametrize("code", ["x = found", "f(found=1)", "found_rows = 1", '"""Rows are found."""', "place = part = 1"])
def test_words_that_are_right(code: str):
    assert texts(CODE, code) == []


def test_an_exception_covers_its_own_words_only():
    assert texts(CODE, '"""Its clock is ahead of\nours."""') == []
    (finding,) = findings(CODE, '"""Its clock is ahead of ours.\nIt is an operator\nof ours."""', rules())
    assert (finding.text, finding.line) == ("of ours", 3)


def test_a_finding_says_where_it_is_and_what_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("Some rows.\nThey are taken back.\n")
    (tmp_path / "README.md").write_text("")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert main() == 1
    assert capsys.readouterr().out == 'docs/page.md:2: "taken back": write retract, retraction [retract]\n'
