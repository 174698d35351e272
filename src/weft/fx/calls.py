"""Traits of calls: those of the function, as it is spelled, and of what a higher-order operator is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from weft.fx.names import target_of
from weft.fx.schema import function_traits
from weft.ir.traits import BARRIER, PURE, Traits

# Higher-order operators that do what the subgraphs and operators that they are given do, and nothing else.
_TRANSPARENT = frozenset(
    f"higher_order.{name}"
    for name in """
    associative_scan auto_functionalized auto_functionalized_v2 autograd_function_apply cond flex_attention
    flex_attention_backward foreach_map graphsafe_run_with_rng_state hints_wrapper invoke_quant invoke_quant_packed
    invoke_subgraph local_map_hop map_impl out_dtype run_and_save_rng_state run_const_graph run_dtensor_rng_op
    run_with_rng_state scan strict_mode tag_activation_checkpoint triton_kernel_wrapper_functional while_loop
    while_loop_stack_output wrap wrap_activation_checkpoint wrap_with_autocast wrap_with_set_grad_enabled
    """.split()
)
_WRITE_COPIES = frozenset({"higher_order.auto_functionalized", "higher_order.auto_functionalized_v2"})


class CallTraits:
    """Finds the traits of calls. Remembers those of operators, which are called again and again."""

    def __init__(self) -> None:
        self._known: dict[OpOverload[Any, Any], Traits] = {}

    def of(self, node: Node) -> Traits:
        """The traits of a node that calls something."""
        if node.op != "call_function":  # a method or a module: what it does is not in its name
            return BARRIER
        traits = self._known.get(node.target)  # type: ignore[call-overload]  # one look-up: torch's hash is slow
        if traits is None:
            if isinstance(node.target, HigherOrderOperator):
                return self._higher_order(node)
            traits = function_traits(node.target)
            if not isinstance(node.target, OpOverload):
                return traits
            self._known[node.target] = traits
        return as_spelled(traits, node) if node.kwargs else traits

    def _higher_order(self, node: Node) -> Traits:
        target = target_of(node.target)
        if target not in _TRANSPARENT:
            return BARRIER
        inner = list(self._given(node))
        communicates = any(traits.communicates for traits in inner)
        writes = target not in _WRITE_COPIES and any(traits.mutates for traits in inner)
        if communicates or writes or any(traits.barrier for traits in inner):
            return Traits(communicates=communicates, barrier=True)
        return Traits(random=any(traits.random for traits in inner))

    def _given(self, node: Node) -> Iterator[Traits]:
        """The traits of everything in the arguments that is called."""
        for arg in tree_leaves((node.args, node.kwargs)):
            if isinstance(arg, OpOverload):
                yield function_traits(arg)
            elif isinstance(arg, HigherOrderOperator):
                yield PURE if target_of(arg) in _TRANSPARENT else BARRIER
            elif isinstance(arg, Node) and arg.op == "get_attr":
                yield from self._inside(attribute(arg))

    def _inside(self, value: Any) -> Iterator[Traits]:
        if isinstance(value, GraphModule):
            for node in value.graph.nodes:
                if node.op.startswith("call_"):
                    yield self.of(node)
        elif value is None or isinstance(value, torch.nn.Module):
            yield BARRIER  # a subgraph that is not here, or that cannot be looked into


def attribute(node: Node) -> Any:
    """What a `get_attr` gets; None if that is not here."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def as_spelled(traits: Traits, node: Node) -> Traits:
    """The traits of an operator; arguments that its schema numbers are named where the node gives them by keyword."""
    if not traits.views and not traits.mutates:
        return traits
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]

    def key(place: int | str) -> int | str:
        by_keyword = isinstance(place, int) and place >= len(node.args) and names[place] in node.kwargs
        return names[place] if by_keyword and isinstance(place, int) else place

    return replace(traits, views=tuple(map(key, traits.views)), mutates=tuple(map(key, traits.mutates)))
