"""The option `only` of `bucket`: which collectives are asked for, and of the others, why they are not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from weft.analysis.gradients import used_further
from weft.analysis.kernels import KERNELS, Kernel, only_moves
from weft.cost import topology
from weft.cost.estimates import Estimates
from weft.cost.machine import Machine
from weft.errors import OptionError
from weft.ir.origins import GRADIENT, module_path
from weft.ir.program import Group, Op, Program
from weft.passes.base import Context, Remark

WORDS = ("all", "parameters", "inter_node")  # anything else is the path of a module
_PATH = re.compile(r"[\w*?-]+(\.[\w*?-]+)*")


def check_only(pass_name: str, only: str) -> None:
    """Raise OptionError unless it is one of the words, or can be the path of a module."""
    if not isinstance(only, str) or not _PATH.fullmatch(only):
        raise OptionError(
            f"{pass_name}: only must be all, parameters, inter_node or the path of a module such as layers.0, "
            f"where * stands for any name, not {only!r}"
        )


def left_out(program: Program, context: Context, pass_name: str, only: str) -> Mapping[str, str]:
    """The collectives that `only` does not ask for, and why."""
    match only:
        case "all":
            return {}
        case "parameters":
            return _not_of_parameters(program)
        case "inter_node":
            return _inside_a_node(program, _machine(context, pass_name))
    found = {op.name: module_path(op.origin) for op in program.starts}
    return {
        name: f"it is of {path or 'no module'}, and {only} is asked for"
        for name, path in found.items()
        if not path_matches(path, only)
    }


def missed(program: Program, pass_name: str, only: str) -> Remark | None:
    """What to say if a path matches nothing: which ones there are."""
    paths = dict.fromkeys(module_path(op.origin) for op in program.starts)
    if only in WORDS or not paths or any(path_matches(path, only) for path in paths):
        return None
    depth = only.count(".") + 1
    modules = dict.fromkeys(".".join(path.split(".")[:depth]) for path in paths if path)
    near = ", ".join(get_close_matches(only, modules, n=3, cutoff=0.0))
    others = f"the nearest modules are {near}" if near else "no collective of this program says where it comes from"
    return Remark(pass_name, program.starts[0].name, "note", f"no collective is of {only}: {others}")


def enclosing(origin: str, pattern: str) -> str:
    """The module that a pattern names, of those that an origin is in: layers.3 for layers.3.mlp and layers.*."""
    return ".".join(module_path(origin).split(".")[: pattern.count(".") + 1])


def path_matches(path: str, pattern: str) -> bool:
    """Whether a path leads into what the pattern names: name by name, from the beginning."""
    names, wanted = path.split("."), pattern.split(".")
    return len(wanted) <= len(names) and all(map(fnmatchcase, names, wanted))


# Groups that span nodes


def _machine(context: Context, pass_name: str) -> Machine:
    cost = context.cost.machine if isinstance(context.cost, Estimates) else context.cost
    if not isinstance(cost, Machine):
        raise OptionError(
            f"{pass_name}: only=inter_node asks which ranks share a node: say for which machine "
            "(weft opt --machine, or cost=)"
        )
    return cost


def _inside_a_node(program: Program, machine: Machine) -> Mapping[str, str]:
    inside: set[Group] = {one for one in program.groups if topology.place(machine.levels, one.ranks).nodes < 2}
    return {
        op.name: f"group {op.comm.group.name} is inside one node of {machine.name}"
        for op in program.starts
        if op.comm is not None and op.comm.group in inside
    }


# Parameters and their gradients


def _not_of_parameters(program: Program) -> Mapping[str, str]:
    """A parameter is gathered as it is, or converted; its gradient is returned, or goes into an update.

    What a program says of its origins goes before what it looks like.
    """
    further = used_further(program)
    told = any(op.origin for op in program.inputs)
    found: dict[str, str] = {}
    for op in program.starts:
        assert op.comm is not None, "a start communicates"
        if op.origin.startswith(GRADIENT):
            continue
        if op.comm.kind == "all_gather":
            if (maker := _maker(program, op, told)) is not None:
                found[op.name] = f"it gathers what %{maker} gives, which is no parameter"
        elif op.comm.kind not in ("reduce_scatter", "all_reduce"):
            found[op.name] = f"{op.comm.kind} is neither for parameters nor for gradients"
        elif (user := further[program.index[op.name]]) is not None:
            found[op.name] = f"its result is no gradient of a parameter: %{program.ops[user].name} computes with it"
    return found


def _maker(program: Program, start: Op, told: bool) -> str | None:
    """An op that computes some of what a gather is given, or an input that is no parameter; None if all is parameters.

    `told` says that inputs with an origin are parameters, and the others are not.
    """
    todo = [start]
    while todo:
        for ref in todo.pop().refs():
            op = program[ref.name]
            if op.is_input and told and not op.origin:
                return op.name
            if op.is_input or op.target == "get_attr" or KERNELS.get(op.target) is Kernel.GENERATED:
                continue
            if not (only_moves(op) or op.is_start):
                return op.name
            todo.append(op)
    return None
