"""Models of the transformers library, as they come: every collective, where it comes from, and the same numbers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weft
from weft.ir import Program
from weft.parallel import data_parallel
from weft.run import virtual

transformers = pytest.importorskip("transformers")

RANKS, WORDS, LENGTH = 8, 64, 16

COMMON = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY = {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", ROTARY),
    "gpt2": ("GPT2LMHeadModel", COMMON | {"bos_token_id": 0, "eos_token_id": 0}),
    "bert": ("BertForMaskedLM", COMMON | {"intermediate_size": 48}),
    "mixtral": ("MixtralForCausalLM", ROTARY | {"num_local_experts": 8}),
}
# To compare numbers, dropout is off where it is on by default. Mixtral's default, the grouped matrix product, has
# a shape function for bfloat16 only.
EXACT: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "mixtral": {"experts_implementation": "batched_mm"},
}


def model_of(kind: str, **changes: Any) -> nn.Module:
    name, sizes = CONFIGS[kind]
    config = transformers.AutoConfig.for_model(kind, **sizes, **changes)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(config)
    return model.train()


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss = loss_of(model, tokens)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def captured(kind: str, mode: Any, *, train: bool = False, **options: Any) -> tuple[Program, nn.Module]:
    with weft.planning({"data": RANKS}) as mesh:
        model = data_parallel(model_of(kind), mesh, mode, **options)
        tokens = torch.randint(WORDS, (2, LENGTH))
        if train:
            return weft.capture(step, (model, torch.optim.AdamW(model.parameters()), tokens)), model
        return weft.capture(loss_of, (model, tokens)), model


def kinds(program: Program) -> dict[str, int]:
    return dict(Counter(op.comm.kind for op in program.starts if op.comm is not None))


def read_again(model: nn.Module) -> int:
    """How many parameters the backward reads: all but the biases of matrices and tables that are not heads as well."""
    matrices = [part for part in model.modules() if isinstance(part, nn.Linear | transformers.pytorch_utils.Conv1D)]
    tables = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
    biases = {part.bias for part in matrices if part.bias is not None}
    return len(set(model.parameters()) - biases - (tables - {part.weight for part in matrices}))


def check_origins(program: Program, model: nn.Module, kind: str) -> None:
    """Each parameter is gathered, if at all, and reduced, under its own name and at a line of the library."""
    served: dict[str, list[str]] = {"gathered": [], "reduced": []}
    for op in program.starts:
        found = re.fullmatch(r"(gradient of )?(\S+) (\S+)/transformers/(\S+\.py):\d+", op.origin)
        assert found is not None, op.origin
        served["reduced" if found[1] else "gathered"].append(found[2])
        assert found[4] in (f"models/{kind}/modeling_{kind}.py", "pytorch_utils.py", "integrations/moe.py")
    names = {name for name, _ in model.named_parameters()}
    assert Counter(served["reduced"]) == Counter(names)
    assert set(served["gathered"]) in (set(), names)


DTYPES: dict[str, dict[str, Any]] = {"mixtral": {"param_dtype": torch.bfloat16}}


@pytest.mark.parametrize("train", [False, True], ids=["gradients", "AdamW"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_replicated_model_reduces_every_gradient_once(kind: str, train: bool) -> None:
    program, model = captured(kind, "replicate", train=train, **DTYPES.get(kind, {}))
    weft.verify(program)
    assert kinds(program) == {"all_reduce": len(list(model.parameters()))}
    check_origins(program, model, kind)


@pytest.mark.parametrize("train", [False, True], ids=["gradients", "AdamW"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sharded_model_gathers_for_each_direction_and_scatters_once(kind: str, train: bool) -> None:
    program, model = captured(kind, "fully_shard", train=train, **DTYPES.get(kind, {}))
    weft.verify(program)
    count = len(list(model.parameters()))
    assert kinds(program) == {"all_gather": count + read_again(model), "reduce_scatter": count}
    check_origins(program, model, kind)


def rank_inputs(program: Program, model: nn.Module, tokens: Tensor, rank: int) -> list[Tensor]:
    """What a rank of two holds: its half of every parameter and of the batch, and all of every buffer."""
    held = {name: parameter.detach().chunk(2)[rank].clone() for name, parameter in model.named_parameters()}
    held |= dict(model.named_buffers()) | {"": tokens.chunk(2)[rank]}
    return [held[op.origin] for op in program.inputs]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_program_computes_what_the_model_computes(kind: str) -> None:
    """Captured for two ranks and run on both, against the model on one."""
    with weft.planning({"data": 2}) as mesh:
        model = data_parallel(model_of(kind, **EXACT[kind]), mesh, "fully_shard")
        program = weft.capture(loss_of, (model, torch.randint(WORDS, (2, LENGTH))))
    alone = model_of(kind, **EXACT[kind])
    tokens = torch.randint(WORDS, (4, LENGTH))
    results = virtual(program, [rank_inputs(program, alone, tokens, rank) for rank in range(2)])
    losses, *gradients = (torch.stack(both) for both in zip(*results, strict=True))
    torch.testing.assert_close(losses.mean(), loss_of(alone, tokens))
    for found, (name, parameter) in zip(gradients, alone.named_parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(found.flatten(0, 1), parameter.grad, rtol=1e-4, atol=1e-6), name
