"""Changed schemas of states: Spark and the drop-in go on with the same values, or refuse with the same condition."""

import re
import shutil

import pytest

from tests.spark.transform_with_state.evolving import OUTPUT, VALUES, Change, Kept, generated
from tests.spark.transform_with_state.flows import ROCKS, SIDES, Flow, conf

pytestmark = pytest.mark.spark

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
INPUT = "k string, other string, what string"


class Restarts:
    """A query that has written values, and any number of changed ones on copies of its state."""

    def __init__(self, spark, folder, side, changes, **told):
        self.flow = ChangedFlow(spark, folder, side, [change.declared(False) for change in changes], **told)
        self.number = 0
        values = [tuple(VALUES[type_] for _, type_ in change.before) for change in changes]
        self.flow.feed(0, [{"k": "a", "other": "a", "what": repr(values)}])
        self.flow.run("state")
        self.flow.feed(1, [{"k": "a", "other": "a", "what": ""}])

    def again(self, variables, **told):
        """What each variable holds, or the condition of the refusal."""
        self.number += 1
        name = f"state-{self.number}"
        folder = self.flow.folder / self.flow.which
        shutil.copytree(folder / "state", folder / name)
        return ChangedFlow(self.flow.spark, self.flow.folder, self.flow.which, variables, **told).run(name)


class ChangedFlow(Flow):
    def __init__(self, spark, folder, side, variables, *, mode="none", output="append", key="k"):
        folder.mkdir(exist_ok=True)
        super().__init__(spark, folder, side, Kept(variables), INPUT, OUTPUT, mode)
        self.output_mode, self.key = output, key

    def run(self, name):
        try:
            self.start(name, availableNow=True).awaitTermination()
        except Exception as refused:
            return re.findall(r"\[(STATE_STORE_[A-Z_]+)\]", str(refused))
        return [row for _, rows in self.seen for row in rows]

    def start(self, state="state", name=None, **trigger):
        rows = self.spark.readStream.schema(self.schema).json(str(self.folder / "in"))
        frame = self._transformed(rows.groupBy(self.key), (self.processor, self.output, self.output_mode, self.mode))
        writer = frame.writeStream.foreachBatch(self._keep).outputMode(self.output_mode)
        writer = writer.option("checkpointLocation", str(self.folder / self.which / state))
        return writer.trigger(**trigger).start()


def one_changed(changes, at):
    return [change.declared(after=number == at) for number, change in enumerate(changes)]


def compare(spark, folder, changes):
    theirs, ours = (Restarts(spark, folder / side, side, changes) for side in SIDES)
    became = [ours.again(one_changed(changes, at)) for at in range(len(changes))]
    accepted = [at for at, rows in enumerate(became) if rows and isinstance(rows[0], tuple)]
    variables = [change.declared(at in accepted) for at, change in enumerate(changes)]
    for rows in theirs.again(variables), ours.again(variables):
        # Each variable alone is as all of them at once.
        assert [rows[at] for at in accepted] == [became[at][at] for at in accepted]
    for at in set(range(len(changes))) - set(accepted):
        assert became[at] == theirs.again(one_changed(changes, at)) != [], changes[at]


@pytest.mark.parametrize("encoding", ["avro", "unsaferow"])
def test_generated_changes(spark, tmp_path, encoding):
    with conf(spark, {**ROCKS, ENCODING: encoding}):
        compare(spark, tmp_path, [generated(seed) for seed in (3, 7, 17, 24, 28)])


@pytest.mark.soak
@pytest.mark.parametrize("encoding", ["avro", "unsaferow"])
@pytest.mark.parametrize("seeds", [(2, 15, 22), *(range(first, first + 10) for first in range(100, 200, 10))])
def test_many_generated_changes(spark, tmp_path, encoding, seeds):
    with conf(spark, {**ROCKS, ENCODING: encoding}):
        compare(spark, tmp_path, [generated(seed) for seed in seeds])


A = (("a", "int"),)
CHANGES = [
    Change("value", A, A, kind_after="list"),
    Change("value", A, A, kind_after="map"),
    Change("map", A, A, keys=("w string", "other string")),
    Change("map", A, A, keys=("w string", "w binary")),
    Change("map", A, A, keys=("w string", "w string, more int")),
]
"""Kinds and keys, which no encoding lets change but in name."""


def test_changes_of_kinds_keys_and_modes(spark, tmp_path):
    told = {}
    with conf(spark, {**ROCKS, ENCODING: "avro"}):
        for side in SIDES:
            restarts = Restarts(spark, tmp_path / side, side, CHANGES)
            same = [change.declared(False) for change in CHANGES]
            told[side] = [restarts.again(one_changed(CHANGES, at)) for at in range(len(CHANGES))]
            told[side] += [
                restarts.again(same, **more) for more in ({"mode": "processingtime"}, {"output": "update"}, {"key": "other"})
            ]
    assert told["ours"] == told["spark"]
    assert told["ours"][0] == ["STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"]
    assert told["ours"][-3:-1] == [["STATE_STORE_INVALID_CONFIG_AFTER_RESTART"]] * 2


def test_a_variable_that_is_not_declared_for_a_while_keeps_its_values(spark, tmp_path):
    changes = [Change(kind, A, A) for kind in ("value", "list", "map", "value")]
    told = {}
    with conf(spark, ROCKS):
        for side in SIDES:
            restarts = Restarts(spark, tmp_path / side, side, changes)
            variables = [change.declared(False) for change in changes]
            flow = restarts.flow
            alone = ChangedFlow(spark, flow.folder, side, variables[:1]).run("state")
            flow.feed(2, [{"k": "a", "other": "a", "what": ""}])
            told[side] = alone, ChangedFlow(spark, flow.folder, side, variables).run("state")
    assert told["ours"] == told["spark"]
    assert [row[1][3:] for row in told["ours"][1]] == ["(70000,)", "[(70000,)]", "[(('entry',), (70000,))]", "(70000,)"]
