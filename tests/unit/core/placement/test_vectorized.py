"""The array kernels and the scalar rules are two implementations of one thing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.core.devices.request import Request
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import ServingMode
from gputile.core.ledger.snapshot import NodeState, node_state
from gputile.core.placement import vectorized
from gputile.core.placement.choose import HIGHEST_BINPACK, choose_gpus, node_score
from gputile.core.placement.fit import fits, gpu_fits, refusal
from gputile.core.placement.fit_refusal import FitRule
from tests.examples import examples
from tests.unit.core.placement.strategies import ledgers, requests


def states(ledger: Ledger) -> list[tuple[int, NodeState]]:
    return [(row, node_state(ledger, row, node_info)) for row, node_info in ledger.nodes()]


@settings(max_examples=examples(400))
@given(ledgers(), requests(), st.sampled_from(["binpack", "spread"]))
def test_kernels_score_every_node_as_the_scalar_rules_do(ledger: Ledger, request: Request, policy: str) -> None:
    group = ledger.group_number(request.shape.trust_group)
    emptier = policy == "spread"
    arrays, host = ledger.node_arrays, request.host
    everything, rows = slice(0, arrays.rows), np.arange(arrays.rows)
    full = vectorized.fullness(arrays, request.shape, group, everything)
    everywhere = vectorized.scores(arrays, full, everything, host, emptier=emptier)
    copied = vectorized.fullness(arrays, request.shape, group, rows)
    assert (vectorized.scores(arrays, copied, rows, host, emptier=emptier) == everywhere).all()
    scalar = {row: node_score(node, request.shape, group, policy, host) for row, node in states(ledger)}
    expected = [vectorized.UNFIT if (score := scalar.get(row)) is None else score for row in rows.tolist()]
    assert everywhere.tolist() == expected
    assert all(-1 <= score <= HIGHEST_BINPACK for score in everywhere.tolist())


@settings(max_examples=examples(400))
@given(ledgers(), requests())
def test_what_does_not_fit_has_a_reason_and_only_that(ledger: Ledger, request: Request) -> None:
    group = ledger.group_number(request.shape.trust_group)
    broken = vectorized.rules(ledger.node_arrays, request.shape, slice(0, ledger.node_arrays.rows))
    for row, node in states(ledger):
        why = refusal(node, request, group)
        assert (
            (why is None) == fits(node, request.shape, group) == (choose_gpus(node, request.shape, group) is not None)
        )
        if why is not None:
            assert why.text
            assert broken[row] == (FitRule.NO_GPUS if why.rule is FitRule.BROKEN else why.rule)


@given(ledgers(), requests())
def test_chosen_gpus_fit_are_distinct_and_in_order(ledger: Ledger, request: Request) -> None:
    group = ledger.group_number(request.shape.trust_group)
    for _, node in states(ledger):
        chosen = choose_gpus(node, request.shape, group)
        if chosen is None or node.serving_mode is ServingMode.OTHER_PLUGIN:
            continue
        assert len(chosen) == request.shape.gpus
        assert all(gpu_fits(gpu, request.shape, node.info, group) for gpu in chosen)
        indices = [gpu.gpu.index for gpu in chosen]
        assert indices == sorted(set(indices))
