import io

from rich.console import Console

from floodplain.cli.progress import LINE_EVERY_S, RunProgress
from floodplain.clock import ManualClock


def test_without_a_terminal_a_line_comes_now_and_then():
    clock, out = ManualClock(), io.StringIO()
    with RunProgress("verifying", clock, Console(file=out)) as progress:
        progress(1, 100, 10)
        clock.advance_ms(int(LINE_EVERY_S * 1000))
        progress(2, 100, 2_000_000)
        progress(3, 100, 3_000_000)
    assert out.getvalue() == "verifying: 2 of 100 runs, 2.0 MB\n"


def test_on_a_terminal_there_is_a_bar():
    out = io.StringIO()
    with RunProgress("verifying", ManualClock(), Console(file=out, force_terminal=True, width=100)) as progress:
        progress(3, 7, 5_000)
        progress._bar.refresh()
    assert "verifying 5.0 kB" in out.getvalue()
    assert "3/7" in out.getvalue()
