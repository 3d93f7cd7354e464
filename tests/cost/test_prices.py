import json

import pytest

from floodplain.errors import BadInput
from floodplain.prices import AMAZON, AZURE, GOOGLE, NOTHING, Prices, prices_at
from floodplain.tier_use import TierUse

OWN = {"name": "ours", "date": "2026-11", "put": 1, "get": 2, "list": 3, "head": 4, "delete": 5.5, "gb_month": 6}


def test_requests_are_priced_by_the_thousand_and_bytes_by_the_gb():
    prices = Prices(**OWN, read_gb=7, written_gb=8)
    use = TierUse(puts=1000, gets=2000, lists=1, heads=10, deletes=2, read_bytes=1 << 30, written_bytes=1 << 29)
    assert prices.of(use) == pytest.approx(1 + 4 + 0.003 + 0.04 + 0.011 + 7 + 4)
    assert AMAZON.of(TierUse(puts=1000, lists=1000, gets=10_000, deletes=99)) == pytest.approx(0.005 + 0.005 + 0.004)


def test_only_object_stores_are_paid_for():
    uses = {
        "counter": {"object": TierUse(puts=1000), "disk": TierUse(gets=10**9)},
        "driver.commit": {"object": TierUse(puts=1000)},
    }
    assert AMAZON.of_uses(uses) == pytest.approx(0.01)
    assert AMAZON.of_uses({}) == 0


@pytest.mark.parametrize(
    ("url", "listed"),
    [("s3://b/x", AMAZON), ("gs://b/x", GOOGLE), ("az://b/x", AZURE), ("file:///srv", NOTHING), ("memory://x", NOTHING)],
)
def test_list_prices_go_by_the_provider_and_own_ones_before_them(url, listed):
    assert prices_at(url) == listed
    own = Prices(**OWN)
    assert prices_at(url, own) == (NOTHING if listed is NOTHING else own)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_table_of_ones_own_is_read(tmp_path, suffix):
    text = json.dumps(OWN) if suffix == "json" else "\n".join(f"{name} = {json.dumps(value)}" for name, value in OWN.items())
    (tmp_path / f"prices.{suffix}").write_text(text)
    assert Prices.load(tmp_path / f"prices.{suffix}") == Prices(**OWN)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"put": -1}, "put is -1"),
        ({"get": "much"}, "get is 'much'"),
        ({"get": float("nan")}, "get is nan"),
        ({"list": True}, "list is True"),
        ({"name": 3}, "name is 3"),
        ({"puts": 3}, "have puts, which is not known"),
        ({"put": None}, "put is None"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_by_name(tmp_path, change, told):
    (tmp_path / "prices.json").write_text(json.dumps({**OWN, **change}))
    with pytest.raises(BadInput, match=told) as caught:
        Prices.load(tmp_path / "prices.json")
    assert "prices.json" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(BadInput, match=r"prices\.json"):
        Prices.load(tmp_path / "prices.json")
    with pytest.raises(BadInput, match=r"cannot read the prices in .*missing\.toml"):
        Prices.load(tmp_path / "missing.toml")
