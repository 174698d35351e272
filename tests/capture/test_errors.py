"""What `capture` and `capture_compiled` refuse: the place in the user's code, the reason, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh

import weft
from weft import GraphError
from weft.parallel import data_parallel

WHERE = "compute both sides and choose with torch.where, or keep the decision outside of the function that is captured"
MAKE_A_WORLD = "capture inside weft.planning, or initialise torch.distributed first"
INSTEAD = (
    "see that it runs without torch.compile, then keep that call outside of what is captured, or make it an operator "
    "with torch.library.custom_op"
)


def refused(capture: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The message, with the chain of torch's own errors hidden."""
    with pytest.raises(GraphError) as caught:
        capture(*args, **kwargs)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def place(function: Callable[..., Any], line: int) -> str:
    """Where the `line`th line of a function's body is."""
    return f"{__file__}:{function.__code__.co_firstlineno + line}"


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Bool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if bool((x > 0).all()) else -x


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.max().item()


class Selection(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


def inside(module: nn.Module) -> nn.Module:
    """The module called by another one's library, as a transformer calls what its user plugs in."""
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(module), nn.Linear(4, 4))


both = pytest.mark.parametrize("capture", [weft.capture, weft.capture_compiled])


@both
@pytest.mark.parametrize("module", [Branch(), Bool()], ids=["if", "bool"])
def test_a_decision_by_value_in_a_module_that_a_library_calls(capture: Callable[..., Any], module: nn.Module) -> None:
    assert refused(capture, inside(module), (torch.ones(2, 4),)) == (
        f"this step decides by the value of a tensor, at {place(module.forward, 1)}, and a plan cannot know it; {WHERE}"
    )


def test_a_number_out_of_a_tensor() -> None:
    """Only `capture` would have to know the number; torch.compile keeps it in a tensor."""
    assert refused(weft.capture, inside(Item()), (torch.ones(2, 4),)) == (
        f"this step decides by the value of a tensor, at {place(Item.forward, 1)}, and a plan cannot know it; {WHERE}"
    )
    captured = weft.capture_compiled(Item(), (torch.ones(2, 4),))
    assert captured.forward.ops[-1].target == "aten.mul.Tensor"


def test_a_shape_that_depends_on_values() -> None:
    assert refused(weft.capture, inside(Selection()), (torch.ones(2, 4),)) == (
        f"the shape of a result depends on the values of a tensor, at {place(Selection.forward, 1)} "
        "(aten.nonzero.default), and a plan cannot know it; keep the shape and mask with torch.where, or keep the "
        "selection outside of the function that is captured"
    )


# What breaks a graph


class Prints(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("here", x)
        return x


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not today")


BREAKS = {
    "print": (Prints(), "Dynamo does not know how to trace builtin operator `print` with argument types"),
    "break": (Breaks(), "User-inserted graph break"),
    "raise": (Raises(), "raised exception ValueError('not today')"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_what_breaks_the_graph_is_named(case: str) -> None:
    module, reason = BREAKS[case]
    message = refused(weft.capture_compiled, inside(module), (torch.ones(2, 4),))
    assert message.startswith(f"torch.compile cannot take this as one graph, at {place(module.forward, 1)}: {reason}")
    assert message.endswith(f"; {INSTEAD}")


def test_an_error_of_the_function_itself_is_left_alone() -> None:
    with pytest.raises(ValueError, match=r"^not today$"):
        weft.capture(Raises(), (torch.ones(2, 4),))


# Worlds and meshes


class Communicates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        group = dist.group.WORLD
        y: Tensor = all_reduce(x, "sum", group)  # type: ignore[arg-type]
        return y


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y


class AsksForRanks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        ranks = 1
        return x * (ranks + dist.get_world_size())


class ByName(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops._c10d_functional
        y: Tensor = ops.wait_tensor(ops.all_reduce(x, "sum", "0"))
        return y


@both
@pytest.mark.parametrize(
    "module", [Communicates(), InPlace(), AsksForRanks(), ByName()], ids=lambda m: type(m).__name__
)
def test_a_model_that_communicates_where_there_is_no_world(capture: Callable[..., Any], module: nn.Module) -> None:
    assert refused(capture, inside(module), (torch.ones(2, 4),)) == (
        f"this communicates, at {place(module.forward, 2)}, and there is no process group; {MAKE_A_WORLD}"
    )


def makes_a_mesh(x: Tensor) -> Tensor:
    init_device_mesh("cpu", (4,))
    return x


def test_a_mesh_that_is_made_where_there_is_no_world() -> None:
    assert refused(weft.capture, makes_a_mesh, (torch.ones(2, 4),)) == (
        f"this communicates, at {place(makes_a_mesh, 1)}, and there is no process group; {MAKE_A_WORLD}"
    )


@both
def test_a_model_that_left_its_world(capture: Callable[..., Any]) -> None:
    with weft.planning({"data": 4}) as mesh:
        model = data_parallel(nn.Linear(4, 4), mesh)

    def captured() -> None:
        capture(model, (torch.ones(2, 4),))

    assert refused(captured) == (
        f"the mesh of parameter weight takes 4 ranks and there is no process group, at {place(captured, 1)}; "
        f"{MAKE_A_WORLD}"
    )


@both
def test_a_model_in_a_world_that_is_too_small_for_it(capture: Callable[..., Any]) -> None:
    with weft.planning({"data": 4}) as mesh:
        model = data_parallel(nn.Linear(4, 4), mesh)

    def captured() -> None:
        with weft.planning({"data": 2}):
            capture(model, (torch.ones(2, 4),))

    assert refused(captured) == (
        f"the mesh of parameter weight takes 4 ranks and the world has 2, at {place(captured, 2)}; "
        "capture in the world that the mesh was made for"
    )


def test_a_mesh_by_name_without_a_world() -> None:
    def captured() -> None:
        weft.capture(nn.Linear(4, 4), (torch.ones(2, 4),), mesh={"data": 4})

    assert refused(captured) == (
        f"a mesh needs a world, and there is none, at {place(captured, 1)}; "
        "say world_size, or initialise torch.distributed first"
    )


def test_a_mesh_by_name_that_does_not_fit_the_world() -> None:
    def captured() -> None:
        weft.capture(nn.Linear(4, 4), (torch.ones(2, 4),), world_size=8, mesh={"data": 4, "tensor": 4})

    assert refused(captured) == (
        f"a mesh of data=4 x tensor=4 takes 16 ranks, and the world has 8, at {place(captured, 1)}; "
        "change one of them so that they agree"
    )
    assert not dist.is_initialized()


def test_a_mesh_of_another_world() -> None:
    with weft.planning({"data": 4}) as mesh:
        pass

    def captured(**options: Any) -> None:
        weft.capture(nn.Linear(4, 4), (torch.ones(2, 4),), mesh=mesh, **options)

    assert refused(captured) == (
        f"the mesh takes 4 ranks and there is no process group, at {place(captured, 1)}; {MAKE_A_WORLD}"
    )
    assert refused(captured, world_size=8) == (
        f"the mesh takes 4 ranks and the world has 8, at {place(captured, 1)}; "
        "capture in the world that the mesh was made for"
    )


# Devices


@both
def test_a_parameter_on_another_device(capture: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))

    def captured() -> None:
        capture(model, (torch.ones(2, 4),))

    assert refused(captured) == (
        f"parameter 1.weight is on meta and parameter 0.weight is on cpu, at {place(captured, 1)}; put the model and "
        'what it is called with on one device, such as model.to_empty(device="cpu")'
    )


@both
def test_an_input_on_another_device(capture: Callable[..., Any]) -> None:
    def captured(*args: Any, **kwargs: Any) -> None:
        capture(nn.Linear(4, 4), args, kwargs)

    away = "put the model and what it is called with on one device"
    x = torch.ones(2, 4, device="meta")
    by_position = f"args[0] is on meta and parameter weight is on cpu, at {place(captured, 1)}; {away}"
    assert refused(captured, x).startswith(by_position)
    by_name = f"kwargs['input'] is on meta and parameter weight is on cpu, at {place(captured, 1)}; {away}"
    assert refused(captured, input=x).startswith(by_name)


@both
def test_a_fake_parameter_on_another_device(capture: Callable[..., Any]) -> None:
    with weft.planning({"data": 4}):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = nn.Parameter(torch.empty(4, 4, device="cuda"))
        message = refused(capture, model, (torch.ones(2, 4),))
    assert message.startswith("parameter 1.weight is on cuda and parameter 0.weight is on cpu, at ")


def test_numbers_may_be_elsewhere() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 4)

    def scaled(x: Tensor, factor: Tensor) -> Tensor:
        y: Tensor = model(x) * factor
        return y

    assert len(weft.capture(scaled, (torch.ones(2, 4, device="meta"), torch.tensor(2.0)))) > 0
