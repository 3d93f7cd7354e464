"""A process function that cannot run is refused when the pipeline is built, with its operator and what to do."""

import re
from typing import ClassVar

import pytest

import floodplain as fp
from floodplain.errors import BadInput, BadName, UserError
from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Value
from floodplain.state.tables import define
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, at long, tags array<long>"


class Good(KeyedProcess):
    output = "user string"

    def process(self, key, rows, ctx):
        yield (key.user,)


class NoOutput(KeyedProcess):
    def process(self, key, rows, ctx):
        yield (key.user,)


class ByText(Good):
    order_by = "at"


class BroadcastByText(Good):
    broadcast_order_by = "at"


class ByUnknown(Good):
    order_by: ClassVar = ["at", "nope"]


class ByNested(Good):
    order_by = ("tags",)


class Shadowing(Good):
    on_broadcast = Value("long")


REFUSED = [
    (Good, BadInput, "Good is a class: pass an instance, Good()"),
    (lambda: 5, BadInput, "5 is not a process function: subclass KeyedProcess or KeyedBatchProcess"),
    (NoOutput, BadInput, "NoOutput does not declare its output columns: add output = 'user string, n long'"),
    (ByText, BadInput, "order_by of ByText is a string: use a list of columns"),
    (BroadcastByText, BadInput, "broadcast_order_by of BroadcastByText is a string"),
    (ByUnknown, BadInput, "there is no column nope to order by; there are: user, at, tags"),
    (ByNested, BadInput, "order_by cannot use column tags: list<element: int64> has no order: name another"),
    (Shadowing, BadName, "state name 'on_broadcast' of Shadowing is a method of process functions"),
]


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED)
def test_it_is_refused_by_both_kits_before_any_row_comes(make, kind, message):
    process = make if make is Good else make()
    with pytest.raises(kind, match=re.escape(f"operator first: {message}")):
        ProcessKit(process, rows=ROWS, keys=["user"], name="first")
    with pytest.raises(kind, match=re.escape(f"operator first: {message}")):
        fp.PipelineKit(lambda rows: rows.key_by("user").process(process, name="first").write("memory"), rows=ROWS)


def test_a_key_that_rows_do_not_have_is_named_by_both_kits():
    message = r"operator first: there is no column nope to key by; there are: user, at, tags"
    with pytest.raises(BadInput, match=message):
        ProcessKit(Good(), rows=ROWS, keys=["nope"], name="first")
    with pytest.raises(BadInput, match=message):
        fp.PipelineKit(lambda rows: rows.key_by("nope").process(Good(), name="first").write("memory"), rows=ROWS)


class Setting(Good):
    def process(self, key, rows, ctx):
        (ctx.timer if rows[0].at else ctx.processing_timer)(7)


@pytest.mark.parametrize("at", [0, 1])
def test_a_timer_that_nothing_is_called_for_cannot_be_set(at):
    kit = ProcessKit(Setting(), rows=ROWS, keys=["user"])
    message = r"operator kit, epoch 1, key Key\(user='ada'\), row .*: a timer is set for 7 ms, and there is no on_timer.*: add it"
    with pytest.raises(UserError, match=message):
        kit.epoch([{"user": "ada", "at": at}])


class Answering(Setting):
    def on_timer(self, key, at, ctx):
        yield (key.user,)


def test_timers_that_wait_for_a_method_that_is_gone_name_it():
    kit = ProcessKit(Answering(), rows=ROWS, keys=["user"], has_watermark=True)
    kit.epoch([{"user": "ada", "at": 1}])
    kit.operator = ProcessKit(Good(), rows=ROWS, keys=["user"]).operator
    define(kit.writer, kit.operator.tables)
    with pytest.raises(UserError, match=r"key Key\(user='ada'\), timer at 7 ms: Good has no on_timer\(self, key, at, ctx\)"):
        kit.epoch([], watermark_ms=10)


class NoMethods(KeyedBatchProcess):
    output = "user string"


class OnlyTimers(NoMethods):
    def process(self, batch, ctx):
        batch.timer([5] * len(batch.keys))


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (NoMethods(), "NoMethods has no process(self, batch, ctx): add it"),
        (OnlyTimers(), "OnlyTimers has no on_timers(self, batch"),
    ],
)
def test_a_method_that_lacks_is_named(process, message):
    with pytest.raises(UserError, match=re.escape(message)):
        ProcessKit(process, rows=ROWS, keys=["user"]).epoch([{"user": "ada"}], watermark_ms=10)
