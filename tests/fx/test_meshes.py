"""Groups of a device mesh: as names and, where one graph serves all ranks, as nodes that look them up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import weft
from tests.fx.graphs import Captured, aot_graphs, fake_world, groups_of, lines, round_trip, spelled

C10D = torch.ops._c10d_functional

Parallel: TypeAlias = tuple[str, bool, list[Captured]]


class TensorParallel(nn.Module):
    """Two linear layers, split over the second dimension of a mesh of two by two."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(torch.relu(self.up(x)))
        return result


@pytest.fixture(scope="module", params=[False, True], ids=["names", "nodes"])
def tensor_parallel(request: pytest.FixtureRequest) -> Iterator[Parallel]:
    """Forward and backward, with the groups as strings or, as for one graph on all ranks, as nodes."""
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(0)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        module = parallelize_module(TensorParallel(), mesh["tp"], plan)
        with dist.config.patch(compile_on_one_rank=request.param):
            graphs = aot_graphs(module, torch.ones(4, 8, requires_grad=True))
        yield mesh["tp"].get_group().group_name, request.param, graphs


def communication(program: weft.Program) -> list[str]:
    wanted = (".start(", " = wait(", "mesh_get_process_group", "_opaque_obj")
    return [line for line in lines(program) if any(word in line for word in wanted)]


def test_forward_and_backward_over_a_mesh_read_so(tensor_parallel: Parallel) -> None:
    name, nodes, (forward, backward) = tensor_parallel
    there, back = round_trip(forward.module), round_trip(backward.module)
    assert groups_of(there) == groups_of(back) == {name: (0, 1)}
    if nodes:
        assert communication(there) == [
            '%_opaque_obj0: object = get_attr("_opaque_obj0")',
            "%mesh_get_process_group: object = _dtensor.mesh_get_process_group.default(%_opaque_obj0, 0) {pure}",
            f'%all_reduce: f32[4,8] = all_reduce.start(%addmm_1, group=%mesh_get_process_group) sum over "{name}"',
            "%wait_tensor: f32[4,8] = wait(%all_reduce)",
        ]
        assert communication(back) == [
            '%_opaque_obj0_1: object = get_attr("_opaque_obj0")',
            "%mesh_get_process_group_1: object = _dtensor.mesh_get_process_group.default(%_opaque_obj0_1, 0) {pure}",
            f'%all_reduce_1: f32[4,8] = all_reduce.start(%mm_2, group=%mesh_get_process_group_1) sum over "{name}"',
            "%wait_tensor_1: f32[4,8] = wait(%all_reduce_1)",
        ]
    else:
        assert communication(there) == [
            f'%all_reduce: f32[4,8] = all_reduce.start(%addmm_1) sum over "{name}"',
            "%wait_tensor: f32[4,8] = wait(%all_reduce)",
        ]
        assert communication(back) == [
            f'%all_reduce_1: f32[4,8] = all_reduce.start(%mm_2) sum over "{name}"',
            "%wait_tensor_1: f32[4,8] = wait(%all_reduce_1)",
        ]


def test_a_start_moves_and_keeps_its_group(tensor_parallel: Parallel) -> None:
    _, nodes, (_, backward) = tensor_parallel
    editor = weft.Editor(weft.from_fx(backward.module))
    moved = ["mm_2", *(["_opaque_obj0_1", "mesh_get_process_group_1"] if nodes else []), "all_reduce_1"]
    for anchor, name in pairwise(moved):
        editor.move_after(name, anchor)
    made = weft.to_fx(editor.finish("up"))
    made.graph.lint()
    order = [node.name for node in made.graph.nodes]
    assert order[order.index("mm_2") :][: len(moved)] == moved
    assert sorted(spelled(made)) == sorted(spelled(backward.module))


def test_a_new_start_may_take_the_node_of_an_old_one(tensor_parallel: Parallel) -> None:
    _, nodes, (forward, _) = tensor_parallel
    editor = weft.Editor(weft.from_fx(forward.module))
    old = editor["all_reduce"]
    editor.insert_after("all_reduce", weft.Op("again", old.target, old.args, old.kwargs, old.out, old.traits, old.comm))
    made = weft.to_fx(editor.finish("twice"))
    first, second = (node for node in made.graph.nodes if node.target is C10D.all_reduce.default)
    assert second.args == first.args
    assert isinstance(second.args[2], torch.fx.Node) == nodes
    assert second.meta["val"].shape == (4, 8)
