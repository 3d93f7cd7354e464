"""A job that was changed between two starts: its state goes on, is taken over in the way that was asked for, or refuses it."""

from datetime import UTC, datetime, timedelta
from io import StringIO

import pyarrow as pa
import pytest
from rich.console import Console

import floodplain as fp
from floodplain.cli import render
from floodplain.cli.inspection import inspect_store
from floodplain.errors import BadInput, IncompatibleChange, SchemaMismatch, UserError
from floodplain.operators.kernel.definition import canonical
from floodplain.store.store import Store
from floodplain.testing.faults import Crashed, CrashPoint
from floodplain.testing.pipeline_kit import KitEpoch, PipelineKit
from tests.spark.files import put_table

ROWS = "user string, v long, w long, big boolean, odd boolean, s struct<a: long, b: long>, ts timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(minute: float, user: str = "a", v: int = 1, w: int = 10) -> dict:
    flags = {"big": v > 2, "odd": v % 2 == 1, "s": {"a": v + w, "b": v - w}}
    return {"user": user, "v": v, "w": w, **flags, "ts": START + timedelta(minutes=minute)}


def at(minute: float) -> int:
    return int((START + timedelta(minutes=minute)).timestamp() * 1000)


def job(make, **watermark):
    """A pipeline of one operator, over rows with a watermark."""
    return lambda stream: make(stream.watermark("ts", "0 seconds")).write("memory")


def keyed(make):
    return job(lambda rows: make(rows.key_by("user")))


def windows(kind, **options):
    return keyed(lambda rows: rows.window(kind, **options).agg(n=fp.count()))


BEFORE = [row(1), row(2, v=3), row(7, v=2)]


def refused(before, after, *named: str, rows=BEFORE) -> str:
    """That the state of the one refuses the other before anything is written; the message, which has these words."""
    kit = PipelineKit(before, rows=ROWS)
    kit.epoch(rows, watermark_ms=at(3))
    kit.stop()
    head = kit.store.history.refresh()
    with pytest.raises(IncompatibleChange) as error:
        kit.restart(after)
    now = kit.store.history.refresh()
    changed = {"lease", "position", "chain", "at_ms", "nonces", "ages"}
    kept = [getattr(head, name) == getattr(now, name) for name in head.__struct_fields__ if name not in changed]
    assert all(kept), "nothing was written but the lease"
    text = str(error.value)
    for word in (*named, "start(reset=["):
        assert word in text, text
    kit.stop()
    kit.restart(before)
    return text


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (windows(fp.tumbling("5 minutes")), windows(fp.tumbling("1 minute")), ["windows", "of 5 min", "of 1 min"]),
        (windows(fp.tumbling("1 minute")), windows(fp.tumbling("5 minutes")), ["windows", "of 1 min", "of 5 min"]),
        (
            windows(fp.sliding("4 minutes", "2 minutes")),
            windows(fp.sliding("4 minutes", "1 minute")),
            ["every 2 min", "every 1 min"],
        ),
        (windows(fp.tumbling("5 minutes")), windows(fp.tumbling("5 minutes", offset="1 minute")), ["offset 1 min"]),
        (windows(fp.session("5 minutes")), windows(fp.session("9 minutes")), ["a gap of 5 min", "a gap of 9 min"]),
        (windows(fp.count_window(3)), windows(fp.count_window(2)), ["windows of 3 rows", "windows of 2 rows"]),
        (windows(fp.tumbling("5 minutes")), windows(fp.session("5 minutes")), ["tumbling", "sessions"]),
    ],
)
def test_windows_of_another_kind_are_refused(before, after, words):
    refused(before, after, "operator windows", *words)


def running(**aggregates):
    return keyed(lambda rows: rows.agg(**aggregates))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (fp.sum("v"), fp.sum("w"), ["x = sum(v)", "x = sum(w)"]),
        (fp.max("v"), fp.min("v"), ["max(v)", "min(v)"]),
        (fp.count("v"), fp.sum("v"), ["count(v)", "sum(v)"]),
        (fp.first("v"), fp.last("v"), ["min_by(v, ts)", "max_by(v, ts)"]),
        (fp.avg("v"), fp.avg("w"), ["avg(v)", "avg(w)"]),
        (fp.sum("v"), fp.sum("v", where="big"), ["where big"]),
        (fp.sum("v", where="odd"), fp.sum("v", where="big"), ["where odd", "where big"]),
        (fp.sum("s.a"), fp.sum("s.b"), ["sum(s.a)", "sum(s.b)"]),
        (fp.top_k("v", 3), fp.top_k("v", 2), ["k=3", "k=2"]),
        (fp.approx_quantile("v", 0.5), fp.approx_quantile("v", 0.5, 0.02), ["error was 0.01, is 0.02"]),
    ],
)
@pytest.mark.parametrize("form", ["running", "windows"])
def test_another_aggregate_under_the_same_name_is_refused(before, after, words, form):
    def made(aggregate):
        if form == "running":
            return running(x=aggregate)
        return keyed(lambda rows: rows.window(fp.tumbling("5 minutes")).agg(x=aggregate))

    refused(made(before), made(after), "aggregate x", *words)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (lambda rows: rows.top(2, "v"), lambda rows: rows.top(3, "v"), ["count", "top 2", "top 3"]),
        (lambda rows: rows.top(2, "v"), lambda rows: rows.top(2, "v desc"), ["by", "'v'", "'v desc'"]),
        (lambda rows: rows.last("v"), lambda rows: rows.last("w"), ["by", "'v'", "'w'"]),
        (lambda rows: rows.last("v"), lambda rows: rows.first("v", name="last"), ["keep"]),
        (lambda rows: rows.dedup(within="1 hour"), lambda rows: rows.dedup(), ["within"]),
        (lambda rows: rows.dedup(), lambda rows: rows.dedup(within="1 hour"), ["within"]),
        (lambda rows: rows.pivot("v", [1, 2], "w"), lambda rows: rows.pivot("v", [2, 1], "w"), ["values", "[1, 2]", "[2, 1]"]),
        (lambda rows: rows.agg(x=fp.count()), lambda rows: rows.key_by("user").last(name="aggregate"), ["kind", "latest"]),
    ],
)
def test_other_parameters_are_refused(before, after, words):
    refused(keyed(before), keyed(after), *words)


def test_keys_by_another_expression_are_refused():
    by = [job(lambda rows, each=each: rows.key_by(k=each).agg(n=fp.count())) for each in ("s.a", "s.b")]
    refused(*by, "keys", "k = s.a", "k = s.b")


def test_all_differences_are_told_at_once():
    def two(a, b):
        def build(stream):
            rows = stream.watermark("ts", "0 seconds").key_by("user")
            one, other = rows.agg(x=a, name="one"), rows.agg(x=b, name="other")
            return one.write("memory").also(other.write("memory"))

        return build

    text = refused(two(fp.sum("v"), fp.max("v")), two(fp.sum("w"), fp.min("v")), "operator one", "operator other")
    assert "start(reset=['one', 'other'])" in text


def test_how_an_expression_is_written_makes_no_difference():
    kit = PipelineKit(running(x=fp.sum("s.a")), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.restart(running(x=fp.sum(" s . a ")))
    assert kit.epoch([row(8)])["output"] == [{"user": "a", "x": 47}]
    assert canonical("( (v+w )*2)") == canonical("(v + w) * 2") != canonical("v + w * 2")
    assert canonical("'a  b'") != canonical("'a b'")


class Totals(fp.KeyedProcess):
    total = fp.Value("long", default=0)
    seen = fp.List("long")
    output = "user string, total long, seen long"

    def process(self, key, rows, ctx):
        for each in rows:
            self.total.set(self.total.get() + each.v)
            self.seen.append(each.v)
        yield key.user, self.total.get(), len(list(self.seen.get()))


class Renamed(Totals):
    total = None
    seen = None
    totals = fp.Value("long", default=0)
    trail = fp.List("long")

    def process(self, key, rows, ctx):
        for each in rows:
            self.totals.set(self.totals.get() + each.v)
            self.trail.append(each.v)
        yield key.user, self.totals.get(), len(list(self.trail.get()))


class Was(Renamed):
    totals = fp.Value("long", default=0, was="total")
    trail = fp.List("long", was="seen")


def process(function, name="totals"):
    return keyed(lambda rows: rows.process(function, name=name))


def test_a_state_that_is_no_longer_declared_is_refused_and_may_be_renamed_or_dropped():
    refused(process(Totals()), process(Renamed()), "state total", "state seen", "drop=['totals.total']", "was='seen'")


@pytest.mark.parametrize(
    ("function", "changes"),
    [
        (Was, {}),
        (Renamed, {"rename": {"total": "totals", "seen": "trail"}}),
        (Renamed, {"rename": {"totals.total": "totals.totals", "totals.seen": "trail"}}),
    ],
)
def test_a_renamed_state_goes_on(function, changes):
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.restart(process(function()), **changes)
    assert kit.epoch([row(8, v=10)])["output"] == [{"user": "a", "total": 16, "seen": 4}]
    assert len([change for change in kit.store.head.changes if change.what.startswith("rename ")]) == 2
    kit.stop()
    kit.restart(process(function()), **changes)
    assert kit.epoch([row(9, v=1)])["output"] == [{"user": "a", "total": 17, "seen": 5}], "told again, it changes nothing"


def test_a_renamed_operator_goes_on():
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.restart(process(Totals(), "sums"), rename={"totals": "sums"})
    assert kit.epoch([row(8, v=10)])["output"] == [{"user": "a", "total": 16, "seen": 4}]
    assert not [table for table in kit.store.head.schemas if table.startswith("totals")]
    assert [each["total"] for each in kit.state("sums")] == [16]
    list(kit.store.compact(full=True))
    kit.stop()
    kit.restart(process(Totals(), "sums"), rename={"totals": "sums"})
    assert kit.epoch([row(9, v=1)])["output"] == [{"user": "a", "total": 17, "seen": 5}]
    refused_again = running(n=fp.count())
    kit.stop()
    with pytest.raises(BadInput, match="has operator 'sums'"):
        kit.restart(refused_again)


def test_a_renamed_aggregate_goes_on():
    kit = PipelineKit(running(n=fp.count(), mean=fp.avg("v")), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.restart(running(n=fp.count(), average=fp.avg("v")), rename={"mean": "average"})
    assert kit.epoch([row(8, v=6)])["output"] == [{"user": "a", "n": 4, "average": 3.0}]


def test_dropped_states_aggregates_and_operators_go():
    kit = PipelineKit(running(n=fp.count(), mean=fp.avg("v")), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    with pytest.raises(IncompatibleChange, match="aggregate mean"):
        kit.restart(running(n=fp.count()))
    kit.stop()
    kit.restart(running(n=fp.count()), drop=["aggregate.mean"])
    assert kit.epoch([row(8)])["output"] == [{"user": "a", "n": 4}]
    assert "mean" not in "".join(kit.state("aggregate")[0])
    kit.stop()
    kit.restart(keyed(lambda rows: rows.last("v")), drop=["aggregate"])
    assert [change.what for change in kit.store.head.changes] == ["drop aggregate.mean", "drop aggregate"]


def test_names_that_mean_nothing_are_refused():
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)
    for changes in ({"drop": ["nonesuch"]}, {"rename": {"nonesuch": "total"}}, {"evolve": {"nonesuch": str}}, {"reset": ["no"]}):
        kit.stop()
        with pytest.raises(BadInput, match="no"):
            kit.restart(process(Totals()), **changes)
    kit.stop()
    with pytest.raises(BadInput, match=r"drop=\['total'\]"):
        kit.restart(process(Totals()), drop="total")


def test_a_reset_operator_begins_empty_and_the_others_go_on():
    def both(kind):
        def build(stream):
            rows = stream.watermark("ts", "0 seconds").key_by("user")
            one = rows.window(kind).agg(n=fp.count(), name="one")
            return one.write("memory", name="one").also(rows.agg(n=fp.count(), name="other").write("memory", name="other"))

        return build

    kit = PipelineKit(both(fp.tumbling("5 minutes")), rows=ROWS)
    kit.epoch(BEFORE)
    changed = both(fp.tumbling("1 minute"))
    kit.stop()
    kit.restart(changed, reset=["one"])
    before = kit.store.head.epoch
    kit.epoch([row(8)])
    kit.stop()
    kit.restart(changed, reset=["one"])
    assert kit.store.head.epoch == before + 1, "it is not reset again"
    made = kit.epoch([row(8.5), row(10)], watermark_ms=at(9))
    assert [each["n"] for each in made["one"]] == [2]
    assert made["other"] == [{"user": "a", "n": 6}]


def test_an_added_aggregate_counts_from_now_on_if_that_is_said():
    kit = PipelineKit(running(n=fp.count()), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    with pytest.raises(IncompatibleChange, match=r"aggregate total: it is new .*since='now'"):
        kit.restart(running(n=fp.count(), total=fp.sum("v")))
    changed = running(n=fp.count(), total=fp.sum("v", since="now"))
    kit.stop()
    kit.restart(changed)
    assert kit.epoch([row(8, v=5)])["output"] == [{"user": "a", "n": 4, "total": 5}]
    assert "total = sum(v) since epoch 2" in kit.explain()
    kit.stop()
    kit.restart(changed)
    assert kit.epoch([row(9, v=5)])["output"] == [{"user": "a", "n": 5, "total": 10}]
    kit.stop()
    with pytest.raises(IncompatibleChange, match="since was 'now', is None"):
        kit.restart(running(n=fp.count(), total=fp.sum("v")))


def test_a_smaller_top_goes_on():
    kit = PipelineKit(keyed(lambda rows: rows.top(3, "v desc")), rows=ROWS)
    kit.epoch([row(1, v=1), row(2, v=2), row(3, v=3)])
    kit.stop()
    kit.restart(keyed(lambda rows: rows.top(2, "v desc")))
    assert [(each["v"], each["rank"]) for each in kit.epoch([row(4, v=4)])["output"]] == [(4, 1), (3, 2)]
    assert [len(each["rows"]) for each in kit.state("top")] == [2]


class Text(fp.KeyedProcess):
    total = fp.Value("string", default="")
    output = "user string, total string"

    def process(self, key, rows, ctx):
        self.total.set(self.total.get() + "!")
        yield key.user, self.total.get()


class Number(fp.KeyedProcess):
    total = fp.Value("long", default=0)
    output = "user string, total long"

    def process(self, key, rows, ctx):
        for each in rows:
            self.total.set(self.total.get() + each.v)
        yield key.user, self.total.get()


def test_values_evolve_by_a_function():
    kit = PipelineKit(process(Number()), rows=ROWS)
    kit.epoch([*BEFORE, row(3, "b", v=7)])
    kit.epoch([row(4, "b", v=1)])
    kit.stop()
    with pytest.raises(SchemaMismatch, match=r"evolve=\{'totals.…': function\}"):
        kit.restart(process(Text()))
    head = kit.store.history.refresh()
    kit.stop()
    with pytest.raises(UserError, match=r"ZeroDivisionError where state totals.total evolves to string, value [68]"):
        kit.restart(process(Text()), evolve={"totals.total": lambda total: 1 / 0})
    assert kit.store.history.refresh().schemas == head.schemas
    kit.stop()
    kit.restart(process(Text()), evolve={"total": lambda total: f"<{total}>"})
    assert kit.epoch([row(8)])["output"] == [{"user": "a", "total": "<6>!"}]
    assert [each["total"] for each in kit.state("totals")] == ["<6>!", "<8>"]
    assert kit.store.at(epoch=2).table("totals").to_arrow().column("total").to_pylist() == [6, 8], "epochs before stay"
    kit.stop()
    kit.restart(process(Text()), evolve={"total": lambda total: f"<{total}>"})
    assert kit.epoch([row(9)])["output"] == [{"user": "a", "total": "<6>!!"}], "told again, it changes nothing"


def test_state_that_is_empty_takes_any_definition():
    kit = PipelineKit(windows(fp.tumbling("5 minutes")), rows=ROWS)
    kit.stop()
    kit.restart(windows(fp.session("1 minute")))
    kit.stop()
    kit.restart(keyed(lambda rows: rows.agg(x=fp.max("v"), name="windows")))
    assert kit.epoch(BEFORE)["output"] == [{"user": "a", "x": 3}]


class More(Totals):
    """With another state, and other code."""

    most = fp.Value("long", default=0)
    output = "user string, total long, most long"

    def process(self, key, rows, ctx):
        list(super().process(key, rows, ctx))
        self.most.set(max([self.most.get(), *(each.v for each in rows)]))
        yield key.user, self.total.get(), self.most.get()


def test_code_states_that_are_new_stateless_steps_slots_and_sinks_may_change():
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.rescale(5)

    def changed(stream):
        rows = stream.watermark("ts", "1 hour").where("big = true").with_column("extra", "v").key_by("user")
        out = rows.process(More(), name="totals")
        return out.write("console", name="shown").also(out.select("user", "most").write("memory", name="most"))

    kit.restart(changed)
    given = kit.epoch([row(8, v=10), row(9, v=1)])
    assert given == {"shown": [{"user": "a", "total": 16, "most": 10}], "most": [{"user": "a", "most": 10}]}


def test_operators_and_changes_are_inspected():
    kit = PipelineKit(process(Totals()), rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    kit.restart(process(Was()))
    shown = inspect_store("memory://kit", kit.store)
    (operator,) = shown.operators
    assert (operator.name, operator.kind, operator.facts[0]) == ("totals", "process", "Was")
    assert operator.states == {"totals": "Value long", "trail": "List long"}
    told = [(change.epoch, change.what) for change in shown.changes]
    assert told[-2:] == [(1, "rename totals.total to totals"), (1, "rename totals.seen to trail")]
    console = Console(file=StringIO(), width=200)
    render.inspection(console, shown)
    text = console.file.getvalue()
    assert "Was · by user" in text and "rename totals.total to totals" in text


@pytest.mark.parametrize("kind", [fp.tumbling("5 minutes"), fp.sliding("5 minutes", "1 minute"), fp.session("5 minutes")])
def test_lateness_may_grow_and_what_was_over_stays_over(kind):
    """Windows that were over by then must not begin anew with the rows that come late now."""
    kit = PipelineKit(windows(kind, lateness="2 minutes"), rows=ROWS)
    kit.epoch([row(1), row(2), row(7)], watermark_ms=at(3))
    kit.epoch([row(12)], watermark_ms=at(13))
    kit.stop()
    with pytest.raises(IncompatibleChange, match="lateness"):
        kit.restart(windows(kind, lateness="1 minute"))
    kit.stop()
    kit.restart(windows(kind, lateness="3 hours"))
    assert kit.epoch([row(3)])["output"] == [], "its windows were gone when lateness was still short"
    assert kit.progress[-1].late == 1
    kit.epoch([], watermark_ms=at(100))
    kit.epoch([row(12.5)])
    assert kit.progress[-1].late == 0, "these were not"
    kit.epoch([], watermark_ms=at(400))
    kit.epoch([], watermark_ms=at(401))
    left = [table for table in kit.store.head.schemas if not table.endswith("processing_timers") and kit.state(table)]
    assert left == [], "nothing is left behind"


def test_definitions_stand_in_the_manifest():
    kit = PipelineKit(windows(fp.tumbling("5 minutes")), rows=ROWS)
    definition = kit.store.head.definitions["windows"]
    assert definition.kind == "window aggregate"
    assert definition.facts == [
        *("tumbling windows of 5 min", "n = count()", "lateness 0 ms", "accumulating", "by user", "event time ts"),
    ]
    assert all(fact in kit.explain() for fact in definition.facts)


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (process(Totals(), "sums"), {"rename": {"totals": "sums"}}),
        (process(Was()), {}),
        (keyed(lambda rows: rows.agg(n=fp.count(), name="totals")), {"reset": ["totals"]}),
        (keyed(lambda rows: rows.agg(n=fp.count())), {"drop": ["totals"]}),
        (process(Text()), {"evolve": {"total": str}, "drop": ["totals.seen"]}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_going_back_to_the_epoch_before_undoes_it(after, changes):
    before = process(Totals())
    kit = PipelineKit(before, rows=ROWS)
    kit.epoch(BEFORE)
    kit.stop()
    epoch = kit.store.head.epoch
    kit.restart(after, **changes)
    assert kit.store.head.changes[-1].epoch == epoch
    kit.epoch([row(8, v=10)])
    kit.rollback(epoch, before)
    assert kit.store.head.changes == ()
    assert kit.epoch([row(8, v=10)])["output"] == [{"user": "a", "total": 16, "seen": 4}]


SCRIPT = [KitEpoch([row(8, v=10)], watermark_ms=at(5)), KitEpoch([row(9, "b", v=1)], watermark_ms=at(8))]


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (process(Totals(), "sums"), {"rename": {"totals": "sums"}}),
        (keyed(lambda rows: rows.agg(n=fp.count(), name="totals")), {"reset": ["totals"]}),
        (process(Text()), {"evolve": {"total": str}, "drop": ["totals.seen"]}),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_a_crash_at_any_point_of_the_change_leaves_all_of_it_or_nothing(after, changes):
    """Found out by dying before each step that the changed start takes, and starting it again."""

    def fresh() -> PipelineKit:
        kit = PipelineKit(process(Totals()), rows=ROWS)
        kit.epoch(BEFORE)
        kit.stop()
        return kit

    def went_on(kit: PipelineKit) -> dict:
        kit.play(SCRIPT)
        return kit.outcome()

    kit = fresh()
    first = len(kit.steps.taken)
    kit.restart(after, **changes)
    steps = range(first, len(kit.steps.taken))
    untouched = went_on(kit)
    for step in steps:
        kit = fresh()
        kit.crash_at(CrashPoint(step, "before"))
        with pytest.raises(Crashed):
            kit.restart(after, **changes)
        kit.restart(after, **changes)
        assert went_on(kit) == untouched, kit.steps.taken[step]


@pytest.mark.spark
def test_a_changed_job_on_spark(spark, tmp_path):
    put_table(tmp_path / "in", 0, pa.table({"user": ["a", "a"], "v": [1, 2]}))
    rows = spark.readStream.schema("user string, v long").parquet(str(tmp_path / "in"))

    def finish(aggregate, **changes):
        output = fp.stream(rows).key_by("user").agg(x=aggregate, name="sums").write("memory")
        query = output.start(state=tmp_path / "state", slots=1, trigger={"availableNow": True}, **changes)
        query.await_termination()
        query.stop()
        return query.sink.table().to_pylist()

    assert finish(fp.sum("v")) == [{"user": "a", "x": 3}]
    put_table(tmp_path / "in", 1, pa.table({"user": ["a"], "v": [10]}))
    with pytest.raises(IncompatibleChange, match=r"aggregate x: was x = sum\(v\), is x = max\(v \* 2\)"):
        finish(fp.max("v * 2"))
    assert finish(fp.sum("v")) == [{"user": "a", "x": 13}]
    put_table(tmp_path / "in", 2, pa.table({"user": ["a"], "v": [1]}))
    assert finish(fp.max("v * 2"), reset=["sums"]) == [{"user": "a", "x": 2}]
    store = Store.open(tmp_path / "state")
    assert [change.what for change in store.head.changes] == ["reset sums"]
    assert store.head.definitions["sums"].facts[1] == "x = max(v * 2)"
