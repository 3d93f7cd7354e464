from pathlib import Path

import pytest

from floodplain.tiers.cache.policy import Entry, Frequent, Lru, policy_of
from floodplain.tiers.cache.sketch import Sketch, file_bytes, width_for

ENTRIES = [Entry("a", 10, used_ns=3, frequency=1), Entry("b", 10, used_ns=1, frequency=5), Entry("c", 10, used_ns=2, frequency=1)]


def test_orders() -> None:
    assert "".join(entry.key for entry in Lru().order(ENTRIES)) == "bca"
    assert "".join(entry.key for entry in Frequent().order(ENTRIES)) == "cab"


def test_admission() -> None:
    assert Lru().admits(0, ENTRIES)
    assert Frequent().admits(2, [ENTRIES[0], ENTRIES[2]])
    assert not Frequent().admits(1, [ENTRIES[0]])
    assert not Frequent().admits(2, ENTRIES)


@pytest.mark.parametrize(("name", "kind"), [("lru", Lru), ("frequency", Frequent)])
def test_names(name: str, kind: type) -> None:
    assert type(policy_of(name)) is kind


def test_sketch_counts_and_is_shared(tmp_path: Path) -> None:
    one, two = Sketch(tmp_path / "s", 1024), Sketch(tmp_path / "s", 1024)
    for _ in range(3):
        one.add("a")
    two.add("a")
    two.add("b")
    assert (one.estimate("a"), two.estimate("b"), one.estimate("c")) == (4, 1, 0)


def test_sketch_never_counts_too_little_and_rarely_too_much(tmp_path: Path) -> None:
    sketch = Sketch(tmp_path / "s", 1024)
    for n in range(1000):
        for _ in range(n % 4):
            sketch.add(f"key {n}")
    over = [sketch.estimate(f"key {n}") - n % 4 for n in range(1000)]
    assert min(over) == 0
    assert sum(over) < 100


def test_sketch_stops_counting_and_forgets(tmp_path: Path) -> None:
    sketch = Sketch(tmp_path / "s", 1024)
    for _ in range(100):
        sketch.add("hot")
    sketch.age()
    assert sketch.estimate("hot") == 15
    for n in range(8 * 1024):
        sketch.add(f"cold {n % 500}")
    sketch.age()
    assert sketch.estimate("hot") == 7
    sketch.age()
    assert sketch.estimate("hot") == 7


def test_sketch_size_follows_the_cache() -> None:
    assert width_for(1) == width_for(1 << 20) == 1024
    assert file_bytes(width_for(1 << 50)) <= (4 << 20) + 8
    assert width_for(10 << 30) >= (10 << 30) // (64 << 10)
