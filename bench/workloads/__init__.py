"""The models and parallelism that Weft is measured on, written in plain PyTorch from their papers.

workload = WORKLOADS["llama3_8b_fsdp"]
with torch.device("meta"):
    model, inputs = workload.model(), workload.inputs()
loss = workload.loss(model, *inputs)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.workloads import gpt2, moe, tiny_parameters, vit
from bench.workloads.parallel import expert_parallel, tensor_parallel
from bench.workloads.workload import DataParallel, Plan, Workload
from weft.cli import llama, tasks

__all__ = ["WORKLOADS", "Plan", "Workload"]

Mesh = tuple[tuple[str, int], ...]


def _llama(
    name: str,
    description: str,
    config: llama.LlamaConfig,
    mesh: Mesh,
    data_parallel: DataParallel | None,
    plan: Plan | None = None,
) -> Workload:
    return Workload(name, description, mesh, data_parallel, plan, 1, config, llama.Llama, llama.batch, tasks.loss)


_TABLE = (
    Workload(
        name="gpt2_xl_ddp",
        description="GPT-2 XL, replicated on 2 nodes: gradients are averaged; embedding and head share one parameter",
        mesh=(("data", 16),),
        data_parallel="replicate",
        plan=None,
        micro_batch=4,
        config=gpt2.gpt2_xl(),
        make_model=gpt2.GPT2,
        make_inputs=gpt2.batch,
        loss=tasks.loss,
    ),
    _llama(
        "llama3_8b_fsdp",
        "Llama 3 8B, weights sharded over 8 nodes",
        llama.llama3_8b(),
        (("data", 64),),
        "fully_shard",
    ),
    _llama(
        "llama3_70b_fsdp_tp8",
        "Llama 3 70B, weights sharded over 8 nodes, tensor and sequence parallel within each",
        llama.llama3_70b(),
        (("data", 8), ("tensor", 8)),
        "fully_shard",
        Plan("tensor", tensor_parallel),
    ),
    _llama(
        "llama3_8b_hsdp",
        "Llama 3 8B, weights sharded within each of 8 nodes and replicated between them",
        llama.llama3_8b(),
        (("replicate", 8), ("shard", 8)),
        "hybrid_shard",
    ),
    _llama(
        "llama3_8b_tp8_sp",
        "Llama 3 8B on one node, tensor and sequence parallel only",
        llama.llama3_8b(),
        (("tensor", 8),),
        None,
        Plan("tensor", tensor_parallel),
    ),
    Workload(
        name="mixtral_ep8",
        description="Mixtral 8x7B on 8 nodes, an expert a rank: tokens travel within a node, weights are sharded",
        mesh=(("data", 8), ("expert", 8)),
        data_parallel="fully_shard",
        plan=Plan("expert", expert_parallel),
        micro_batch=1,
        config=moe.mixtral_8x7b(),
        make_model=moe.MoETransformer,
        make_inputs=llama.batch,
        loss=tasks.loss,
    ),
    Workload(
        name="vit_l16_ddp",
        description="ViT-L/16 on images of 224 pixels, replicated on 2 nodes",
        mesh=(("data", 16),),
        data_parallel="replicate",
        plan=None,
        micro_batch=64,
        config=vit.vit_l16(),
        make_model=vit.ViT,
        make_inputs=vit.batch,
        loss=tasks.loss,
    ),
    Workload(
        name="tiny_parameters_ddp",
        description="802 tiny parameters, replicated on 2 nodes: every collective is latency",
        mesh=(("data", 16),),
        data_parallel="replicate",
        plan=None,
        micro_batch=32,
        config=tiny_parameters.tiny_parameters(),
        make_model=tiny_parameters.TinyParameters,
        make_inputs=tiny_parameters.batch,
        loss=tasks.loss,
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _TABLE})
