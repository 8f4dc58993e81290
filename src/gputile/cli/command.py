"""A command whose options are judged in plain words, and whose numbers are numbers."""

import math
from typing import Any, Final

import typer

from gputile.cli.old_options import CommandWithOldOptions

_PLAIN: Final = {
    "is not a valid int range.": "is not a whole number.",
    "is not a valid int.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
    "is not a valid float.": "is not a number.",
}
"""What the parser of options says of its types, and what people say."""


class Command(CommandWithOldOptions):
    """A command as people meet it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            typer.BadParameter: a value is none that its option takes, or not a number where it says so (nan).
        """
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            for said, plain in _PLAIN.items():
                error.message = error.message.replace(said, plain)
            raise
        for option in self.params:
            value = ctx.params.get(option.name)
            if isinstance(value, float) and math.isnan(value):  # within every range, since it is less than no bound
                raise typer.BadParameter("'nan' is not a number.", ctx, option)
        return rest
