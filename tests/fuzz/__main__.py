"""One target under atheris: ``python -m tests.fuzz TARGET [libFuzzer's options] CORPUS``; see ``tests.soak fuzz``."""

import sys

import atheris

with atheris.instrument_imports(include=["gputile"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough; ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
