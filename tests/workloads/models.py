"""The tiny models of the zoo, each with its batch, and ways to differentiate and trace them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.func import functional_call
from torch.fx import GraphModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from bench.workloads import gpt2, moe, tiny_parameters, vit
from weft.cli import llama
from weft.cli.tasks import Batch, loss

Make = tuple[Callable[[Any], nn.Module], Any, Callable[..., Batch]]

TINY: dict[str, Make] = {
    "llama": (llama.Llama, llama.llama_tiny(), llama.batch),
    "gpt2": (gpt2.GPT2, gpt2.gpt2_tiny(), gpt2.batch),
    "vit": (vit.ViT, vit.vit_tiny(), vit.batch),
    "moe": (moe.MoETransformer, moe.moe_tiny(), llama.batch),
    "tiny_parameters": (tiny_parameters.TinyParameters, tiny_parameters.tiny_parameters_tiny(), tiny_parameters.batch),
}


def tiny(name: str, size: int = 2) -> tuple[nn.Module, Batch]:
    """The same model and batch each time, on torch's default device, as the model is when training begins."""
    make, config, batch = TINY[name]
    torch.manual_seed(0)
    return make(config), batch(config, size)


def lively(name: str, size: int = 2) -> tuple[nn.Module, Batch]:
    """The same, but with weights so large that every gradient is far above what a comparison lets pass."""
    model, batch = tiny(name, size)
    enliven(model)
    return model, batch


def enliven(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)


def assert_alike(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Functional(nn.Module):
    """A model called with parameters that are given to it, hidden from whoever asks for its own."""

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.call: Callable[..., Any] = lambda *inputs: functional_call(model, parameters, inputs)

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(*inputs)


def step_of(model: nn.Module) -> Callable[..., list[Tensor]]:
    """A function of the model's parameters and a batch: the loss, then the gradient of each parameter."""

    def step(parameters: dict[str, Tensor], *inputs: Tensor) -> list[Tensor]:
        value = loss(Functional(model, parameters), inputs[0], inputs[1])
        return [value.detach(), *torch.autograd.grad(value, list(parameters.values()))]

    return step


def collectives(module: GraphModule) -> dict[str, int]:
    """How often each kind of collective is started."""
    names = (str(node.target) for node in module.graph.nodes)
    found = Counter(name.split(".")[1] for name in names if name.startswith("_c10d_functional."))
    del found["wait_tensor"]
    return dict(found)


@contextmanager
def fake_mesh(world_size: int) -> Iterator[DeviceMesh]:
    """A one-dimensional mesh whose other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield init_device_mesh("cpu", (world_size,))
    finally:
        dist.destroy_process_group()
