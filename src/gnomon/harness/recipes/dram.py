"""How much host memory a deployment may use as cache: its fair share of the server.

One budget in bytes; every offload backend is rendered from it. The rule is InferenceX's: at most
3 TB a server count, of these the share that corresponds to the accelerators in use, of that the
recipe's fraction, rounded down to whole decimal gigabytes.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

from gnomon.harness.recipes.place_spec import HardwareSpec, Parallelism, Topology
from gnomon.harness.recipes.quantities import GB, MIB

CAP_MIB = 2_861_022
"""3 TB in MiB: what of a server's memory counts at most."""


def dram_budget(hardware: HardwareSpec, topology: Topology, share: float) -> int:
    """Bytes of host memory on one node that the deployment's caches may take.

    Args:
        hardware: the server.
        topology: of the deployment; of a disaggregated one the prefill workers hold the tier.
        share: fraction of the fair share, above 0 and at most 1. A server without accelerators has
            nobody to share with.

    Raises:
        ValueError: the server's memory is not known, the accelerators do not fit its nodes, or
            nothing is left; the sentence says what to change.
    """
    if hardware.host_dram_mib == 0:
        raise ValueError(
            f"the host memory of {hardware.name} is not known; set hardware.host_dram_mib"
        )
    node = hardware.gpus_per_node
    used = gpus_on_a_node(hardware, topology) if node else 1
    counted = hardware.host_dram_mib
    if hardware.dram_capped:
        counted = min(counted, CAP_MIB)
    exact = Decimal(counted) * MIB * Decimal(str(share)) * used / max(1, node)
    budget = int((exact / GB).to_integral_value(ROUND_FLOOR)) * GB
    if budget < GB:
        raise ValueError(
            f"{share:g} of the share of {used} accelerators is less than 1 GB of host memory; "
            "raise offload.dram_share, or set offload to none"
        )
    return budget


def gpus_on_a_node(hardware: HardwareSpec, topology: Topology) -> int:
    """Accelerators of one node that the replica with the tier uses.

    Raises:
        ValueError: the replica does not fit the nodes evenly.
    """
    replica: Parallelism = topology if topology.prefill is None else topology.prefill
    gpus, node = replica.gpus, hardware.gpus_per_node
    if topology.prefill is None:
        if gpus > node:
            raise ValueError(
                f"{gpus} accelerators do not fit the {node} of one {hardware.name}; lower tp, pp, "
                "pcp or dp, or write prefill and decode workers"
            )
        return gpus
    if gpus > node:
        if gpus % node:
            raise ValueError(
                f"a prefill worker of {gpus} accelerators is no multiple of the {node} of a node"
            )
        return node
    if node % gpus:
        raise ValueError(
            f"prefill workers of {gpus} accelerators do not divide the {node} of a node"
        )
    return gpus
