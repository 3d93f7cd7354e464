"""Every call on a state that cannot be used is refused in the words of Spark's own clients. No Spark runs."""

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.list_state_client import ListStateClient
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.value_state_client import ValueStateClient

from floodplain.errors import UserError
from tests.spark.transform_with_state.programs import LONG, Wrong
from tests.spark.transform_with_state.test_kit import kit, row

KINDS = {"v": "Value", "l": "List", "m": "Map"}
CALLS = [
    *("v.exists()", "v.get()", "v.update((1,))", "v.clear()"),
    *("l.exists()", "l.put([(1,)])", "l.appendValue((1,))", "l.appendList([(1,)])", "l.clear()"),
    *("m.exists()", "m.getValue((1,))", "m.containsKey((1,))", "m.updateValue((1,), (1,))", "m.removeKey((1,))", "m.clear()"),
]
ITERATED = ["l.get()", "m.iterator()", "m.keys()", "m.values()"]


class Answering(StatefulProcessorApiClient):
    """Spark's client, with a server that gives one answer to all requests."""

    def __init__(self, answer: tuple[int, str, bytes]) -> None:
        self._answer = answer
        self.pickleSer = CPickleSerializer()

    def _send_proto_message(self, message: bytes) -> None:
        pass

    def _receive_proto_message(self) -> tuple[int, str, bytes]:
        return self._answer


def as_spark_tells(call: str, why: str) -> str:
    client = Answering((1, why, b""))
    states = {
        "v": ValueState(ValueStateClient(client, LONG), "v"),
        "l": ListState(ListStateClient(client, LONG), "l"),
        "m": MapState(MapStateClient(client, LONG, LONG), "m"),
    }
    with pytest.raises(PySparkRuntimeError) as told:
        eval(call, states)
    return str(told.value)


def refusal(**code: str) -> str:
    with pytest.raises(UserError) as refused:
        kit(Wrong(**code), static=True).epoch([row("u")])
    assert isinstance(refused.value.__cause__, PySparkRuntimeError)
    return str(refused.value.__cause__)


@pytest.mark.parametrize("call", CALLS)
def test_on_a_deleted_state(call):
    deleted = f"handle.deleteIfExists({call[0]!r})"
    assert refusal(init=deleted, rows=call) == as_spark_tells(call, f"{KINDS[call[0]]} state {call[0]} is not initialized.")


@pytest.mark.parametrize("call", ITERATED)
def test_a_deleted_state_has_no_elements_and_no_entries(call):
    kit(Wrong(init=f"handle.deleteIfExists({call[0]!r})", rows=f"assert list({call}) == []")).epoch([row("u")])


@pytest.mark.parametrize("call", CALLS)
def test_without_a_key(call):
    why = f"[INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={call[0]} SQLSTATE: XX000"
    assert refusal(close=f"if self.in_task: {call}") == as_spark_tells(call, why)


@pytest.mark.parametrize("call", CALLS)
def test_on_the_driver(call):
    condition = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
    operation = f"{call[0]}.{call[2:].partition('(')[0]}"
    why = f"[{condition}] Failed to perform stateful processor operation={operation} with invalid handle state=PRE_INIT."
    with pytest.raises(PySparkRuntimeError) as refused:
        kit(Wrong(init=call))
    assert str(refused.value) == as_spark_tells(call, f"{why} SQLSTATE: 42802")


@pytest.mark.parametrize("call", ["v.update((7,))", "l.put([(7,)])", "m.updateValue((7,), (7,))"])
def test_a_state_made_anew_is_that_of_all_its_objects(call):
    get = {"v": "getValueState('v', LONG)", "l": "getListState('l', LONG)", "m": "getMapState('m', LONG, LONG)"}[call[0]]
    anew = f"handle.deleteIfExists({call[0]!r}); self.anew = handle.{get}"
    kit(Wrong(init=anew, rows=f"{call}; assert self.anew.exists() and {call[0]}.exists()"), static=True).epoch([row("u")])


def test_a_deleted_name_may_be_that_of_another_kind():
    anew = "handle.deleteIfExists('v'); self.anew = handle.getListState('v', LONG)"
    kit(Wrong(init=anew, rows="self.anew.put([(7,)]); assert list(self.anew.get()) == [(7,)]"), static=True).epoch([row("u")])
    assert refusal(init=anew, rows="v.get()") == "Error getting value state: Value state v is not initialized."
