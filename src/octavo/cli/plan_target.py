"""What a plan is made for: where the search begins, which settings it varies, and what is known of the memory."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from octavo import registry
from octavo.cli.flags import is_set
from octavo.cli.plan_model import device, model_shape, with_kv_dtype
from octavo.cli.text import size
from octavo.config import EngineConfig
from octavo.core.kv_groups import describe_groups
from octavo.core.kv_spec import KVSpec
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.sim.device_memory import MEMORY_SHARE, DeviceMemory, device_memory
from octavo.sim.devices import Device
from octavo.sim.fitted import Fit
from octavo.sim.known_models import KNOWN_MODELS
from octavo.sim.model_shape import ModelShape
from octavo.sim.planner import Axis
from octavo.sim.roofline import MODERN, RooflineCost
from octavo.sim.system import System
from octavo.sim.trials import Candidate
from octavo.traces.catalogue import lookup
from octavo.weights import catalogue

MAX_NUM_SEQS = 256
"""On accelerators, unless asked otherwise: what engines take by default."""
CPU_BUDGETS = (32, 64, 128, 256, 512)
BUDGETS = (512, 2048, 8192)
BLOCK_SIZES = (8, 16, 32, 64)
KV_DTYPES = ("bfloat16", "int8")
NUM_DEVICES = (1, 2, 4, 8)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """See the top of this file."""

    model: str
    device: str
    start: Candidate
    axes: list[Axis]
    memory: Callable[[Candidate], dict[str, Any]]
    """Facts of a candidate's memory, for the report."""
    watts: float
    """Of one device; 0 where not known."""
    notes: list[str]
    """What the figures rest on."""


# ---- accelerators


class _Accelerator:
    """Makes candidates for a model on a kind of accelerator. Memory is sized anew for each."""

    def __init__(self, args: argparse.Namespace, config: EngineConfig, shape: ModelShape, kind: Device) -> None:
        self.shape, self.kind = shape, kind
        self._config = config
        self._share = config.cache.memory_fraction if is_set(args, "memory-fraction") else MEMORY_SHARE
        shares = args.lengths is None and lookup(args.workload).shares_prefixes
        asked = is_set(args, "enable-prefix-caching")
        self._caches_prefixes = config.cache.caches_prefixes if asked else shares
        self._max_num_seqs = config.scheduler.max_num_seqs if is_set(args, "max-num-seqs") else MAX_NUM_SEQS

    def kv_spec(self, settings: dict[str, Any]) -> KVSpec:
        """As the server would keep KV with these settings."""
        shape, asked = with_kv_dtype(self.shape, settings["kv_cache_dtype"]), self._config.model.max_model_len
        return shape.kv_spec(settings["block_size"], min(shape.max_len, asked or shape.max_len))

    def memory(self, settings: dict[str, Any]) -> DeviceMemory:
        cache = self._config.cache
        return device_memory(
            self.shape,
            self.kind,
            settings["num_devices"],
            kv_spec=self.kv_spec(settings),
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            share=self._share,
            kv_bytes=cache.kv_cache_memory_bytes,
            num_blocks=cache.num_blocks,
        )

    def candidate(self, **settings: Any) -> Candidate:
        """Raises ConfigError if it does not fit."""
        config, shape = self._config, with_kv_dtype(self.shape, settings["kv_cache_dtype"])
        memory, kv_spec = self.memory(settings), self.kv_spec(settings)
        asked = config.model.max_model_len
        max_unread = config.scheduler.depth * settings["max_num_batched_tokens"]
        longest = kv_spec.longest(memory.num_blocks, max_unread, min(shape.max_len, asked or shape.max_len))
        if asked is not None and asked > longest:
            what = "context" if shape.max_len < asked else "KV memory"
            raise ConfigError("max_model_len", asked, f"at most {longest}: more does not fit the {what}")
        system = System(
            num_blocks=memory.num_blocks,
            block_size=settings["block_size"],
            max_num_seqs=self._max_num_seqs,
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=longest,
            enable_prefix_caching=self._caches_prefixes,
            admission=config.scheduler.admission,
            depth=config.scheduler.depth,
            kv_groups=kv_spec.groups,
        )
        cost = RooflineCost(
            shape,
            self.kind,
            settings["num_devices"],
            block_size=settings["block_size"],
            host=MODERN,
            layers_per_page=kv_spec.layers_per_page,
        )
        return Candidate(
            num_devices=settings["num_devices"], kv_dtype=settings["kv_cache_dtype"], system=system, cost=cost
        )

    def changed(self, candidate: Candidate, name: str, value: Any) -> Candidate:
        return self.candidate(**(candidate.settings | {name: value}))

    def facts(self, candidate: Candidate) -> dict[str, Any]:
        memory, kv_spec = self.memory(candidate.settings), self.kv_spec(candidate.settings)
        share = f"{self._share:g} of {size(self.kind.memory_bytes)}"
        return {
            "weight_bytes": memory.weight_bytes,
            "workspace_bytes": memory.workspace_bytes,
            "kv_bytes": memory.num_blocks * memory.block_bytes,
            "kv_bytes_per_token": kv_spec.bytes_per_block * kv_spec.num_groups / kv_spec.block_size,
            "kv_groups": describe_groups(kv_spec.groups),
            "num_blocks": memory.num_blocks,
            "reason": f"{share}, less {size(memory.weight_bytes)} of weights and {size(memory.workspace_bytes)} for "
            f"steps, in blocks of {size(memory.block_bytes)} on each device",
        }


def accelerator_target(args: argparse.Namespace, config: EngineConfig) -> Target:
    """A plan for accelerators: their figures are published ones.

    Raises:
        ConfigError, ModelError: If model or device are unknown, or nothing fits.
    """
    scales = {"device_memory": ("memory_bytes", 1e9), "bandwidth": ("bandwidth_bytes_per_s", 1e9),
              "tflops": ("flops", 1e12)}  # fmt: skip
    changes = {to: getattr(args, name) * by for name, (to, by) in scales.items() if getattr(args, name) is not None}
    kind = device(args.device, changes)
    shape = model_shape(config.model.model, config.model.overrides)
    maker = _Accelerator(args, config, shape, kind)
    dtype = config.cache.kv_cache_dtype
    budget = config.scheduler.max_num_batched_tokens
    fixed: dict[str, tuple[Any, ...]] = {
        "num_devices": (args.num_devices,) if args.num_devices else NUM_DEVICES,
        "max_num_batched_tokens": (budget,) if is_set(args, "max-num-batched-tokens") else BUDGETS,
        "kv_cache_dtype": KV_DTYPES,
        "block_size": BLOCK_SIZES if config.cache.block_size is None else (config.cache.block_size,),
    }
    if is_set(args, "kv-cache-dtype"):
        fixed["kv_cache_dtype"] = ("bfloat16" if dtype == "auto" else dtype,)
    first = {name: values[0] for name, values in fixed.items()}
    middle = {"max_num_batched_tokens": BUDGETS[1], "block_size": BLOCK_SIZES[1]}
    first |= {name: value for name, value in middle.items() if value in fixed[name]}
    fitting = _fitting(maker, first, fixed["num_devices"])
    fixed["num_devices"] = tuple(n for n in fixed["num_devices"] if n < fitting) + _next(fixed["num_devices"], fitting)
    start = maker.candidate(**(first | {"num_devices": fitting}))
    notes = ["16-bit weights; steps from published figures (octavo.sim.roofline), host work of a modern engine"]
    if any(shape.kinds):
        notes.append("tokens are taken to choose experts uniformly: trained routers touch fewer of them in a step")
    if "int8" in fixed["kv_cache_dtype"]:
        notes.append("int8 KV rounds keys and values; its kernel is taken to read at the speed of memory")
    return Target(
        model=shape.name,
        device=kind.name,
        start=start,
        axes=[Axis(name=name, values=values, change=_changer(maker, name)) for name, values in fixed.items()],
        memory=maker.facts,
        watts=args.watts or kind.watts,
        notes=notes,
    )


def _fitting(maker: _Accelerator, settings: dict[str, Any], counts: tuple[int, ...]) -> int:
    """The smallest number of devices on which the model fits; ConfigError of the largest if on none."""
    for count in counts[:-1]:
        try:
            maker.memory(settings | {"num_devices": count})
        except ConfigError:
            continue
        return count
    maker.memory(settings | {"num_devices": counts[-1]})
    return counts[-1]


def _next(counts: tuple[int, ...], fitting: int) -> tuple[int, ...]:
    """From the smallest number that fits on, two: more of them share the reading of weights ever less well."""
    return tuple(count for count in counts if count >= fitting)[:2]


def _changer(maker: _Accelerator, name: str) -> Callable[[Candidate, Any], Candidate]:
    return lambda candidate, value: maker.changed(candidate, name, value)


# ---- this machine


def cpu_target(args: argparse.Namespace, config: EngineConfig) -> Target:
    """A plan for this machine: steps as measured, memory as the server would size it now.

    Raises:
        ConfigError, ModelError: If the model is unknown or does not fit, or the fit is of another engine.
    """
    from octavo.engine.build import find_files

    name = config.model.model
    if name.lower() in KNOWN_MODELS and catalogue.find(name) is None:
        allowed = (
            f"an accelerator for {name}, which is known by its shape alone; for cpu give the model's folder or file"
        )
        raise ConfigError("device", "cpu", allowed)
    files = find_files(config)
    executor = registry.resolve("executors", config.execution.executor)

    @cache
    def preview(budget: int) -> tuple[EngineInfo, KVSpec]:
        scheduler = dataclasses.replace(config.scheduler, max_num_batched_tokens=budget)
        found: tuple[EngineInfo, KVSpec] = executor.preview(dataclasses.replace(config, scheduler=scheduler), files)
        return found

    asked = config.scheduler.max_num_batched_tokens
    info, _ = preview(asked)
    fit, how = find_fit(args, config, info)

    def candidate(_: Candidate | None, budget: int) -> Candidate:
        from octavo.cli.step_watch import simulated_system

        system = simulated_system(config, *preview(budget))
        return Candidate(num_devices=1, kv_dtype=info.kv_dtype, system=system, cost=fit.cost)

    def facts(chosen: Candidate) -> dict[str, Any]:
        found, _ = preview(chosen.system.max_num_batched_tokens)
        names = ("weight_bytes", "kv_bytes", "kv_bytes_per_token", "num_blocks", "kv_groups")
        return {name: getattr(found, name) for name in names} | {"reason": found.kv_reason}

    budgets = (asked,) if is_set(args, "max-num-batched-tokens") else CPU_BUDGETS
    notes = [
        f"steps as measured: {how}",
        f"{info.block_size_reason}",
        "block size and KV dtype stay as the server would choose them: steps were measured with these",
    ]
    return Target(
        model=info.model,
        device="cpu",
        start=candidate(None, asked),
        axes=[Axis(name="max_num_batched_tokens", values=budgets, change=candidate)],
        memory=facts,
        watts=args.watts or 0.0,
        notes=notes,
    )


def find_fit(args: argparse.Namespace, config: EngineConfig, info: EngineInfo) -> tuple[Fit, str]:
    """The fit that was named, or the one of a quick measurement; and a sentence about it.

    Raises:
        ConfigError: If it is of another engine.
    """
    from octavo.cli.fit_check import check_same_engine

    if args.fit:
        from octavo.traces.fits import read_fit_file

        fit = read_fit_file(args.fit)
        check_same_engine(fit, info)
        return fit, f"{Path(args.fit).name} of {fit.date[:10]}, {fit.num_steps} steps"
    from octavo.cli.bench_fit import quick_fit

    fit = quick_fit(config)
    return fit, f"{fit.num_steps} steps, just now; `octavo bench fit` and --fit are more exact"
