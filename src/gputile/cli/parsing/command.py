"""Makes commands report wrong words in plain sentences, and take numbers as numbers."""

import math
from typing import Any

import typer
from typer.core import TyperCommand

from gputile.cli.parsing.usage import PlainUsage


class Command(PlainUsage, TyperCommand):
    """A command as people meet it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            typer.BadParameter: a value is none that its option takes, not a number where it says so (nan), or not the
                name of a file (the empty text; as the kubeconfig's it counts as left out, as kubectl has it).
        """
        rest = super().parse_args(ctx, args)
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and math.isnan(value):  # within every range, since it is less than no bound
                raise typer.BadParameter("'nan' is not a number.", ctx, option)
            if value == "" and option.type.name in ("path", "file"):
                if option.name != "kubeconfig":
                    raise typer.BadParameter("'' is not the name of a file or directory.", ctx, option)
                ctx.params[option.name] = None
        return rest
