"""A ratio of paired measurements and its confidence interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
SEED = 7


class Ratio(NamedTuple):
    """The geometric mean of the rounds' ratios, and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


def now_vs_base(now_s: Sequence[float], base_s: Sequence[float]) -> Ratio:
    """The throughput of ``now`` divided by that of ``base``: above 1 if it is faster.

    Each round is a pair that ran one after the other, so a slow phase of the machine affects both. The interval is a bootstrap
    over rounds. Requires: as many rounds of both, at least two.
    """
    if len(now_s) != len(base_s) or len(now_s) < 2:
        raise ValueError(f"{len(now_s)} and {len(base_s)} rounds: a ratio needs the same number of both, and at least two")
    logs = np.log(np.asarray(base_s) / np.asarray(now_s))
    draws = np.random.default_rng(SEED).choice(logs, (DRAWS, len(logs))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Ratio(math.exp(logs.mean()), math.exp(low), math.exp(high))
