"""``ProcessKit`` with a ``StatefulProcessor`` against Spark's ``TwsTester``: generated calls, answers and state after each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

import floodplain as fp
from tests.spark.transform_with_state.programs import OUTPUT, Interpreter, PandasInterpreter

ROWS = "k string, n long, ops array<string>, at long"
INITIAL = "k string, start long, word string"
NONE, PROCESSING, EVENT = "None", "ProcessingTime", "EventTime"
KEYS = ("a", "b", None)
VALUES, LISTS, MAPS = ("countState", "types", "arrays"), ("items", "pairs", "arrayItems"), ("wordsByKey", "arrayWords", "plan")
STATES_BY_NAME = (*VALUES, *LISTS, *MAPS)


class Program(Interpreter):
    """Knows the exact processing time, too."""

    def run(self, key, n, ops, times, **more):
        yield from super().run(key, n, ops, times, now=times.getCurrentProcessingTimeInMs(), **more)


class PandasProgram(Program, PandasInterpreter):
    pass


STATES = (
    "count.get()",
    "count.exists()",
    "count.update(({i},))",
    "count.update((None,))",
    "count.update(((count.get() or (0,))[0] or {i},))",
    "count.clear()",
    "pair.update(({i}, 's{j}'))",
    "pair.get()",
    "pair.exists()",
    "pair.clear()",
    "list(items.get())",
    "items.exists()",
    "items.appendValue(({i},))",
    "items.appendList([({i},), (None,), ({j},)])",
    "items.put([({j},), ({i},)])",
    "items.clear()",
    "next(items.get(), 'none')",
    "pairs.appendValue(({i}, 'v'))",
    "pairs.put([({j}, None)])",
    "list(pairs.get())",
    "words.exists()",
    "words.containsKey(('w{j}',))",
    "tuple(words.getValue(('w{j}',)) or ())",
    "words.updateValue(('w{j}',), ({i}, 'x'))",
    "sorted(words.keys())",
    "sorted(words.values())",
    "sorted(words.iterator())",
    "words.clear()",
    "arrayWords.updateValue(('w{j}',), ([{i}],))",
    "arrayWords.removeKey(('w{j}',))",
    "sorted(arrayWords.iterator())",
    "arrays.update(([{i}, {j}],))",
    "arrays.get()",
    "arrayItems.appendValue(([{i}],))",
    "list(arrayItems.get())",
    "types.update((datetime.datetime(2020, 1, {i}, 12), datetime.date(2020, {i}, 2), b'ab', [{i}, None], {{'a': {j}}}, "
    "({i}, 'x'), Decimal('{i}.55'), {i}.5, {i}, {j}, datetime.datetime(2021, 1, {i}), True))",
    "key",
)
TIMERS = (
    "sorted(handle.listTimers())",
    "handle.registerTimer({t})",
    "handle.deleteTimer({t})",
    "arm({t}, 'at; count.get(); sorted(handle.listTimers())')",
    "arm({t}, 'count.update((at,)); items.appendValue((at,)); list(items.get())')",
    "arm({t}, 'handle.deleteTimer({t} + 1); at')",
    "arm({t}, 'handle.registerTimer({clock} + {i}); sorted(handle.listTimers())')",
    "arm({t}, 'arm({clock} + {i}, \"at; key\"); key')",
)
READS = (
    *("count.get()", "pair.get()", "types.get() and types.get()[:5]", "arrays.get()"),
    *("list(items.get())", "list(pairs.get())", "list(arrayItems.get())"),
    *("sorted(words.iterator())", "sorted(arrayWords.iterator())", "sorted(plan.iterator())"),
)
FAILING = ("1 // 0", "{{}}['x']", "[][{i}]")
OPS = {
    NONE: [STATES, ["(watermark, now)"]],
    PROCESSING: [STATES, TIMERS, ["now", "arm({t}, 'handle.registerTimer(at)')"]],
    EVENT: [STATES, TIMERS, ["(watermark, now)"]],
}
CLOCKS = {NONE: "0", PROCESSING: "now", EVENT: "watermark"}


@dataclass(frozen=True)
class Op:
    """One expression; its time is so much later than the clock of its mode."""

    text: str
    i: int
    j: int
    later: int

    def at(self, mode: str, clock_ms: int) -> str:
        return self.text.format(i=self.i, j=self.j, t=clock_ms + self.later, clock=CLOCKS[mode])


@dataclass(frozen=True)
class Rows:
    """Rows of one call: key, how much later than the watermark, expressions."""

    rows: list[tuple[str | None, int, list[Op]]]


@dataclass(frozen=True)
class Move:
    """The clock goes on."""

    by_ms: int


@dataclass(frozen=True)
class Update:
    state: str
    key: str | None
    value: object


@dataclass(frozen=True)
class Delete:
    state: str
    key: str | None


def calls(mode: str) -> st.SearchStrategy[list[object]]:
    kinds = ["rows"] * 4 + ["failing", "update", "delete"] + ["move"] * 4 * (mode != NONE)
    made = {
        "rows": st.lists(_rows(st.one_of(*map(_ops, OPS[mode])), 4), min_size=1, max_size=4).map(Rows),
        "failing": _rows(_ops(FAILING), 1).map(lambda row: Rows([row])),
        "move": st.builds(Move, st.integers(1, 20)),
        "update": _updates(),
        "delete": st.builds(Delete, st.sampled_from(STATES_BY_NAME), st.sampled_from(KEYS)),
    }
    return st.lists(st.sampled_from(kinds).flatmap(made.__getitem__), min_size=5, max_size=10)


def _ops(texts: Sequence[str]) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.sampled_from(texts), st.integers(1, 9), st.integers(0, 3), st.integers(1, 12))


def _rows(ops: st.SearchStrategy[Op], most: int) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.sampled_from(KEYS), st.integers(-3 if most > 1 else 1, 9), st.lists(ops, min_size=1, max_size=most))


def _updates() -> st.SearchStrategy[Update]:
    keys, one, words = st.sampled_from(KEYS), st.tuples(st.integers(1, 9)), st.tuples(st.sampled_from(["w0", "w9"]))
    return st.one_of(
        st.builds(Update, st.just("countState"), keys, one),
        st.builds(Update, st.just("items"), keys, st.lists(one, min_size=1, max_size=3)),
        st.builds(Update, st.just("arrayWords"), keys, st.dictionaries(words, one.map(lambda value: (list(value),)))),
    )


@dataclass
class Theirs:
    """Spark's tester; a call for several keys is one for each."""

    mode: str
    pandas: bool
    initial: list[Row]
    tester: TwsTester = field(init=False)

    def __post_init__(self):
        processor = (PandasProgram if self.pandas else Program)()
        extractor = (lambda row: row["at"]) if self.mode == EVENT else None
        more = {"timeMode": self.mode, "eventTimeExtractor": extractor}
        if self.pandas:
            frames = [(row.k, pd.DataFrame([row.asDict()])) for row in self.initial]
            self.tester = TwsTester(processor, initialStatePandas=frames, **more)
        else:
            self.tester = TwsTester(processor, initialStateRow=[(row.k, row) for row in self.initial], **more)

    def rows(self, rows: list[Row]):
        made = []
        for key in KEYS:
            of_key = [row for row in rows if row.k == key]
            if of_key and self.pandas:
                made += self.dicts(self.tester.testInPandas(key, pd.DataFrame([row.asDict() for row in of_key])))
            elif of_key:
                made += self.dicts(self.tester.test(key, of_key))
        return made

    def dicts(self, made) -> list[dict]:
        return made.to_dict("records") if isinstance(made, pd.DataFrame) else [row.asDict() for row in made]

    def move(self, to_ms: int):
        call = self.tester.setProcessingTime if self.mode == PROCESSING else self.tester.setWatermark
        return self.dicts(call(to_ms))

    def update(self, state: str, key, value) -> None:
        self.method("update", state)(state, key, value)

    def delete(self, state: str, key) -> None:
        self.tester.deleteState(state, key)

    def peek(self, state: str, key):
        return self.method("peek", state)(state, key)

    def method(self, verb: str, state: str):
        kind = "Value" if state in VALUES else "List" if state in LISTS else "Map"
        return getattr(self.tester, f"{verb}{kind}State")

    def timers(self, key) -> list[int]:
        return list(self.tester.handle._timers.listTimers(key))


@dataclass
class Ours:
    mode: str
    pandas: bool
    initial: list[Row]
    kit: fp.ProcessKit = field(init=False)

    def __post_init__(self):
        self.kit = fp.ProcessKit(
            (PandasProgram if self.pandas else Program)(),
            rows=ROWS,
            keys=["k"],
            output=OUTPUT,
            time_mode=self.mode,
            pandas=self.pandas,
            event_time="at" if self.mode == EVENT else None,
            initial_state=INITIAL,
        )
        if self.initial:
            self.kit.epoch(initial_state=self.initial)
        self.update, self.delete, self.peek, self.timers = self.kit.update, self.kit.delete, self.kit.peek, self.kit.timers

    def rows(self, rows: list[Row]):
        return self.kit.epoch(rows)

    def move(self, to_ms: int):
        return self.kit.epoch(now_ms=to_ms) if self.mode == PROCESSING else self.kit.epoch(watermark_ms=to_ms)


@dataclass
class Compared:
    """Both through the same calls."""

    mode: str
    theirs: Theirs
    ours: Ours
    clock_ms: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    turns: Iterator[tuple[str | None, str]] = field(default_factory=lambda: cycle(product(KEYS, STATES_BY_NAME)))

    def call(self, call: object) -> bool:
        """Whether one can go on after it: a failing timer leaves Spark's tester between two times."""
        theirs, ours = [_answer(side, call, self) for side in (self.theirs, self.ours)]
        failed = self.same(theirs, ours)
        self.seen["failed"] += failed
        if isinstance(call, Move):
            self.clock_ms += call.by_ms
            self.seen["fired"] += not failed and len(ours)
        self.seen["late"] = self.ours.kit.late
        return not (failed and isinstance(call, Move))

    def same(self, theirs, ours) -> bool:
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            assert isinstance(ours, fp.UserError) and type(ours.__cause__) is type(theirs), (theirs, ours)
            assert str(ours.__cause__) == str(theirs)
            return True
        assert _by_key(ours) == _by_key(theirs)
        return False

    def same_state(self) -> None:
        """As the processor reads it, of all keys at once; a key and a state in turn as tests read it."""
        ops = [Op(text, 0, 0, 0) for text in (*READS, *["sorted(handle.listTimers())"] * (self.mode != NONE))]
        assert not self.same(*[_answer(side, Rows([(key, 1, ops) for key in KEYS]), self) for side in (self.theirs, self.ours)])
        for _ in range(2):
            key, state = next(self.turns)
            assert self.ours.peek(state, key) == self.theirs.peek(state, key), (state, key)
        if self.mode != NONE:
            assert self.ours.timers(key) == self.theirs.timers(key), key


def _answer(side, call, compared: Compared):
    try:
        match call:
            case Rows(rows):
                return side.rows([_row(compared, n, *row) for n, row in enumerate(rows)])
            case Move(by_ms):
                return side.move(compared.clock_ms + by_ms)
            case Update(state, key, value):
                side.update(state, key, value)
            case Delete(state, key):
                side.delete(state, key)
        return []
    except Exception as error:
        return error


def _row(compared: Compared, n: int, key, later: int, ops: list[Op]) -> Row:
    texts = [op.at(compared.mode, compared.clock_ms) for op in ops]
    return Row(k=key, n=n, ops=texts, at=compared.clock_ms + later)


def _by_key(rows: list[dict]) -> dict[str, list[dict]]:
    """Spark promises no order between keys."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append(row)
    return found


def check(mode: str, pandas: bool, initial: list[Row], generated: list[object]) -> Counter[str]:
    """What was seen."""
    compared = Compared(mode, Theirs(mode, pandas, initial), Ours(mode, pandas, initial))
    compared.same_state()
    for call in generated:
        if not compared.call(call):
            break
        compared.same_state()
    return compared.seen


STARTS = st.lists(
    st.builds(Row, k=st.sampled_from(KEYS), start=st.integers(1, 9), word=st.sampled_from(["w0", "w1"])), max_size=3
)


def compare(mode: str, pandas: bool, examples: int) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(STARTS, calls(mode))
    def same(initial, generated):
        seen.update(check(mode, pandas, initial, generated))

    same()
    assert seen["failed"] and (seen["fired"] > 5 or mode == NONE) and (seen["late"] > 5 or mode != EVENT), seen


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
@pytest.mark.parametrize("mode", [NONE, PROCESSING, EVENT])
def test_the_kit_answers_as_sparks_tester(mode, pandas):
    compare(mode, pandas, 10)


@pytest.mark.soak
@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
@pytest.mark.parametrize("mode", [NONE, PROCESSING, EVENT])
def test_the_kit_answers_as_sparks_tester_for_long(mode, pandas):
    compare(mode, pandas, 300)
