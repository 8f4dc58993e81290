"""Computes which device IDs to prefer, so that the kubelet takes those of the booked GPU.

The kubelet fills up whatever is missing with IDs of its own choice, from any GPU. So an answer always has the whole
number of IDs on the right number of GPUs, and only where no such set exists is it less.
"""

from collections.abc import Iterable, Mapping, Sequence

from gputile.node.agent.decisions.devices.free_capacity import FreeCapacity
from gputile.node.agent.state.device_ids import DeviceIdError, decode, encode
from gputile.node.agent.state.node_config import NodeConfig

Slots = Mapping[int, frozenset[int]]


def readable(device_ids: Iterable[str]) -> dict[int, frozenset[int]]:
    """Return the slots of each GPU, leaving out what is no device ID: the kubelet may know IDs of other plugins."""
    found: dict[int, set[int]] = {}
    for device_id in device_ids:
        try:
            index, slot = decode(device_id)
        except DeviceIdError:
            continue
        found.setdefault(index, set()).add(slot)
    return {index: frozenset(slots) for index, slots in found.items()}


def spread_evenly(size: int, indices: Sequence[int], available: Slots, must: Slots) -> tuple[str, ...] | None:
    """Return ``size`` IDs, as many of each of ``indices``, with all of ``must``; None where there are not enough.

    ``available`` includes ``must``, as in the kubelet's request.
    """
    if not indices or size % len(indices) or not must.keys() <= set(indices):
        return None
    each, chosen = size // len(indices), []
    for index in sorted(indices):
        kept = must.get(index, frozenset())
        others = sorted(available.get(index, frozenset()) - kept)[: max(0, each - len(kept))]
        if len(kept) + len(others) != each:
            return None
        chosen += [encode(index, slot) for slot in (*sorted(kept), *others)]
    return tuple(chosen)


def on_some_gpu(size: int, available: Slots, must: Slots) -> tuple[str, ...]:
    """Return up to ``size`` IDs on as few GPUs as possible, those of ``must`` first: the answer of last resort."""
    chosen = [encode(index, slot) for index in sorted(must) for slot in sorted(must[index])]
    for index in sorted(available, key=lambda i: (i not in must, -len(available[i]), i)):
        others = sorted(available[index] - must.get(index, frozenset()))
        chosen += [encode(index, slot) for slot in others[: size - len(chosen)]]
        if len(chosen) >= size:
            break
    return tuple(chosen)


def replicas(
    size: int, available: Slots, must: Slots, free_capacity: FreeCapacity, usable: Iterable[int]
) -> tuple[str, ...]:
    """Return IDs of replicated GPUs: different GPUs first, the least used of those that are ``usable``."""
    chosen = [encode(index, slot) for index in sorted(must) for slot in sorted(must[index])]
    left = {i: sorted(available.get(i, frozenset()) - must.get(i, frozenset()), reverse=True) for i in usable}
    load = {index: free_capacity.pods_on(index) for index in left}
    while len(chosen) < size and any(left.values()):
        index = min((i for i in left if left[i]), key=lambda i: (load[i], i))
        chosen.append(encode(index, left[index].pop()))
        load[index] += 1
    return tuple(chosen)


def booked_indices(node_config: NodeConfig, uuids: Iterable[str]) -> tuple[int, ...]:
    """Return the indices that booked GPUs have now; empty if one of them is not there or not healthy."""
    index_of = {gpu.uuid: gpu.index for gpu in node_config.inventory.gpus if gpu.healthy}
    wanted = tuple(uuids)
    return tuple(index_of[uuid] for uuid in wanted) if all(uuid in index_of for uuid in wanted) else ()
