"""The hypothesis machine over the operations of `world`: it finds less per second than the driver, and shrinks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from property.world import OPERATIONS, SHAPE, WEIGHTED, World

seen: Counter[str] = Counter()
"""What the runs of this process really did, summed up; the tests ask whether it happened at all."""

ARGUMENTS = {
    name: st.fixed_dictionaries({key: st.sampled_from(list(values)) for key, values in arguments.items()})
    for name, (_, arguments) in OPERATIONS.items()
}
OPERATION = st.sampled_from(WEIGHTED).flatmap(lambda name: st.tuples(st.just(name), ARGUMENTS[name]))


class CoreMachine(RuleBasedStateMachine):
    """Any interleaving of operations."""

    world: World | None = None

    @initialize(shape=st.fixed_dictionaries({name: st.sampled_from(list(values)) for name, values in SHAPE.items()}))
    def start(self, shape: dict[str, Any]) -> None:
        self.world = World(**shape)

    @rule(operation=OPERATION)
    def perform(self, operation: tuple[str, dict[str, Any]]) -> None:
        assert self.world is not None
        self.world.perform(*operation)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.finish()
            seen.update(self.world.events())
            seen["operations"] += self.world.num_operations
