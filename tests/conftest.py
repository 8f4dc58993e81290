"""Settings for every test."""

import gc
import os
import secrets
import signal
from collections.abc import Generator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile(
    "test", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", settings.get_profile("test"), max_examples=20)
settings.register_profile("soak", settings.get_profile("test"), max_examples=500)
settings.load_profile("test")  # another one by --hypothesis-profile

SEED = "--hypothesis-seed"
HANGS_S = 300.0  # what has not come true by then never does, however busy the machine is


def examples(count: int) -> int:
    """Return how many examples a test of ``count`` tries: a fifth of them in `make quick`, five times in `make soak`.

    Tests that name no number go by the profile.
    """
    return max(min(count, 10), count * settings().max_examples // 100)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each run a seed of its own that it can name, before hypothesis asks for one; and its programs all signals.

    Under nohup, or behind an ampersand in a script, signals are ignored, and programs inherit that, but no handler.
    """
    if config.getoption(SEED) is None:
        config.option.hypothesis_seed = str(secrets.randbits(64))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignored)


def _ignored(number: int, frame: FrameType | None) -> None:
    """Do nothing on a signal."""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a case after the beginning of a long text: programs inherit the name, and take at most 128 KiB of it."""
    return f"{val[:60]!a}-{len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at thousands of collected tests, while they come and ever after.

    It is a third of the time that collecting takes, and a tenth of what the tests take.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_terminal() -> None:
    """Have programs print as to a pipe, wherever the tests run: workers of pytest-xdist have 80 COLUMNS.

    Where readline is imported it gives them to the C library alone, whose environment programs inherit. Nor is their
    output unbuffered, as in many containers: a stream that cannot be written then fails at another place.
    """
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
        os.unsetenv(name)
    os.environ["LC_ALL"] = "C.UTF-8"
    os.environ["TERM"] = "xterm-256color"  # where the tests run it may be dumb, and then nothing is drawn


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run tests that are coroutines, marked ``anyio``, on asyncio: an event loop of its own for each test."""
    return "asyncio"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how chance chose, where something failed: the same seed chooses the same again."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"Tests that chance had a part in fail again with {SEED}={config.getoption(SEED)}")
