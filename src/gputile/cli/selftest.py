"""``gputile selftest``: proof on this machine that isolation holds, and what its driver has that is not known."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gputile.cli.output import Output, fail, write, write_json

if TYPE_CHECKING:
    from gputile.isolation.memorycheck import MemoryRow

MISSED = 1
SIMULATED_MIB, SIMULATED_LIMIT_MIB = 4096, 512

selftest = typer.Typer(help="Prove on this machine that isolation holds.", no_args_is_help=True)


@selftest.command("isolation")
def isolation(
    fake_driver: Annotated[
        bool, typer.Option("--fake-driver", help="On a simulated GPU: no driver and no GPU are needed.")
    ] = False,
    limit_mib: Annotated[
        int, typer.Option("--limit-mib", min=64, metavar="MIB", help="The limit to hold, on a real card.")
    ] = 2048,
    output: Annotated[Output, typer.Option("--output", "-o", help="What to print.")] = Output.TABLE,
) -> None:
    """Take GPU memory in every way, on the first card, and compare what was got with the limit.

    Leaves with code 1 if a limit was missed.
    """
    from gputile.isolation.library import LibraryMissing

    try:
        rows = _simulated() if fake_driver else _real(limit_mib)
    except LibraryMissing as error:
        fail(str(error))
    if output is Output.JSON:
        write_json({"memory": rows})
    else:
        _print(rows)
    if not all(row.holds for row in rows):
        raise typer.Exit(MISSED)


@selftest.command("symbols")
def symbols(
    driver: Annotated[Path, typer.Option("--driver", metavar="FILE", exists=True, help="The driver's libcuda.so.1.")],
    output: Annotated[Output, typer.Option("--output", "-o", help="What to print.")] = Output.TABLE,
) -> None:
    """List the functions of a driver that gputile does not know, and so refuses to containers.

    Leaves with code 1 if there are any.
    """
    from gputile.isolation.driversymbols import NotADriver, functions, unknown
    from gputile.isolation.library import LibraryMissing

    try:
        known, refused = len(functions(driver)), unknown(driver)
    except (NotADriver, LibraryMissing) as error:
        fail(str(error))
    if output is Output.JSON:
        write_json({"functions": known, "unknown": refused})
    else:
        write("".join(f"{name}\n" for name in refused) + f"{len(refused)} of {known} functions are not known\n")
    if refused:
        raise typer.Exit(MISSED)


def _simulated() -> "list[MemoryRow]":
    from gputile.isolation.memorycheck import memory_rows
    from gputile.isolation.simulation import SimulatedGpus, driver_directory

    with tempfile.TemporaryDirectory(prefix="gputile-") as directory:
        gpus = SimulatedGpus(Path(directory), driver_directory(), [SIMULATED_MIB], context_mib=64)
        return list(memory_rows(gpus.uuids[0], SIMULATED_LIMIT_MIB, gpus.environment(), slack_mib=128))


def _real(limit_mib: int) -> "list[MemoryRow]":
    from gputile.isolation.memorycheck import memory_rows
    from gputile.nvml.errors import NvmlError
    from gputile.nvml.real import open_real

    try:
        cards = open_real().inventory().cards
    except NvmlError as error:
        fail(f"no GPU is here ({error}): run it on a GPU node, or with --fake-driver")
    if not cards:
        fail("no GPU is here: run it on a GPU node, or with --fake-driver")
    return list(memory_rows(cards[0].uuid, limit_mib, {"CUDA_VISIBLE_DEVICES": cards[0].uuid}))


def _print(rows: "list[MemoryRow]") -> None:
    lines: list[tuple[str, ...]] = [("MEMORY", "PROCESSES", "LIMIT MIB", "ASKED MIB", "GOT MIB", "")]
    for row in rows:
        verdict = "holds" if row.holds else f"MISSED {row.failed}".strip()
        lines.append((row.way, *map(str, (row.processes, row.limit_mib, row.asked_mib, row.got_mib)), verdict))
    widths = [max(len(line[i]) for line in lines) + 2 for i in range(len(lines[0]))]
    for line in lines:
        write("".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")
