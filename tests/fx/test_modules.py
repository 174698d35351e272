"""The GraphModule that `to_fx` gives is one like any other, and making it leaves the process as it was."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import weft
from tests.fx.graphs import rows
from weft import GraphError
from weft.ir.pause import no_collection


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + 1


def made() -> GraphModule:
    module = torch.export.export(Scaled(), (torch.ones(2),)).module()
    assert isinstance(module, GraphModule)
    return weft.to_fx(weft.from_fx(module))


def test_its_code_is_generated_on_first_use() -> None:
    module = weft.to_fx(weft.from_fx(make_fx(lambda x: x.sin())(torch.ones(2))))
    assert isinstance(module, _LazyGraphModule)
    assert module._needs_recompile()
    assert "torch.ops.aten.sin.default(x_1)" in module.code
    assert not module._needs_recompile()


def test_it_can_be_copied() -> None:
    module = made()
    twin = copy.deepcopy(module)
    assert [(row.name, row.target) for row in rows(twin)] == [(row.name, row.target) for row in rows(module)]
    assert twin(torch.ones(2)).tolist() == [4, 4]


def test_it_can_be_pickled() -> None:
    module = weft.to_fx(weft.from_fx(make_fx(lambda x: x + 1)(torch.ones(2))))
    assert pickle.loads(pickle.dumps(module))(torch.ones(2)).tolist() == [2, 2]


def test_it_can_be_compiled() -> None:
    torch._dynamo.reset()
    module = weft.to_fx(weft.from_fx(make_fx(lambda x: x.sin() + 1)(torch.ones(2))))
    assert torch.compile(module, backend="aot_eager")(torch.zeros(2)).tolist() == [1, 1]


def test_it_shares_the_parameters_of_the_module_that_it_came_from() -> None:
    module = torch.export.export(Scaled(), (torch.ones(2),)).module()
    assert isinstance(module, GraphModule)
    lowered = weft.to_fx(weft.from_fx(module))
    assert [id(parameter) for parameter in lowered.parameters()] == [id(parameter) for parameter in module.parameters()]


def listed(one: object) -> bool:
    """Whether the collector looks at an object: it does not at those that are frozen."""
    return any(known is one for known in gc.get_objects())


def young(one: object) -> bool:
    """Whether the collector will look at an object before long."""
    return any(known is one for generation in (0, 1) for known in gc.get_objects(generation))


def test_a_pause_of_the_collector_leaves_frozen_objects_frozen() -> None:
    one: list[object] = []  # watched by itself: how many objects are frozen changes as others are freed
    try:
        gc.freeze()
        with no_collection():
            many: list[object] = [[] for _ in range(200_000)]
        assert not listed(one)
        gc.unfreeze()
        assert listed(one)
        assert len(many) == 200_000
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("count", "soon"), [(200_000, False), (1_000, True)], ids=["much", "little"])
def test_what_was_made_in_a_pause_is_looked_at_late_if_it_is_much(count: int, soon: bool) -> None:
    gc.collect()
    with no_collection():
        made: list[object] = [[] for _ in range(count)]
        found = made[-1]
    gc.disable()
    try:
        assert young(found) is soon
    finally:
        gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with no_collection():
            assert not gc.isenabled()
        made()
        with pytest.raises(GraphError):
            weft.from_fx(torch.fx.symbolic_trace(Scaled()))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
