"""Reads options by their former names, which the help no longer shows, and says so on stderr."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from typer.core import TyperCommand

from gputile.cli.output.streams import note

OLD_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "agent": {"--metrics-port": "--health-port"},
    "controller": {"--namespace": "--lease-namespace"},
    "nodepool": {"--cluster": "--cluster-name"},
    "status": {"--namespace": "--installed-in", "-n": "--installed-in"},
    "webhook": {"--name": "--dns-name", "--namespace": "--installed-in"},
}
"""By command: which name an option has now. The old ones go with the second minor version after 0.1."""


class CommandWithOldOptions(TyperCommand):
    """A command that reads old names of its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; say once of each old name what it is called now."""
        renamed = OLD_OPTIONS.get(self.name or "", {})
        told = set[str]()
        words = list(_renamed(args, renamed, told))
        if not ctx.resilient_parsing:  # as while a shell completes
            for old in sorted(told):
                note(f"{old} is called {renamed[old]} now; the old name will go in version 0.3")
        return super().parse_args(ctx, words)


def _renamed(words: Iterable[str], renamed: Mapping[str, str], told: set[str]) -> Iterator[str]:
    """Yield the arguments with the names of today; add the old ones among them to ``told``."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield word
            break
        old = next((each for each in renamed if _names(word, each)), None)
        if old is None:
            yield word
        else:
            told.add(old)
            given = word[len(old) :].removeprefix("=")
            yield renamed[old] + (f"={given}" if len(word) > len(old) else "")
    yield from rest


def _names(word: str, option: str) -> bool:
    """Return whether an argument names the option; a value may follow a long name after "=", a short one at once."""
    return word == option or word.startswith(option if len(option) == 2 else f"{option}=")
