"""The whole state of a stock checkpoint as one DataFrame: the key columns, and one column for each state variable and the timers.

A row has one of these columns, and null in all others. Elements of a list come as one array, so that they stay in order.
"""

from collections.abc import Iterator
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 — as every PySpark user knows it
from pyspark.sql.types import StructType

from floodplain.spark.checkpoint_import.state_writer import ENDS, KEY, TIME, VALUE
from floodplain.spark.checkpoint_import.stock_operator import StockOperator, StockVariable
from floodplain.state.tables import free_name


def column_names(operator: StockOperator) -> dict[str, str]:
    """State, as tables call it, → its column; none of them is that of a key."""
    states = [*operator.stored_names.values(), *filter(None, [operator.timer_state])]
    return {state: free_name(f"state_{number}", operator.keys.names) for number, state in enumerate(states)}


def state_rows(operator: StockOperator) -> DataFrame:
    """Requires: the operator has state variables or timers."""
    return reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), _parts(operator))


def _parts(operator: StockOperator) -> Iterator[DataFrame]:
    names, columns = operator.stored_names, column_names(operator)
    for variable in operator.variables:
        yield _named(variable.rows, operator.keys, _packed(variable), columns[names[variable.name]])
    if operator.timers is not None:
        time = F.struct(F.col("expiration_timestamp_ms").alias(TIME))
        yield _named(operator.timers, operator.keys, time, columns[operator.timer_state or ""])


def _named(rows: DataFrame, keys: StructType, packed: Column, name: str) -> DataFrame:
    return rows.select(*[F.col("key").getField(key).alias(key) for key in keys.names], packed.alias(name))


def _packed(variable: StockVariable) -> Column:
    """Value and end, as the state keeps them."""
    declared = variable.declared
    timed, values = bool(declared.ttl_ms), declared.schemas[-1]
    match declared.kind:
        case "list":
            return F.transform("list_value", lambda element: F.struct(*_kept(element, values, timed=timed)))
        case "map":
            key = _bare(F.col("user_map_key"), declared.schemas[0]).alias(KEY)
            return F.struct(key, *_kept(F.col("user_map_value"), values, timed=timed))
        case _:
            return F.struct(*_kept(F.col("value"), values, timed=timed))


def _kept(stored: Column, schema: StructType, *, timed: bool) -> list[Column]:
    if not timed:
        return [_bare(stored, schema).alias(VALUE)]
    return [_bare(stored.getField("value"), schema).alias(VALUE), stored.getField("ttlExpirationMs").alias(ENDS)]


def _bare(stored: Column, schema: StructType) -> Column:
    """A struct of one field is stored as that field."""
    return stored.getField(schema.names[0]) if len(schema) == 1 else stored
