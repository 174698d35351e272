"""What a user may set for `torch.compile` with Weft, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import torch

from weft.cost import Estimates, Machine
from weft.cost.model import CostModel
from weft.errors import OptionError
from weft.optimizer import PRESETS, parse_bytes
from weft.passes import PASSES, Pass, parse_pipeline, pass_text
from weft.passes.base import PLAN_VERSION

MODES = ("inductor", "eager")
# What an accelerator says of itself, and which preset has its figures. The first that is found counts.
_PRESETS: Mapping[str, str] = {
    "GB200": "gb200-nvl72",
    "B200": "b200-ib400",
    "H200": "h200-ib400",
    "H100": "h100-ib400",
    "A100": "a100-ib200",
    "MI300X": "mi300x-roce400",
}


@dataclass(frozen=True)
class Settings:
    """What `weft.compile` takes; `torch.compile(backend="weft", options={...})` takes the same.

    - `machine`: a Machine, the name of a preset or a path; None goes by the device of the tensors
    - `memory_limit`: bytes, or such as "70GB"
    - `passes`: passes, a pipeline as text, or the name of one of `weft.PRESETS`
    - `mode`: "inductor", or "eager", which runs the optimised graph without Inductor
    - `compute_estimator`: "analytic", "benchmark" (each op is timed here, and ranks take the median), or a function
    - `collective_estimator`: "analytic", or a function; to measure the network, use `weft calibrate`
    - `custom_runtime_estimation`: a function for both, see `weft.Estimates`
    - `agreement_timeout_s`: how long to wait for ranks that have not decided yet
    - `label`: tells compilations of one step with different settings apart; by default, the later follow the first
    - `on_disagreement`: "warn" runs the graph as it was on all ranks, "error" raises AgreementError, which torch may
      wrap in an error of its own
    """

    machine: Machine | str | None = None
    memory_limit: int | str | None = None
    passes: str | Sequence[Pass] | None = None
    mode: str = "inductor"
    compute_estimator: Any = "analytic"
    collective_estimator: Any = "analytic"
    custom_runtime_estimation: Any = None
    label: str = ""
    agreement_timeout_s: float = 300.0
    on_disagreement: str = "warn"

    def __post_init__(self) -> None:
        _check_word("mode", self.mode, MODES)
        _check_word("on_disagreement", self.on_disagreement, ("warn", "error"))
        if isinstance(self.agreement_timeout_s, bool) or not self.agreement_timeout_s > 0:
            raise OptionError(f"agreement_timeout_s must be seconds, more than 0, not {self.agreement_timeout_s!r}")
        if not callable(self.compute_estimator):
            _check_word("compute_estimator", self.compute_estimator, ("analytic", "benchmark"))
        if not callable(self.collective_estimator):
            _check_word("collective_estimator", self.collective_estimator, ("analytic",))
        if isinstance(self.machine, str):
            object.__setattr__(self, "machine", Machine.load(self.machine))
        if isinstance(self.memory_limit, str):
            object.__setattr__(self, "memory_limit", parse_bytes(self.memory_limit))
        given = self.passes if self.passes is not None else "default"
        if isinstance(given, str):
            given = parse_pipeline(PRESETS.get(given, given), PASSES)
        object.__setattr__(self, "passes", tuple(given))

    @staticmethod
    def of(options: Mapping[str, Any] | None) -> Settings:
        """Settings by name; OptionError says which names there are."""
        known = [one.name for one in fields(Settings)]
        for name in options or {}:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"
                raise OptionError(f"Weft has no option {name!r}{hint}")
        return Settings(**(options or {}))

    def on(self, devices: Iterable[torch.device]) -> Settings:
        """The same with a machine: the one that was set, or that of the devices."""
        return self if self.machine is not None else replace(self, machine=Machine.load(_preset(devices)))

    @property
    def pipeline(self) -> tuple[Pass, ...]:
        """The passes, in order."""
        assert isinstance(self.passes, tuple)
        return self.passes

    @property
    def limit(self) -> int | None:
        """The memory limit in bytes."""
        assert not isinstance(self.memory_limit, str)
        return self.memory_limit

    @property
    def measures(self) -> bool:
        """Whether ops are timed here."""
        return bool(self.compute_estimator == "benchmark")

    def cost(self, benchmarks: Any = None) -> CostModel:
        """What decisions go by; `benchmarks` are the times that were measured, if they are."""
        assert isinstance(self.machine, Machine), "it was chosen"
        return Estimates(
            self.machine,
            compute_estimator=self.compute_estimator,
            collective_estimator=self.collective_estimator,
            custom_runtime_estimation=self.custom_runtime_estimation,
            benchmarks=benchmarks,
        )

    @property
    def header(self) -> tuple[str, ...]:
        """What decisions depend on besides the graph, line by line, so that ranks can compare it."""
        assert isinstance(self.machine, Machine), "it was chosen"
        sources = [_named(one) for one in (self.compute_estimator, self.collective_estimator)]
        return (
            f"weft {version('weft')}, plans of version {PLAN_VERSION}",
            f"torch {torch.__version__}",
            f"machine {self.machine.name}, sha256 {_digest(replace(self.machine, path=None))}",
            f"passes {', '.join(map(pass_text, self.pipeline))}",
            f"memory limit {self.limit}",
            f"estimates {', '.join(sources)}, {_named(self.custom_runtime_estimation)}",
        )

    @property
    def uuid(self) -> str | None:
        """Tells apart what graphs may be compiled to, and under which name that is claimed.

        None if it depends on functions, on measurements, or on anything else that no text tells.
        """
        functions = (self.compute_estimator, self.collective_estimator, self.custom_runtime_estimation)
        if self.measures or any(map(callable, functions)) or not all(map(_is_told, self.pipeline)):
            return None
        return sha256("\n".join([*self.header, self.label]).encode()).hexdigest()


def _is_told(one: Pass) -> bool:
    """Whether the text of a pass, the graph and the machine say all of what it decides by.

    The code of passes that are not Weft's may change. Where ops come from is not in Inductor's keys.
    """
    by_origin = getattr(one, "pin", None) or getattr(one, "only", "all") not in ("all", "inter_node")
    return type(one) is PASSES.get(one.name) and not by_origin and not any(map(callable, vars(one).values()))


def _digest(machine: Machine) -> str:
    return sha256(repr(machine).encode()).hexdigest()[:16]


def _check_word(option: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise OptionError(f"{option} must be {' or '.join(map(repr, known))}, not {value!r}")


def _named(source: object) -> str:
    return getattr(source, "__qualname__", type(source).__name__) if callable(source) else str(source)


def _preset(devices: Iterable[torch.device]) -> str:
    for device in devices:
        if device.type == "cuda":
            name = torch.cuda.get_device_name(device)
            found = next((preset for text, preset in _PRESETS.items() if text in name), None)
            if found is None:
                raise OptionError(
                    f"Weft has no figures for {name}: say machine=, a preset that comes near it (weft machines), or "
                    "the file that `torchrun … -m weft calibrate` writes on this cluster"
                )
            return found
    return "gloo-cpu"
