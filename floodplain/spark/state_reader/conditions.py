"""What readers of state refuse, with the error conditions that Spark's own readers have for it."""

from collections.abc import Sequence

from pyspark.errors import PySparkRuntimeError


def invalid_value(option: str, why: str, kind: str = "WITH_MESSAGE") -> PySparkRuntimeError:
    return _condition(f"STDS_INVALID_OPTION_VALUE.{kind}] Invalid value for source option '{option}': {why}", "42616")


def negative_value(option: str) -> PySparkRuntimeError:
    return invalid_value(option, "cannot be negative.", "IS_NEGATIVE")


def empty_value(option: str) -> PySparkRuntimeError:
    return invalid_value(option, "cannot be empty.", "IS_EMPTY")


def unspecified(option: str, hint: str = "") -> PySparkRuntimeError:
    return _condition(f"STDS_REQUIRED_OPTION_UNSPECIFIED] '{option}' must be specified.{hint}", "42601")


def conflict(options: Sequence[str]) -> PySparkRuntimeError:
    named = ", ".join(f"'{option}'" for option in options)
    text = f"STDS_CONFLICT_OPTIONS] The options [{named}] cannot be specified together. Please specify the one."
    return _condition(text, "42613")


def no_batch(location: str, why: str) -> PySparkRuntimeError:
    return _condition(
        f"STDS_COMMITTED_BATCH_UNAVAILABLE] No committed batch found, checkpoint location: {location}. Ensure that the query has "
        f"run and committed any microbatch before stopping. ({why})",
        "KD006",
    )


def no_schema(location: str, why: str) -> PySparkRuntimeError:
    return _condition(
        f"STDS_FAILED_TO_READ_STATE_SCHEMA] Failed to read the state schema of the checkpoint location {location}: {why}.",
        "42K03",
    )


def no_partition(partition: int, operator: int, location: str) -> PySparkRuntimeError:
    return _condition(
        "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND] An error occurred during loading state. Partition id "
        f"{partition} not found for state of operator {operator} at {location}.",
        "58030",
    )


def _condition(text: str, state: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(f"[{text} SQLSTATE: {state}")
