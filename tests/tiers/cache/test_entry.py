import pyarrow as pa
import pytest

from floodplain.tiers.cache.entry import key_of, stem_of, trailer, unsealed

DATA = pa.py_buffer(b"some bytes" * 100)
WHO = ("s3://bucket/x", "runs/a", "0-1000")


def sealed(*who: str) -> pa.Buffer:
    return pa.py_buffer(DATA.to_pybytes() + trailer(*who, DATA))


@pytest.mark.parametrize("verify", [True, False])
def test_comes_back_for_its_owner_only(verify: bool) -> None:
    assert unsealed(sealed(*WHO), *WHO, verify=verify).equals(DATA)
    others = [("s3://bucket/y", "runs/a", "0-1000"), ("s3://bucket/x", "runs/b", "0-1000"), ("s3://bucket/x", "runs/a", "1-1000")]
    others += [("s3://bucket/x\0runs", "a", "0-1000"), ("", "", "")]
    for other in others:
        assert unsealed(sealed(*other), *WHO, verify=verify) is None
        assert unsealed(sealed(*WHO), *other, verify=verify) is None


def test_every_bit_counts() -> None:
    good = sealed(*WHO).to_pybytes()
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        assert unsealed(pa.py_buffer(bytes(bad)), *WHO, verify=True) is None
    for length in range(len(good)):
        assert unsealed(pa.py_buffer(good[:length]), *WHO, verify=True) is None


def test_keys_of_one_blob_share_a_stem() -> None:
    assert key_of(*WHO).startswith(stem_of(*WHO[:2]) + ".")
    assert len({stem_of("a", "b"), stem_of("a", "c"), stem_of("ab", ""), stem_of("", "ab")}) == 4
