"""Runs the whole system on a real control plane while pods come and go and everything is killed, cut and filled."""

import argparse
import secrets
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console

from tests.localcluster.gomodule import ComponentMissing
from tests.soak.system.faults import all_faults
from tests.soak.system.report import write
from tests.soak.system.run import Options, Run

REPORTS = Path(__file__).resolve().parents[3] / ".cache" / "soak"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pods", type=int, default=10_000, help="how many are created, if time is enough (10000)")
    parser.add_argument("--seed", type=int, help="of workload and faults (another one each time)")
    parser.add_argument("--fault-every", type=float, default=6.0, metavar="SECONDS", help="0 for none (6)")
    kinds = sorted({each.kind for each in all_faults()})
    parser.add_argument("--only", action="append", default=[], choices=kinds, help="only faults of this kind")
    parser.add_argument("--most", type=int, default=200, help="pods that are there at once (200)")
    parser.add_argument("--real-every", type=int, default=60, help="one of so many goes to the real node (60)")
    parser.add_argument("--most-real", type=int, default=12, help="pods on the real node at once (12)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="where the report goes (.cache/soak/SEED)")


def run(minutes: float, given: argparse.Namespace) -> int:
    """Run it once; 0 where every promise was kept, 1 where one was broken, 2 where it cannot run here."""
    seed = given.seed if given.seed is not None else secrets.randbits(32)
    options = Options(
        minutes=minutes,
        pods=given.pods,
        seed=seed,
        fault_every_s=given.fault_every or 1e9,
        report=given.report or REPORTS / str(seed),
        only=tuple(given.only),
        most=given.most,
        most_real=given.most_real,
        real_every=given.real_every,
    )
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, _interrupt)
    return soak(options)


def soak(options: Options) -> int:
    """Run it with these options."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("") as status:
            return _soak(options, status.update)
    return _soak(options, lambda text: print(text, flush=True))


def _soak(options: Options, say: Callable[[str], object]) -> int:
    run, interrupted = Run(options, say), False
    try:
        run.execute()
    except KeyboardInterrupt:
        interrupted = True
    except ComponentMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    except Exception:
        run.findings.violated("the soak itself works", traceback.format_exc())
    path = write(run, options.report, interrupted)
    for each in run.findings.violations:
        print(f"{each.at:.0f} s: {each.promise}: {each.text}", flush=True)
    print(f"{len(run.findings.violations)} violations; the report: {path}", flush=True)
    if interrupted and not run.findings.broken():
        return 130
    return 1 if run.findings.broken() else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
