"""Generated lives of keys: what each key is told to do in each step."""

import random
from dataclasses import dataclass, field

START_MS = 1_577_836_800_000
"""2020-01-01T00:00:00Z"""

_COUNT = (
    "count.get()",
    "count.exists()",
    "count.update(({i},))",
    "count.clear()",
    "count.update((None,))",
    "count.update((True,))",
    "count.update((1.5,))",
    "count.update((2**63,))",
    "count.update(('x',))",
    "count.update((np.int32({i}),))",
    "count.update([{i}])",
    "count.update({i})",
    "count.update(None)",
    "count.update(((count.get() or (0,))[0] or 0, ))",
)
_PAIR = (
    "pair.get()",
    "pair.exists()",
    "pair.update(({i}, 's{j}'))",
    "pair.update((None, None))",
    "pair.update(({i}.5, {j}))",
    "pair.update((2**31 + {i}, True))",
    "pair.update((-{i}, 1.0 * 10**{j}))",
    "pair.update((-{i}, 0.5 ** {i}))",
    "pair.update({{'n': 1, 's': 'x'}})",
    "pair.clear()",
)
_ITEMS = (
    "list(items.get())",
    "items.exists()",
    "items.appendValue(({i},))",
    "items.appendList([({i},), ({j},)])",
    "items.put([({i},), (None,), ({j},)])",
    "items.clear()",
    "items.appendValue(None)",
    "next(items.get(), 'none')",
    "[items.appendValue((n[0],)) for n in items.get()]",
    "list(pairs.get())",
    "pairs.appendValue(({i}, 'v'))",
    "pairs.appendList([({i}, None), (None, 'w')])",
    "pairs.put([({j}, 'only')])",
    "(lambda some: (items.clear(), list(some)))(items.get())",
)
_WORDS = (
    "words.exists()",
    "words.getValue(('w{j}',))",
    "type(words.getValue(('w{j}',))).__name__",
    "words.containsKey(('w{j}',))",
    "words.updateValue(('w{j}',), ({i}, 'x'))",
    "words.updateValue(('w{j}',), (None, None))",
    "words.updateValue((None,), ({i}, None))",
    "words.updateValue(({j},), ({i}, {i}))",
    "words.removeKey(('w{j}',))",
    "sorted(words.keys(), key=repr)",
    "sorted(words.values(), key=repr)",
    "sorted(words.iterator(), key=repr)",
    "words.clear()",
)
_TYPES = (
    "types.get()",
    "types.update((datetime.datetime(2020, 1, {d}, 12), datetime.date(2020, {d}, 2), b'ab', [{i}, None], {{'a': {i}}}, "
    "({i}, 'x'), Decimal('{i}.555'), {i}.1, {i}, {j}, datetime.datetime(2021, 1, {d}), True))",
    "types.update((datetime.datetime(1969, 1, {d}, tzinfo=datetime.timezone.utc), None, bytearray(b'q'), (1, 2), "
    "{{'b': None}}, Row(x=1, y=None), Decimal('-1.5'), {i}, 70000 + {i}, 300, None, 1))",
    "types.update((None, None, 'text', [1, 'x'], {{}}, {{'x': {i}, 'y': 5}}, {i}, True, -1, -129, None, None))",
    "types.clear()",
    "(lambda kept: kept and (kept[3] and kept[3].append({i}), kept[4] and kept[4].update(z={i}), kept))(types.get())",
)
_ARRAYS = (
    "arrays.get()",
    "arrays.update(([{i}, {j}],))",
    "arrays.get()[0].append({i})",
    "(arrays.get()[0].clear(), count.update(({i},)), arrays.get())",
    "(lambda given: (arrays.update((given,)), given.append({j}), arrays.get()))([{i}])",
    "list(arrayItems.get())",
    "arrayItems.appendValue(([{i}],))",
    "[kept[0].append({j}) for kept in arrayItems.get()]",
    "sorted(arrayWords.iterator(), key=repr)",
    "arrayWords.updateValue(('w{j}',), ([{i}],))",
    "[kept[0].append({j}) for kept in arrayWords.values()]",
    "arrayWords.getValue(('w{j}',))[0].append({i})",
)
_TIMERS = (
    "sorted(handle.listTimers())",
    "handle.registerTimer({t})",
    "handle.deleteTimer({t})",
    "arm({t}, 'at')",
    "arm({t}, 'at; key_type; count.get(); watermark; sorted(handle.listTimers())')",
    "arm({t}, 'count.update((at,)); items.appendValue((at,)); list(items.get())')",
    "arm({t}, 'pair.clear(); words.updateValue((str(at),), (at, None)); sorted(words.keys(), key=repr)')",
    "arm({t}, 'handle.deleteTimer({t2}); handle.registerTimer(at)')",
    "handle.registerTimer('soon')",
    "handle.registerTimer({i}.5)",
)
_AGAIN = (
    "arm({t}, 'handle.registerTimer({t2})')",
    "arm({t}, 'arm({t2}, \"at\"); sorted(handle.listTimers())')",
)
_TTL = tuple(
    op.format(s=state, i="{i}", j="{j}")
    for state in ("brief", "lasting")
    for op in (
        "{s}.get()",
        "{s}.update(({i},))",
        "{s}.exists()",
        "list({s}Items.get())",
        "{s}Items.appendValue(({i},))",
        "{s}Items.put([({i},), ({j},)])",
        "{s}Items.exists()",
        "sorted({s}Words.iterator())",
        "{s}Words.updateValue(('w{j}',), ({i},))",
        "{s}Words.containsKey(('w{j}',))",
        "{s}Words.exists()",
    )
)
_UNTIMED = ("untimed.get()", "untimed.update(({i},))")


@dataclass(frozen=True)
class Life:
    """What one key is told, step by step; a step has rows of (time in ms or None, expressions)."""

    key: str | None
    group: int
    steps: list[list[tuple[int | None, list[str]]]] = field(default_factory=list)


def lives(seed: int, count: int, steps: int, mode: str, *, ttl: bool = False) -> list[Life]:
    """The first key has no name."""
    rng = random.Random(seed)
    moves = _moves(rng, steps)
    return [_life(rng, f"key {number}" if number else None, moves, mode, ttl) for number in range(count)]


def _moves(rng: random.Random, steps: int) -> list[int]:
    """How far event time has come by each step: it stands still at times."""
    at, found = START_MS, []
    for _ in range(steps):
        found.append(at)
        at += rng.choice([0, 10_000, 10_000, 30_000])
    return found


def _life(rng: random.Random, key: str | None, moves: list[int], mode: str, ttl: bool) -> Life:
    life = Life(key, rng.randrange(3))
    kinds = [_COUNT, _PAIR, _ITEMS, _WORDS, _TYPES, _ARRAYS]
    kinds += [_TIMERS, _TIMERS] if mode != "None" else []
    kinds += [_AGAIN] if mode == "EventTime" else []
    kinds += [_TTL, _TTL, _UNTIMED] if ttl else []
    for at_ms in moves:
        rows = []
        for _ in range(rng.choice([0, 1, 1, 2])):
            late = rng.choice([0, 0, 0, -20_000, -40_000, 1, None])
            ops = [_op(rng, rng.choice(kinds), at_ms, mode) for _ in range(rng.randint(1, 5))]
            if rng.random() < 0.2:
                ops.append("(watermark, timed, key, row_type)")
            rows.append((None if late is None else at_ms + late, ops))
        life.steps.append(rows)
    return life


def _op(rng: random.Random, kind: tuple[str, ...], at_ms: int, mode: str) -> str:
    return rng.choice(kind).format(
        i=rng.randint(1, 9),
        j=rng.randint(0, 3),
        d=rng.randint(1, 9),
        t=_time(rng, at_ms, mode),
        t2=_time(rng, at_ms, mode),
    )


def _time(rng: random.Random, at_ms: int, mode: str) -> str:
    """Few different ones, so that they meet; some in the past."""
    if mode == "ProcessingTime":
        return rng.choice(["5", "-3", "1000", "LATER", "LATER + 1"])
    return str(at_ms + rng.choice([-10_000, -1, 0, 5_000, 5_000, 10_000, 20_000, -at_ms, 3 - at_ms]))
