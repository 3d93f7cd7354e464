"""What comes out: side outputs, late rows, and rows that do not fit what was declared."""

import re
from typing import ClassVar

import pyarrow as pa
import pytest

from floodplain.errors import UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, page string, at long"


def row(user: str, page: str = "/", at: int = 0) -> dict[str, object]:
    return {"user": user, "page": page, "at": at}


class Watch(KeyedProcess):
    output = "user string"
    side_outputs: ClassVar = {"alerts": "user string, at long", "audit": "what string", "late": "page string, user string"}
    n = Value("long", default=0)

    def process(self, key, rows, ctx):
        for given in rows:
            match given.page:
                case "alert":
                    ctx.emit("alerts", (key.user, given.at))
                case "audit":
                    ctx.emit("audit", {"what": given.user})
                case "typo":
                    ctx.emit("alarms", (key.user, given.at))
                case "bad":
                    ctx.emit("alerts", (key.user, "noon"))
        ctx.timer(1000)
        yield (key.user,)

    def on_timer(self, key, at, ctx):
        ctx.emit("alerts", (key.user, at))


def test_side_outputs_have_what_was_emitted_and_are_there_when_empty():
    kit = ProcessKit(Watch(), rows=ROWS, keys=["user"], has_watermark=True)
    assert kit.epoch([row("ada", "alert", 7), row("ada", "audit")]) == [{"user": "ada"}]
    assert kit.sides == {"alerts": [{"user": "ada", "at": 7}], "audit": [{"what": "ada"}], "late": []}
    kit.epoch([], watermark_ms=1000)
    assert kit.sides == {"alerts": [{"user": "ada", "at": 1000}], "audit": [], "late": []}
    assert kit.operator.sides["alerts"] == pa.schema({"user": pa.string(), "at": pa.int64()})


def test_late_rows_come_out_of_their_side_output():
    kit = ProcessKit(Watch(), rows=ROWS, keys=["user"], event_time="at")
    kit.epoch([row("ada", at=100)], watermark_ms=90)
    assert kit.epoch([row("ada", "/old", at=89), row("bob", at=91)], watermark_ms=95) == [{"user": "bob"}]
    assert kit.sides["late"] == [{"page": "/old", "user": "ada"}] and kit.late == 1


def test_late_rows_need_the_columns_that_are_declared():
    class Wants(Watch):
        side_outputs: ClassVar = {"late": "colour string"}

    kit = ProcessKit(Wants(), rows=ROWS, keys=["user"])
    with pytest.raises(UserError, match=r"operator kit, side output late: column colour is missing; there are: user, page, at"):
        kit.epoch([])


def test_an_unknown_side_output_is_refused_with_those_there_are():
    kit = ProcessKit(Watch(), rows=ROWS, keys=["user"], has_watermark=True, name="watch")
    with pytest.raises(UserError, match=r"operator watch.*no side output 'alarms'.*side_outputs: alerts, audit"):
        kit.epoch([row("ada", "typo")])
    assert kit.store.head.epoch == 0


def test_a_value_that_does_not_fit_a_side_output_is_named():
    kit = ProcessKit(Watch(), rows=ROWS, keys=["user"], has_watermark=True, name="watch")
    with pytest.raises(UserError, match=r"operator watch, side output alerts: 'noon' does not fit column at of type int64"):
        kit.epoch([row("ada", "bad")])


class Gives(KeyedProcess):
    output = "user string, n int"

    def __init__(self, *given):
        self.given = given

    def process(self, key, rows, ctx):
        return list(self.given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([("a", 1), ("b", "two")], "operator gives, output: 'two' does not fit column n of type int32"),
        ([("a", 1 << 40)], "operator gives, output: 1099511627776 does not fit column n"),
        ([("a", 1), ("a", 1, 2)], "operator gives, output: row ('a', 1, 2) has 3 values for the columns user, n"),
        ([{"user": "a", "m": 1}], "operator gives, output: there is no column m; the columns are user, n"),
        (["ab"], "operator gives, output: 'ab' is not a row"),
        ([{"user": "a", "n": 1}, {"user": 5, "n": 1}], "operator gives, output: 5 does not fit column user of type string"),
    ],
)
def test_what_does_not_fit_the_output_is_named(given, message):
    kit = ProcessKit(Gives(*given), rows=ROWS, keys=["user"], name="gives")
    with pytest.raises(UserError, match=re.escape(message)):
        kit.epoch([row("ada")])


class Some(KeyedProcess):
    """Gives out, or emits, what does not fit, by a row or a timer."""

    output = "user string, n long"
    side_outputs: ClassVar = {"aside": "n long"}

    def process(self, key, rows, ctx):
        for given in rows:
            match given.page:
                case "timer":
                    ctx.timer(5)
                case "aside":
                    ctx.emit("aside", ("one",))
            ctx.emit("aside", (given.at,))
            yield key.user, "one" if given.page == "bad" else given.at

    def on_timer(self, key, at, ctx):
        yield key.user, at
        yield key.user, "five"


MANY = [row(f"u{number}", at=number) for number in range(50)]


@pytest.mark.parametrize(
    ("rows", "what", "where"),
    [
        ([row("ada", "bad", 3)], "output: 'one'", "key Key(user='ada'), row Row(user='ada', page='bad', at=3))"),
        (
            [row("ada", "bad"), row("ada")],
            "output: 'one'",
            "key Key(user='ada'), one of 2 rows, the first being Row(",
        ),
        ([row("ada", "timer")], "output: 'five'", "key Key(user='ada'), timer at 5 ms)"),
        ([row("ada", "aside")], "side output aside: 'one'", "key Key(user='ada'))"),
    ],
)
def test_what_does_not_fit_is_named_with_epoch_key_and_row(rows, what, where):
    kit = ProcessKit(Some(), rows=ROWS, keys=["user"])
    with pytest.raises(UserError) as caught:
        kit.epoch([*MANY[:25], *rows, *MANY[25:]], watermark_ms=10)
    assert str(caught.value).startswith(f"operator kit, {what} does not fit column n of type int64: ")
    assert f" (epoch 1, {where}" in str(caught.value)


def test_a_dict_names_every_column():
    kit = ProcessKit(Gives({"n": 1, "user": None}, {"user": "b", "n": None}, ("c", 3)), rows=ROWS, keys=["user"])
    assert [tuple(made.values()) for made in kit.epoch([row("ada")])] == [(None, 1), ("b", None), ("c", 3)]
    for given, lacks in (({"n": 1}, "user"), ({"user": "b"}, "n"), ({}, "user, n")):
        for gives in (Gives(given), Gives(("a", 1), given)):
            with pytest.raises(UserError, match=rf"operator kit, output: row {given} has no {lacks}; the columns are user, n"):
                ProcessKit(gives, rows=ROWS, keys=["user"]).epoch([row("ada")])


class Batched(KeyedBatchProcess):
    output = "user string, n int"
    side_outputs: ClassVar = {"pages": "page string"}

    def __init__(self, made):
        self.made = made

    def process(self, batch, ctx):
        ctx.emit("pages", batch.rows)
        ctx.emit("pages", ("one more",))
        ctx.emit("pages", batch.rows.select(["page"]))
        return self.made


def test_a_batch_process_emits_tables():
    kit = ProcessKit(Batched(None), rows=ROWS, keys=["user"])
    assert kit.epoch([row("ada", "/a")]) == []
    assert kit.sides == {"pages": [{"page": "/a"}, {"page": "one more"}, {"page": "/a"}]}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pa.table({"user": ["a"]}), "operator kit, output: column n is missing; there are: user"),
        (pa.table({"user": ["a", "b"], "n": ["1", "x"]}), "operator kit, output: 'x' does not fit column n of type int32"),
        ([("a", 1)], "operator kit, output: [('a', 1)] is not an Arrow table"),
    ],
)
def test_what_does_not_fit_a_batch_output_is_named(made, message):
    with pytest.raises(UserError, match=re.escape(message)):
        ProcessKit(Batched(made), rows=ROWS, keys=["user"]).epoch([row("ada")])
