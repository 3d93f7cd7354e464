from datetime import timedelta

import pytest

from floodplain.errors import BadInput
from floodplain.state.durations import to_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1 hour", 3_600_000),
        ("10 minutes", 600_000),
        ("500 ms", 500),
        ("500ms", 500),
        ("1 hour 30 minutes", 5_400_000),
        ("1 hour, 30 min", 5_400_000),
        ("1.5 s", 1_500),
        (" 2 Days ", 172_800_000),
        ("1w", 604_800_000),
        ("interval 5 seconds", 5_000),
        ("1500 microseconds 500 us", 2),
        ("0 s", 0),
        (timedelta(minutes=1, milliseconds=1), 60_001),
    ],
)
def test_what_is_a_length_of_time(text, ms):
    assert to_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hour",
        "1",
        "1 month",
        "1 year",
        "-1 hour",
        "1 hour later",
        "1.5 ms",
        "one hour",
        5,
        None,
        timedelta(-1),
        "9" * 30 + " d",
    ],
)
def test_what_is_not(text):
    with pytest.raises(BadInput):
        to_ms(text)


def test_the_error_names_what_it_was_for():
    with pytest.raises(BadInput, match=r"time to live '3 moons'.*moons"):
        to_ms("3 moons", "time to live")
