"""A pipeline on a state in a directory, without Spark, and its state read by the classes that Spark's workers run."""

from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict

from floodplain.metrics import Counters
from floodplain.spark.state_reader.metadata_source import StateMetadataSource
from floodplain.spark.state_reader.state_source import StateStoreSource
from floodplain.testing.pipeline_kit import PipelineKit
from floodplain.tiers.blobs import Blobs
from floodplain.tiers.open import open_blobs


class DirectoryKit(PipelineKit):
    def __init__(self, folder: Path, *args: Any, **kwargs: Any) -> None:
        self.folder = folder
        super().__init__(*args, **kwargs)

    def _blobs(self) -> Blobs:
        return open_blobs(str(self.folder), self._settings, clock=self._clock, randomness=self._randomness, counters=Counters())

    def read(self, **options: object) -> list[dict[str, Any]]:
        return read_state(path=self.folder, **options)


def source_of(kind: type, **options: object) -> Any:
    return kind(CaseInsensitiveDict({name: str(value) for name, value in options.items()}))


def rows_of(source: Any) -> list[Any]:
    reader = source.reader(source.schema())
    return [batch for partition in reader.partitions() for batch in reader.read(partition)]


def read_state(**options: object) -> list[dict[str, Any]]:
    return [row for batch in rows_of(source_of(StateStoreSource, **options)) for row in batch.to_pylist()]


def read_metadata(**options: object) -> list[tuple[Any, ...]]:
    source = source_of(StateMetadataSource, **options)
    return list(source.reader(source.schema()).read(None))
