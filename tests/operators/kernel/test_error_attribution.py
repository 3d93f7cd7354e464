"""Only errors that a process function caused are attributed to the user."""

import re

import pyarrow as pa
import pytest

from floodplain.errors import UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state import handles, maps
from floodplain.state.descriptors import Aggregating, Map, Reducing, Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, op string"


def row(user: str, op: str = "") -> dict[str, object]:
    return {"user": user, "op": op}


class Uses(KeyedProcess):
    output = "user string"
    n = Value("long", default=0)
    names = Map("string", "string")

    def process(self, key, rows, ctx):
        for given in rows:
            match given.op:
                case "value":
                    self.n.get()
                case "map":
                    self.names.put("a", "b")
                case "refused":
                    self.names.merge("a", "b")
                case "unfit":
                    self.names.put("a", 5)
                case "time":
                    ctx.timer("soon")
                case "attribute":
                    self.n.fetch()
                case "library":
                    pa.table({"a": [1]}).column("b")
                case "own":
                    raise NameError("mine")
        yield (key.user,)

    def on_timer(self, key, at, ctx):
        return ()


@pytest.mark.parametrize("on_error", ["raise", "dead_letter"])
@pytest.mark.parametrize(("op", "module", "name"), [("value", handles, "to_python"), ("map", maps, "_Change")])
def test_a_defect_of_ours_is_raised_as_it_is_and_makes_no_letter(monkeypatch, on_error, op, module, name):
    kit = ProcessKit(Uses(), rows=ROWS, keys=["user"], on_error=on_error)
    monkeypatch.delattr(module, name)
    with pytest.raises(NameError, match=name):
        kit.epoch([row("ada", op)])
    assert kit.dead == 0 and kit.store.head.epoch == 0


@pytest.mark.parametrize("op", ["refused", "unfit", "time", "attribute", "library", "own"])
def test_what_the_user_did_or_gave_is_the_users(op):
    with pytest.raises(UserError, match=r"operator kit, epoch 1, key Key\(user='ada'\)"):
        ProcessKit(Uses(), rows=ROWS, keys=["user"]).epoch([row("ada", op)])
    kit = ProcessKit(Uses(), rows=ROWS, keys=["user"], on_error="dead_letter")
    assert kit.epoch([row("ada", op), row("bob")]) == [{"user": "bob"}]
    assert [letter["user"] for letter in kit.state("kit__dead_letters")] == ["ada"]


class Asks(KeyedBatchProcess):
    output = "user string"

    def __init__(self, asks):
        self.asks = asks

    def process(self, batch, ctx):
        return self.asks(batch, ctx)


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        (lambda batch, ctx: ctx.nothing, r"AttributeError in operator kit, epoch 1: .*nothing"),
        (lambda batch, ctx: batch.column("nope"), r"epoch 1: .*rows have no column 'nope'; they have: user, op"),
        (lambda batch, ctx: batch.take([0], ["nope"]), r"epoch 1: .*rows have no column 'nope'; they have: user, op"),
    ],
)
def test_who_asks_for_what_is_not_there_is_told_so(asks, message):
    with pytest.raises(UserError, match=message):
        ProcessKit(Asks(asks), rows=ROWS, keys=["user"]).epoch([row("ada")])


def lift(column):
    if "bad" in column.to_pylist():
        raise RuntimeError("cannot lift")
    return pa.array([1] * len(column))


def merge(older, newer):
    if "bad" in newer.to_pylist():
        raise RuntimeError("cannot merge")
    return newer


class Lifted(KeyedProcess):
    output = "user string"
    n = Aggregating("string", "long", "long", lift=lift, merge="sum", finish=lambda column: column)
    last = Reducing("string", merge)
    reads = False

    def process(self, key, rows, ctx):
        for given in rows:
            self.n.add("" if given.op == "merge" else given.op)
            self.last.add("bad" if given.op == "merge" else "")
        if self.reads:
            self.n.get(), self.last.get()
        yield (key.user,)


class Read(Lifted):
    reads = True


FINE = [row("ada"), row("ada"), row("cyd"), row("cyd")]


@pytest.mark.parametrize(
    ("kind", "op", "message"),
    [
        (Lifted, "bad", "RuntimeError in operator kit, epoch 1, key Key(user='bob'), state n: cannot lift"),
        (Lifted, "merge", "operator kit, epoch 1, table kit, key {'user': 'bob'}: RuntimeError in merge "),
        (Read, "bad", "RuntimeError in operator kit, epoch 1, key Key(user='bob'), one of 2 rows"),
        (Read, "merge", "in operator kit, epoch 1, key Key(user='bob'), one of 2 rows"),
    ],
)
def test_an_error_in_a_fold_names_operator_epoch_and_key(kind, op, message):
    kit = ProcessKit(kind(), rows=ROWS, keys=["user"])
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        kit.epoch([*FINE, row("bob"), row("bob", op)])
    assert "cannot" in str(caught.value)
    assert kit.epoch([*FINE, row("bob")])
