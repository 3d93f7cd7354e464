"""A store is made in nothing, or in what one that was cut short has left; never among things of others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodplain.clock import SystemClock, SystemRandomness
from floodplain.errors import BadInput, FloodplainError
from floodplain.metrics import Counters
from floodplain.settings import StoreSettings
from floodplain.store.store import Store
from floodplain.tiers import paths
from floodplain.tiers.memory import MemoryBlobs, Space
from floodplain.tiers.open import open_blobs
from floodplain.tiers.vacancy import check_vacant

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,20}", fullmatch=True)


@pytest.mark.parametrize("kind", ["file", "folder", "hidden"])
def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_is(tmp_path, kind):
    if kind == "folder":
        (tmp_path / "my data").mkdir()
    else:
        (tmp_path / ("my data" if kind == "file" else ".my data")).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=r"holds something else than a Floodplain store: \.?my data\. Choose an empty folder"):
        Store.open(tmp_path, create=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_there_is_named_up_to_some(tmp_path):
    for number in range(8):
        (tmp_path / f"file-{number}").touch()
    with pytest.raises(BadInput, match=r"file-0, file-1, file-2, file-3, file-4 and 3 more"):
        Store.open(tmp_path, create=True)


def test_a_file_is_refused(tmp_path):
    (tmp_path / "state").write_text("mine")
    with pytest.raises(FloodplainError, match=r"state is a file"):
        Store.open(tmp_path / "state", create=True)
    assert (tmp_path / "state").read_text() == "mine"


@pytest.mark.parametrize("left", [[], ["tmp/half"], ["probe/some", "tmp/half"], ["lost+found/"], ["checkpoint/offsets/0"]])
def test_what_a_start_that_was_cut_short_has_left_does_not_matter(tmp_path, left):
    for name in left:
        path = tmp_path / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    store = Store.open(tmp_path / "state", create=True)
    assert Store.open(tmp_path / "state", create=True).head.store == store.head.store


def test_a_store_is_opened_again_whatever_was_put_beside_it(tmp_path):
    store = Store.open(tmp_path, create=True)
    (tmp_path / "notes").touch()
    assert Store.open(tmp_path, create=True).head.store == store.head.store


def test_a_store_that_has_lost_its_first_object_is_no_place_for_another(tmp_path):
    with Store.open(tmp_path, create=True).writer("me"):
        pass
    (tmp_path / paths.FORMAT).unlink()
    with pytest.raises(BadInput, match=r"has log of a store, and not its object 'format': restore that"):
        Store.open(tmp_path, create=True)


@given(names=st.sets(NAMES, min_size=1, max_size=6), among=st.booleans())
def test_on_any_tier_a_place_is_taken_if_a_name_there_is_not_ours(names, among):
    blobs = MemoryBlobs("memory://test", Counters(), Space())
    ours = {"probe", "tmp", "checkpoint", "lost+found", ".DS_Store"}
    for name in names:
        if name != "tmp":
            blobs.put(f"{name}/inside" if among else name, b"x")
    if (paths.FORMAT in names and not among) or names <= ours:
        check_vacant(blobs)
    else:
        with pytest.raises(BadInput, match="memory://test"):
            check_vacant(blobs)


def test_an_object_store(s3_server):
    settings = StoreSettings(cache=None)

    def blobs(path: str):
        given = {"options": s3_server.options, "clock": SystemClock(), "randomness": SystemRandomness(), "counters": Counters()}
        return open_blobs(f"s3://{s3_server.bucket}/{path}", settings, **given)

    taken = blobs("vacancy")
    check_vacant(taken)
    taken.put("mine/deep/file", b"x")
    taken.put("other", b"x")
    with pytest.raises(BadInput, match=r"vacancy holds something else than a Floodplain store: mine, other\."):
        check_vacant(taken)
    check_vacant(blobs("vacan"))
