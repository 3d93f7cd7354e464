"""Values that can be changed in place: of every kind of state, only what is set, put, added or appended counts."""

import json
from datetime import date

import pyarrow as pa
import pytest

from floodplain.operators.kernel.process import KeyedBatchProcess, KeyedProcess
from floodplain.state.descriptors import Aggregating, Broadcast, List, Map, Reducing, Set, TaskValue, Value
from floodplain.testing.process_kit import ProcessKit

ROWS = "user string, op string, tags map<string, long>, place struct<x: long, y: array<long>>"
ANY = "struct<a: map<string, long>, b: array<long>>"


def row(user: str, op: str = "", tags: object = None, place: object = None) -> dict[str, object]:
    return {"user": user, "op": op, "tags": tags, "place": place}


def told(kit: ProcessKit, *rows: dict[str, object], **more) -> list[object]:
    return [json.loads(found["told"]) for found in kit.epoch(list(rows), **more)]


class Defaults(KeyedProcess):
    output = "told string"
    items = Value("array<long>", default=[])
    by_name = Value("map<string, array<long>>", default={"a": [0]})
    place = Value("struct<x: long, y: array<long>>", default=(1, []))
    total = Reducing("array<long>", "append", default=[0])
    mine = TaskValue("array<long>", [], split=lambda value, n: [value] * n, merge=lambda values: values[0])

    def process(self, key, rows, ctx):
        for given in rows:
            seen = [state.get() for state in (self.items, self.by_name, self.place, self.total, self.mine)]
            self.total.get().append(7)
            self.mine.get().append(7)
            items, by_name, place = (state.get() for state in (self.items, self.by_name, self.place))
            items.append(key.user)
            by_name["a"].append(1)
            place["y"].append(1)
            if given.op == "bad":
                raise ValueError
            yield (json.dumps(seen),)


@pytest.mark.parametrize("on_error", ["raise", "dead_letter"])
def test_a_default_is_a_fresh_one_for_each_read(on_error):
    kit = ProcessKit(Defaults(), rows=ROWS, keys=["user"], on_error=on_error)
    ops = [row(user, op) for user in "abc" for op in (("bad", "", "") if on_error == "dead_letter" else ("", ""))]
    assert told(kit, *ops) == [[[], {"a": [0]}, {"x": 1, "y": []}, [0], []]] * 6
    assert kit.state() == []


class Changing(KeyedProcess):
    """Changes in place what it reads, and what it has given to its states; then tells what they hold."""

    output = "told string"
    n = Value("long")
    value = Value(ANY)
    items = List(ANY)
    entries = Map("struct<k: array<long>>", ANY)
    elements = Set("struct<k: array<long>>")
    total = Reducing("array<long>", "append")

    def process(self, key, rows, ctx):
        for given in rows:
            made, name, more = {"a": {"x": 1}, "b": [1]}, {"k": [1]}, [1]
            if given.op == "begin":
                self.value.set(made)
                self.items.append(made)
                self.entries.put(name, made)
                self.elements.add(name)
                self.total.add(more)
            else:
                made = self.value.get()
                more = self.total.get()
                for found in [made, *self.items.get(), *self.items, *self.entries.values(), self.entries.get({"k": [1]})]:
                    self.spoil(found)
                for found in [*self.entries.keys(), *self.elements, *(key for key, _ in self.entries.items())]:
                    found["k"].append(9)
            self.spoil(made)
            name["k"].append(9)
            more.append(9)
            self.n.set(1)  # so that the row of the key is written
        states = self.value.get(), self.items.get(), list(self.items), self.entries.items(), list(self.elements), self.total.get()
        yield (json.dumps(states),)

    def spoil(self, value):
        value["b"].append(9)
        value["a"]["z"] = 9


def test_what_is_changed_in_place_is_neither_seen_nor_stored():
    kit = ProcessKit(Changing(), rows=ROWS, keys=["user"])
    made, name = {"a": {"x": 1}, "b": [1]}, {"k": [1]}
    whole = [made, [made], [made], [[name, made]], [name], [1]]
    assert told(kit, row("u", "begin"), row("u")) == [whole]
    for _ in range(2):
        assert told(kit, row("u"), row("u")) == [whole]
    assert kit.state() == [{"user": "u", "n": 1, "n__null": None, "value": made, "value__null": None, "total": [1]}]
    assert [found["value"] for found in kit.state("kit__items")] == [made]
    assert [(found["key"], found["value"]) for found in kit.state("kit__entries")] == [(name, made)]
    assert [found["element"] for found in kit.state("kit__elements")] == [name]


class Extending(KeyedProcess):
    """Extends its lists by themselves, by nothing, and by what it then changes in place."""

    output = "told string"
    numbers = List("long")
    items = List("array<long>")

    def process(self, key, rows, ctx):
        made = [[1], [2]]
        for _ in rows:
            self.numbers.extend(n for n in (1, 2))
            self.numbers.extend(self.numbers)
            self.numbers.extend([])
            self.items.extend(made)
        for item in made:
            item.append(9)
        yield (json.dumps([self.numbers.get(), self.items.get()]),)


def test_a_list_is_extended_by_copies_of_what_there_is():
    kit = ProcessKit(Extending(), rows=ROWS, keys=["user"])
    assert told(kit, row("u")) == [[[1, 2, 1, 2], [[1], [2]]]]
    assert told(kit, row("u")) == [[[*[1, 2] * 2, 1, 2, *[1, 2] * 2, 1, 2], [[1], [2]] * 2]]
    assert [found["value"] for found in kit.state("kit__items")] == [[1], [2]] * 2


class Forms(KeyedProcess):
    """Tells what its states hold before and after they are given values in other ways."""

    output = "told string, tags map<string, long>, place struct<x: long, y: array<long>>"
    tags = Value("map<string, long>")
    place = Value("struct<x: long, y: array<long>>")
    deep = Value("array<map<string, struct<x: long>>>")
    items = List("map<string, long>")
    entries = Map("string", "map<string, struct<x: long>>")

    def process(self, key, rows, ctx):
        before = self.seen()
        self.tags.set([("a", 1), ("b", None)])
        self.place.set((1, (2, 3)))
        self.deep.set(([("k", (1,))],))
        self.items.set([[("a", 1)], {"b": 2}])
        self.entries.put("e", [("k", (1,))])
        yield json.dumps([before, self.seen(), rows[0].tags, rows[0].place]), self.tags.get(), (5, (6,))

    def seen(self):
        return self.tags.get(), self.place.get(), self.deep.get(), self.items.get(), self.entries.items()


def test_maps_are_dicts_and_structs_are_dicts_in_rows_and_states_always():
    kit = ProcessKit(Forms(), rows=ROWS, keys=["user"])
    rows = [row("u", tags=[("t", 1)], place=(1, (2,)))]
    nothing = [None, None, None, [], []]
    whole = [
        {"a": 1, "b": None},
        {"x": 1, "y": [2, 3]},
        [{"k": {"x": 1}}],
        [{"a": 1}, {"b": 2}],
        [["e", {"k": {"x": 1}}]],
    ]
    given = [{"t": 1}, {"x": 1, "y": [2]}]
    for before in (nothing, whole, whole):
        (found,) = kit.epoch(rows)
        assert json.loads(found["told"]) == [before, whole, *given]
        assert (found["tags"], found["place"]) == ({"a": 1, "b": None}, {"x": 5, "y": [6]})


def newest(older, newer):
    return newer


def pairs(column):
    return pa.array([[("total", value)] for value in column.to_pylist()], pa.map_(pa.string(), pa.int64()))


class Folded(KeyedProcess):
    output = "told string"
    last = Reducing("map<string, long>", newest, default={"none": 0})
    total = Aggregating("long", "long", "map<string, long>", lift=lambda column: column, merge="sum", finish=pairs)

    def process(self, key, rows, ctx):
        before = self.last.get(), self.total.get()
        self.last.add([("n", len(rows))])
        self.total.add(len(rows))
        yield (json.dumps([before, self.last.get(), self.total.get()]),)


def test_what_is_folded_has_the_form_too():
    kit = ProcessKit(Folded(), rows=ROWS, keys=["user"])
    assert told(kit, row("u")) == [[[{"none": 0}, None], {"n": 1}, {"total": 1}]]
    assert told(kit, row("u"), row("u")) == [[[{"n": 1}, {"total": 1}], {"n": 2}, {"total": 3}]]


class Shared(KeyedProcess):
    """State that belongs to no key."""

    output = "told string"
    rules = Broadcast("struct<a: long, b: string>", ANY)
    offsets = TaskValue("map<string, long>", split=lambda value, n: [value] * n, merge=lambda values: dict(*values))

    def process(self, key, rows, ctx):
        found = self.rules.get((1, "q"))
        seen = [self.offsets.get(), found, self.rules.items(), self.rules.contains({"b": "q", "a": 1})]
        yield (json.dumps(seen),)
        found["b"].append(9)
        for rule, value in self.rules.items():
            rule["a"] = 9
            value["a"]["z"] = 9
        given = [("x", 1)]
        self.offsets.set(given)
        given.append(("y", 9))
        self.offsets.get()["z"] = 9

    def on_broadcast(self, rows, ctx):
        for given in rows:
            made = {"a": given.tags, "b": [1]}
            self.rules.put((1, "q"), made)
            made["b"].append(9)


def test_state_of_no_key_gives_and_keeps_copies_in_the_form():
    kit = ProcessKit(Shared(), rows=ROWS, keys=["user"], broadcast="tags map<string, long>")
    rule = {"a": {"x": 1}, "b": [1]}
    whole = [rule, [[{"a": 1, "b": "q"}, rule]], True]
    assert told(kit, row("u"), broadcast=[{"tags": [("x", 1)]}]) == [[None, *whole]]
    kit.rescale(2)
    assert told(kit, row("u")) == [[{"x": 1}, *whole]]


class Failing(KeyedProcess):
    output = "told string"

    def process(self, key, rows, ctx):
        raise ValueError


def test_a_dead_letter_has_maps_as_objects_whatever_their_keys():
    rows = "user string, days map<date, array<map<string, binary>>>, names map<long, boolean>"
    kit = ProcessKit(Failing(), rows=rows, keys=["user"], on_error="dead_letter")
    kit.epoch([{"user": "u", "days": {date(2020, 1, 2): [{"x": b"\x01"}]}, "names": {5: True}}])
    (letter,) = kit.state("kit__dead_letters")
    assert json.loads(letter["row"]) == {"user": "u", "days": {"2020-01-02": [{"x": "01"}]}, "names": {"5": True}}


class Columns(KeyedBatchProcess):
    output = "user string, n long"
    items = List("array<long>")
    entries = Map("string", "map<string, long>")
    elements = Set("struct<a: long>")
    value = Value("array<long>", default=[7])

    def process(self, batch, ctx):
        batch.append("items", [[1]])
        batch.put("entries", ["e"], [[("x", 1)]])
        batch.add("elements", [{"a": 1}])
        counts = [len(batch.entries(name)) for name in ("items", "entries", "elements")]
        return batch.keys.append_column("n", pa.array([sum(counts) + len(batch.state("value")[0])]))


def test_a_batch_process_has_them_as_columns_as_before():
    kit = ProcessKit(Columns(), rows=ROWS, keys=["user"])
    assert [kit.epoch([row("u")])[0]["n"] for _ in range(2)] == [4, 5]
