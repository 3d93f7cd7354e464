"""Generated changes of the schemas of states, and a processor that writes under the one and reads under the other."""

import datetime
import random
from dataclasses import dataclass

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

OUTPUT = "k string, what string"
AT = datetime.datetime(2020, 2, 3, 4, 5, 6)
VALUES = {
    "int": 70_000,
    "long": 2**40 + 1,
    "float": 1.5,
    "double": 0.1,
    "string": "text",
    "binary": b"bytes",
    "boolean": True,
    "date": AT.date(),
    "timestamp_ntz": AT,
    "array<int>": [1, 2],
    "array<long>": [1, 2**40],
    "array<struct<x: int, y: string>>": [(1, "one")],
    "map<string, int>": {"a": 1},
    "map<string, double>": {"a": 1.0},
    "struct<x: int, y: string>": (1, "one"),
    "struct<x: long, y: string, z: double>": (1, "one", 0.5),
    "struct<y: string>": ("one",),
}
"""A type of a field → a value of it."""
KINDS = ("value", "list", "map")


@dataclass(frozen=True)
class Change:
    """One variable before and after a restart, each as (name, type) of its fields; None if it is not declared."""

    kind: str
    before: tuple[tuple[str, str], ...]
    after: tuple[tuple[str, str], ...]
    kind_after: str = ""
    keys: tuple[str, str] = ("w string", "w string")
    """Of a map: the schemas of its keys."""
    ttl: tuple[int | None, int | None] = (None, None)

    def declared(self, after: bool) -> tuple[str, str, str, int | None]:
        fields = self.after if after else self.before
        return self.kind_after or self.kind if after else self.kind, ddl(fields), self.keys[after], self.ttl[after]


def ddl(fields):
    return ", ".join(f"{name} {type_}" for name, type_ in fields)


def generated(seed: int) -> Change:
    chance = random.Random(seed)
    types = list(VALUES)
    before = tuple((name, chance.choice(types)) for name in ("a", "b", "c")[: chance.randrange(1, 4)])
    after = list(before)
    for _ in range(chance.choice([1, 1, 2])):
        at = chance.randrange(len(after))
        match chance.choice(["retype", "retype", "add", "drop", "reorder", "rename"]):
            case "retype":
                after[at] = (after[at][0], chance.choice([*WIDER.get(after[at][1], ()), chance.choice(types)]))
            case "add":
                after.insert(at, (f"n{len(after)}", chance.choice(types)))
            case "drop" if len(after) > 1:
                del after[at]
            case "reorder":
                chance.shuffle(after)
            case "rename":
                after[at] = (f"r{at}", after[at][1])
    return Change(chance.choice(KINDS), before, tuple(after))


WIDER = {
    "int": ("long", "double", "date"),
    "long": ("int", "double", "timestamp_ntz"),
    "float": ("double", "long"),
    "string": ("binary",),
    "binary": ("string",),
    "date": ("int", "timestamp_ntz"),
    "array<int>": ("array<long>",),
    "map<string, int>": ("map<string, double>",),
    "struct<x: int, y: string>": ("struct<x: long, y: string, z: double>", "struct<y: string>"),
}


class Kept(StatefulProcessor):
    """Writes to the variables that it declares when a row says so, and tells what they hold."""

    def __init__(self, variables):
        self.variables = variables

    def init(self, handle):
        self.states = []
        for number, (kind, schema, keys, ttl_ms) in enumerate(self.variables):
            name = f"v{number}"
            if kind == "value":
                self.states.append((kind, handle.getValueState(name, schema, ttl_ms)))
            elif kind == "list":
                self.states.append((kind, handle.getListState(name, schema, ttl_ms)))
            else:
                self.states.append((kind, handle.getMapState(name, keys, schema, ttl_ms)))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            written = eval(row.what, {"datetime": datetime}) if row.what else None
            for number, (kind, state) in enumerate(self.states):
                if written is not None:
                    write(kind, state, written[number])
                yield Row(k=key[0], what=f"{number:02} {read(kind, state)!r}")

    def close(self):
        pass


def write(kind, state, value):
    if kind == "value":
        state.update(value)
    elif kind == "list":
        state.appendValue(value)
    else:
        state.updateValue(("entry",), value)


def read(kind, state):
    if kind == "value":
        return state.get()
    if kind == "list":
        return list(state.get())
    return sorted(state.iterator(), key=repr)
