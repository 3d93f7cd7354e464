import numpy as np
import pytest

from floodplain.errors import BadInput
from floodplain.state.positions import MAX_EPOCH, MAX_ORDINAL, pack, unpack


@pytest.mark.parametrize("epoch", [0, 1, 12_345, MAX_EPOCH])
def test_there_and_back(epoch):
    ordinals = np.array([0, 1, 7, MAX_ORDINAL])
    epochs, found = unpack(pack(epoch, ordinals))
    assert epochs.tolist() == [epoch] * 4
    assert found.tolist() == ordinals.tolist()


def test_the_order_of_positions_is_the_order_of_appending():
    appended = np.concatenate([pack(epoch, [0, 1, MAX_ORDINAL]) for epoch in (0, 1, 2, MAX_EPOCH)])
    assert (appended[1:] > appended[:-1]).all()
    assert appended.dtype == np.uint64
    assert int(appended[-1]) == (1 << 64) - 1


@pytest.mark.parametrize(("epoch", "ordinals"), [(-1, [0]), (MAX_EPOCH + 1, [0]), (1, [-1]), (1, [MAX_ORDINAL + 1])])
def test_what_does_not_fit_is_refused(epoch, ordinals):
    with pytest.raises(BadInput):
        pack(epoch, ordinals)


def test_nothing_to_pack():
    assert len(pack(3, [])) == 0
