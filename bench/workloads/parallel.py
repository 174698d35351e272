"""Models spread over a group by something else than their batch: tensor, sequence and expert parallelism."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from bench.workloads.moe import Experts
from weft.cli.llama import Llama


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Spread a Llama over the one-dimensional `mesh`, in place; its parameters become DTensors.

    Weights are split by heads and hidden units (Shoeybi et al., 2019). Between the matrices the activations are split
    along the sequence (Korthikanti et al., 2022): gathered before each part, scattered after. Every rank is given the
    same batch, and gets all logits. The mesh must divide the key and value heads and the length of a sequence. Every
    rank must hold the same weights before: nothing is sent.
    """
    if type(model) is not Llama:  # a mixture of experts is a Llama too, but its MLPs are not
        raise TypeError(f"there is a tensor-parallel plan for Llama only, not for {type(model).__name__}")
    if model.config.kv_heads % mesh.size():
        raise ValueError(f"{model.config.kv_heads} key and value heads cannot be split over {mesh.size()} ranks")
    for layer in model.layers:
        parallelize_module(layer, mesh, layer_plan(), src_data_rank=None)
    parallelize_module(model, mesh, _ends_plan(), src_data_rank=None)


def _ends_plan() -> dict[str, ParallelStyle]:
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def layer_plan() -> dict[str, ParallelStyle]:
    """How a layer of a Llama is split: it takes and gives this rank's part of the sequence."""
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def expert_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Spread the experts of every mixture over the one-dimensional `mesh`, in place; each rank keeps its share.

    Every rank is given its own batch. The gradient of an expert is the sum over the ranks whose tokens it saw; that of
    any other parameter is this rank's alone. The mesh must divide the experts.
    """
    for experts in expert_modules(model):
        _keep_share(experts, mesh)


def _keep_share(experts: Experts, mesh: DeviceMesh) -> None:
    count = len(experts.gate) // experts.width
    if count % mesh.size():
        raise ValueError(f"{count} experts cannot be spread evenly over {mesh.size()} ranks")
    for name, weight in list(experts.named_parameters()):
        share = weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
        setattr(experts, name, nn.Parameter(share))
    experts.group = mesh.get_group()


def expert_parameters(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of the experts: after `expert_parallel` they differ between the ranks of its mesh."""
    return {weight for experts in expert_modules(model) for weight in experts.parameters()}


def expert_modules(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


def settled(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient laid out as its parameter is.

    DTensor leaves some gradients otherwise: that of a norm as a sum still to be made, that of the embedding whole.
    """
    if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
        return gradient
    if gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(placements=parameter.placements)
