"""Tells whether rolling updates can begin: new pods need room while old ones run on."""

from collections.abc import Callable
from dataclasses import replace

from gputile.api.config.v1alpha1 import Configuration
from gputile.tools.simulator.cluster.owners import owner_of
from gputile.tools.simulator.cluster.rolling_update import Replacement
from gputile.tools.simulator.cluster.scenario import Scenario
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.scheduling.simulation import Simulation


def hold_back(scenario: Scenario, configuration: Configuration, clock_ns: Callable[[], int]) -> None:
    """Let the old pods of each update that cannot begin run on, with the first new ones pending beside them.

    An update begins if one of the new pods that come first has a place beside the old ones that stay. Its later steps
    are not simulated: the old pods of one that begins are gone, and all new ones are to be placed.
    """
    for replacement in scenario.replacements:
        coming = [pod for pod in scenario.pending if owner_of(pod) == replacement.owner]
        first = coming[: replacement.coming_first]
        staying = list(replacement.old[: len(replacement.old) - replacement.leaving_first])
        if not first or not staying:
            continue
        bound = [*scenario.bound, *staying]
        beside = replace(scenario, bound=bound, pending=first, notes=[], replacements=[])
        if any(outcome.node is not None for outcome in Simulation(configuration).run(beside, clock_ns)):
            continue
        scenario.bound = bound
        held = {pod.key for pod in coming[len(first) :]}
        scenario.pending = [pod for pod in scenario.pending if pod.key not in held]
        scenario.notes.append(Note(_told(replacement, len(staying), len(first))))


def _told(replacement: Replacement, staying: int, first: int) -> str:
    update = replacement.update
    return (
        f"{replacement.owner}: its rolling update cannot begin: {staying} old pods run on until a new one is "
        f"ready (maxUnavailable {update.unavailable}, maxSurge {update.surge}), and of the first {first} new ones none "
        "has a place beside them; a larger maxUnavailable, or the strategy Recreate, lets old ones leave first"
    )
