"""The words of the field are kept: see ``tests/words.py``."""

import pytest

from tests import words
from tests.words import ROOT, Finding, Rule, files, findings, main, rules, todo

CODE = "floodplain/store/example.py"


def texts(path: str, text: str) -> list[str]:
    return [finding.text for finding in findings(path, text, rules())]


def test_no_file_has_banned_words(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0, capsys.readouterr().out


def test_the_to_do_list_names_only_what_is_to_be_done():
    assert todo().keys() <= set(files())
    for path, names in todo().items():
        broken = {finding.rule.name for finding in findings(path, (ROOT / path).read_text(), rules())}
        assert set(names) <= broken, f"{path} is cleaner than words_todo.toml says: python -m tests.words --prune"


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


def test_of_tests_only_docstrings_are_read():
    assert texts("tests/test_x.py", '"""Rows taken back."""\nfound = "taken back"  # taken back') == ["taken back"]


@pytest.mark.parametrize("code", ["found = 1", "self._found = 1", "def found(): ...", "def f(found): ...", "for found in x: ..."])
def test_names_are_what_code_defines(code: str):
    assert texts(CODE, code) == ["found"]
    assert texts(CODE.replace("example", "found"), "") == ["found"]


@pytest.mark.parametrize("code", ["x = found", "f(found=1)", "found_rows = 1", '"""Rows are found."""', "place = part = 1"])
def test_words_that_are_right(code: str):
    assert texts(CODE, code) == []


def test_lines_on_which_words_are_right():
    assert texts(CODE, '"""Its clock is ahead of ours."""') == []


def test_a_finding_says_where_it_is_and_what_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("Some rows.\nThey are taken back.\n")
    (tmp_path / "README.md").write_text("")
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert main([]) == 1
    assert capsys.readouterr().out == 'docs/page.md:2: "taken back": write retract, retraction [retract]\n'


def test_pruning_drops_what_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (tmp_path / "README.md").write_text("They are taken back.\n")
    (tmp_path / "todo.toml").write_text('[todo]\n"README.md" = ["drop", "retract"]\n"docs/gone.md" = ["drop"]\n')
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "TODO", tmp_path / "todo.toml")
    assert main(["--prune"]) == 0
    assert todo() == {"README.md": ["retract"]}
