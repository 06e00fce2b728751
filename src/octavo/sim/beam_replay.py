"""Beam searches without a model: which beams survive is replayed from recorded searches.

Which beams share blocks depends only on which beam each survivor continues. A replayed beam's token is its rank among
the survivors; candidates have such scores that the real search (`core.beam`) ranks them as they were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.errors import ConfigError

Parents = tuple[int, ...]
"""One step of a search: for each survivor, best first, the rank of the beam that it continues. In the first step
there is one beam, of rank 0."""

_NEVER = -1e9
"""A logprob that never survives: there are as many better ones as beams."""


class BeamReplay:
    """Answers for the model in simulated beam searches.

    A request's seed chooses the record it begins with. One that needs more steps than the record has goes on with the
    steps after the first of the next record, and so on, from the last to the first: every request's search is decided
    by width, seed and step alone.

    Args:
        records: By width, the recorded searches, each the parents of its steps. The first step of each continues a
            single beam, so its parents are all 0.

    Raises:
        ConfigError: If a width has no record, or a record has no second step.
    """

    def __init__(self, records: Mapping[int, Sequence[Sequence[Parents]]]) -> None:
        self._widths: dict[int, _Width] = {}
        self._answers: dict[Parents, list[list[tuple[int, float]]]] = {}
        """By parents: records hold the same ones many times over."""
        for width, searches in records.items():
            if not searches or any(len(steps) < 2 for steps in searches):
                raise ConfigError(
                    f"records[{width}]", [len(steps) for steps in searches], "searches of two steps or more"
                )
            self._widths[width] = _Width(searches)

    @property
    def widths(self) -> list[int]:
        """Widths that can be replayed."""
        return sorted(self._widths)

    def parents(self, seed: int, width: int, step: int) -> Parents:
        """The recorded choice of one step, counted from 0.

        Raises:
            ConfigError: If nothing was recorded with this width.
        """
        if width not in self._widths:
            raise ConfigError("beam_width", width, "one of " + ", ".join(map(str, self.widths)) + ", as recorded")
        return self._widths[width].parents(seed, step)

    def candidates(self, seed: int, width: int, step: int, rank: int) -> list[tuple[int, float]]:
        """What the beam of `rank` reports before step `step`: (token, logprob), best first.

        A token is the rank that its survivor will have. After every step the beam of rank r has the score -r, exact in
        float32 however long the search: a survivor s of parent r reports r - s. A beam without survivors reports one
        that comes after all others.

        Raises:
            ConfigError: If nothing was recorded with this width.
        """
        parents = self.parents(seed, width, step)
        found = self._answers.get(parents)
        if found is None:
            found = self._answers[parents] = _answers(parents)
        return found[rank]


def _answers(parents: Parents) -> list[list[tuple[int, float]]]:
    """Candidates of each beam, by rank. They are handed out again and again, and nobody may change them."""
    found: list[list[tuple[int, float]]] = [[] for _ in parents]
    for survivor, parent in enumerate(parents):
        found[parent].append((survivor, float(parent - survivor)))
    return [candidates or [(0, _NEVER)] for candidates in found]


class _Width:
    """The records of one width, and where in one long row of later steps each one's follow."""

    def __init__(self, searches: Sequence[Sequence[Parents]]) -> None:
        self._searches = searches
        self._later: list[Parents] = []
        self._ends: list[int] = []
        for steps in searches:
            self._later += steps[1:]
            self._ends.append(len(self._later))

    def parents(self, seed: int, step: int) -> Parents:
        chosen = seed % len(self._searches)
        steps = self._searches[chosen]
        if step < len(steps):
            return steps[step]
        return self._later[(self._ends[chosen] + step - len(steps)) % len(self._later)]
