"""Makes commands report wrong words in plain sentences, and take numbers as numbers."""

import math
from typing import Any

import typer

from gputile.cli.parsing.old_options import CommandWithOldOptions
from gputile.cli.parsing.usage import PlainUsage


class Command(PlainUsage, CommandWithOldOptions):
    """A command as people meet it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            typer.BadParameter: a value is none that its option takes, or not a number where it says so (nan).
        """
        rest = super().parse_args(ctx, args)
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and math.isnan(value):  # within every range, since it is less than no bound
                raise typer.BadParameter("'nan' is not a number.", ctx, option)
        return rest
