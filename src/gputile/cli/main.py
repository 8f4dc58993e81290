"""Starts the programs ``gputile``, ``kubectl gputile`` and ``kubectl inspect cgpu``.

Until ``main`` has said what an interrupt does, an interrupt shows a traceback. So this module imports only what the
interpreter has in it or has loaded already: ``signal``, ``typing`` and ``contextlib`` take longer than all of the rest.
"""

import _signal as signal  # type: ignore[import-not-found]  # what the module signal wraps
import codecs
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INTERRUPTED = 128 + signal.SIGINT
NOT_WRITTEN = 1  # ExitCode.FAILED, whose module loads enum
_COMPLETING = "_GPUTILE_COMPLETE"
_SETTING_UP = ("--install-completion", "--show-completion")
_USUAL = ("utf-8", "ascii", "iso8859-1")
_KEY_LOG = "SSLKEYLOGFILE"
_CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF)


def main() -> None:
    """Run ``gputile``."""
    _interruptible()
    if sys.argv[1:] == ["--version"]:
        from gputile.version import VERSION

        _run(lambda: os.write(1, f"gputile {VERSION}\n".encode()))
    elif sys.argv[1:2] and sys.argv[1] in _SETTING_UP:
        _run(_set_up_completion)
    else:
        _complete_only_words()
        from gputile.cli.app import app

        _run(lambda: app(prog_name="gputile"))


def kubectl_gputile() -> None:
    """Run ``kubectl gputile``: kubectl finds it by the name of this program, ``kubectl-gputile``."""
    _interruptible()
    from gputile.cli.app import kubectl_app

    _run(lambda: kubectl_app(prog_name="kubectl gputile"))


def kubectl_inspect_cgpu() -> None:
    """Run ``kubectl inspect cgpu``, as ``kubectl-inspect-cgpu``."""
    _interruptible()
    from gputile.cli.app import plain
    from gputile.cli.commands.inspect import inspect

    _run(lambda: plain(inspect, "inspect")(prog_name="kubectl inspect cgpu"))


def kubectl_complete_gputile() -> None:
    """Complete ``kubectl gputile``, as ``kubectl_complete-gputile``."""
    _interruptible()
    from gputile.cli.app import kubectl_app
    from gputile.cli.completion import complete

    _run(lambda: complete(kubectl_app, sys.argv[1:]))


def kubectl_complete_inspect_cgpu() -> None:
    """Complete ``kubectl inspect cgpu``, as ``kubectl_complete-inspect-cgpu``."""
    _interruptible()
    from gputile.cli.app import plain
    from gputile.cli.commands.inspect import inspect
    from gputile.cli.completion import complete

    _run(lambda: complete(plain(inspect, "inspect"), sys.argv[1:]))


def _interruptible() -> None:
    """Let SIGINT end the process at once and without a word; the shell then says 130.

    Python's own way waits for the end of a call into a library, and shows a traceback where nobody catches it. Process
    1 of a container is the exception: the kernel gives it no signal that it does not handle.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # whoever started the process has it ignored
    if os.getpid() == 1:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    else:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _complete_only_words() -> None:
    """Forget that a shell asks for completion, or for its script, where the variable was exported by mistake.

    A shell says what to complete, and asks for the script without another word.
    """
    words = "_TYPER_COMPLETE_ARGS" in os.environ  # of zsh, fish and PowerShell
    words = words or ("COMP_WORDS" in os.environ and os.environ.get("COMP_CWORD", "").isdecimal())
    asked = os.environ.get(_COMPLETING, "")
    by_a_shell = (asked.startswith("complete_") and words) or (asked.startswith("source_") and not sys.argv[1:])
    if asked and not by_a_shell:
        del os.environ[_COMPLETING]


def _set_up_completion() -> None:
    """Print or install the script of the current shell; say in a line why that cannot be."""
    from gputile.cli.app import app
    from gputile.cli.output.exit_codes import ExitCode

    if sys.argv[2:]:
        _say(f"error: {sys.argv[1]} takes no other word: it is for the shell that it runs in\n")
        sys.exit(ExitCode.BAD_INPUT)
    try:
        app(prog_name="gputile")
    except UnicodeDecodeError as error:
        why = f"the shell's settings are not UTF-8 text: {error.reason} at byte {error.start}"
    except OSError as error:
        if error.filename is None:
            raise  # of the output
        why = f"{error.filename}: {error.strerror}"
    sys.exit(f"error: completion cannot be installed: {why}; gputile --show-completion prints the script")


def _without_broken_key_log() -> None:
    """Forget a key log that cannot be written, and say so: aiohttp has ``ssl`` open it as soon as it is loaded."""
    path = os.environ.get(_KEY_LOG)
    if not path:
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600))
    except OSError as error:
        del os.environ[_KEY_LOG]
        _say(f"note: {_KEY_LOG} is ignored: {path}: {error.strerror}\n")


def _say(text: str) -> None:
    """Write to the standard error, if anything takes it."""
    import contextlib

    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace"))


def _fill_streams() -> None:
    """Put something in the place of standard streams that were closed, which takes no writing and gives nothing.

    Else a file or a connection that is opened gets the number of the stream. Python writes nothing to a closed standard
    output, and says nothing of that.
    """
    for number in (0, 1, 2):
        try:
            os.set_blocking(number, True)  # a parent may have left it otherwise, and much output would be cut
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # it is there until the end


def _write_at_once() -> None:
    """Have a standard stream write UTF-8 where its encoding, as ``idna``, keeps to itself what it is given."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        name = stream.encoding.lower()
        if name not in _USUAL and not codecs.getincrementalencoder(name)().encode("a\n"):
            stream.reconfigure(encoding="utf-8")


def _run(program: "Callable[[], Any]") -> None:
    """Run a program; where its output cannot be written, or memory is short, say so in a line."""
    _fill_streams()
    _write_at_once()
    try:
        _without_broken_key_log()
        program()
    except BrokenPipeError:
        sys.exit(NOT_WRITTEN)  # a reader that has seen enough is no error
    except MemoryError:
        sys.exit("error: there is not enough memory for this")
    except OSError as error:
        if error.errno not in _CANNOT_WRITE or error.filename is not None:
            raise
        import contextlib

        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: cannot write the output: {os.strerror(error.errno)}\n")
            sys.stderr.flush()
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed before Python began
            with contextlib.suppress(OSError):
                stream.close()  # or Python tries again when it ends, and complains again
        sys.exit(NOT_WRITTEN)
