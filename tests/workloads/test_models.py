"""The models of the zoo: published sizes, the mathematics of their parts, training and tracing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from bench.workloads import gpt2, moe, tiny_parameters, vit
from tests.workloads.models import TINY, assert_alike, enliven, lively, step_of, tiny
from weft.cli import llama
from weft.cli.rotary import angles, rotate
from weft.cli.tasks import loss


@pytest.mark.parametrize(
    ("make", "config", "published"),
    [
        (llama.Llama, llama.llama3_8b(), 8_030_261_248),
        (llama.Llama, llama.llama3_70b(), 70_553_706_496),
        (gpt2.GPT2, gpt2.gpt2_xl(), 1_557_611_200),
        (vit.ViT, vit.vit_l16(), 304_326_632),
        (vit.ViT, vit.vit_h14(), 632_045_800),
        (moe.MoETransformer, moe.mixtral_8x7b(), 46_702_792_704),
    ],
    ids=["llama3_8b", "llama3_70b", "gpt2_xl", "vit_l16", "vit_h14", "mixtral_8x7b"],
)
def test_a_preset_has_the_published_number_of_parameters(make: type[nn.Module], config: object, published: int) -> None:
    with torch.device("meta"):
        model = make(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == published
    assert not list(model.buffers())


def test_tiny_parameters_are_many_and_tiny() -> None:
    model = tiny_parameters.TinyParameters(tiny_parameters.tiny_parameters())
    parameters = list(model.parameters())
    assert len(parameters) == 802
    assert max(parameter.nbytes for parameter in parameters) == 16 * 1024


@pytest.mark.parametrize("name", TINY)
def test_a_model_begins_near_chance_and_learns_its_batch(name: str) -> None:
    model, batch = tiny(name)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        value = loss(model, *batch)
        optimiser.zero_grad()
        torch.autograd.backward(value)
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimiser.step()
        losses.append(value.item())
    classes = {"vit": 10, "tiny_parameters": 10}.get(name, 64)
    assert losses[0] == pytest.approx(torch.tensor(float(classes)).log().item(), abs=0.3)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", TINY)
def test_forward_and_backward_run_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model, batch = tiny(name)
    value = loss(model, *batch)
    torch.autograd.backward(value)
    assert value.is_meta
    assert all(parameter.grad is not None and parameter.grad.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", TINY)
def test_make_fx_traces_a_step_that_computes_the_same(name: str) -> None:
    model, batch = lively(name)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    traced = make_fx(step_of(model), tracing_mode="fake")(parameters, *batch)
    assert_alike(traced(parameters, *batch), step_of(model)(parameters, *batch))


@pytest.mark.parametrize("name", TINY)
def test_compile_takes_the_whole_model_and_computes_the_same(name: str) -> None:
    torch._dynamo.reset()
    model, batch = lively(name)
    parameters = list(model.parameters())
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(model, *batch)
    eager = loss(model, *batch)
    assert_alike(compiled, eager)
    assert_alike(torch.autograd.grad(compiled, parameters), torch.autograd.grad(eager, parameters))


@pytest.mark.parametrize("name", ["llama", "gpt2", "moe"])
def test_a_language_model_does_not_see_the_future(name: str) -> None:
    model, (tokens, _) = lively(name)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 64
    assert_alike(model(tokens)[:, :9], model(changed)[:, :9])
    assert not torch.allclose(model(tokens)[:, 9:], model(changed)[:, 9:])


def test_rotation_keeps_lengths_and_makes_products_depend_on_distance_only() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 8).double(), torch.randn(2, 8).double()
    turns = angles(12, 8, 10_000.0, torch.device("cpu"))

    def at(x: Tensor, position: int) -> Tensor:
        return rotate(x.float()[:, None, None], turns[position : position + 1])[:, 0, 0]

    assert_alike(at(q, 7).norm(dim=-1), q.float().norm(dim=-1))
    assert_alike((at(q, 7) * at(k, 4)).sum(-1), (at(q, 11) * at(k, 8)).sum(-1))
    assert not torch.allclose((at(q, 7) * at(k, 4)).sum(-1), (at(q, 7) * at(k, 7)).sum(-1))


def test_gpt2_shares_one_parameter_between_embedding_and_head() -> None:
    model = gpt2.GPT2(gpt2.gpt2_tiny())
    assert model.head.weight is model.embedding.weight
    assert [name for name, _ in model.named_parameters() if "head" in name] == []


def mixture_by_hand(mixture: moe.MoE, tokens: Tensor, room: int) -> Tensor:
    """Token by token: its top experts by score, those that have room left, weighed by softmax among the chosen."""
    left = [room] * mixture.router.experts
    rows = []
    for token in tokens:
        scores, chosen = mixture.router.score(token).topk(mixture.router.chosen)
        row = torch.zeros_like(token)
        for weight, expert in zip(scores.softmax(-1), chosen.tolist(), strict=True):
            if left[expert]:
                left[expert] -= 1
                parts = (mixture.experts.gate, mixture.experts.up, mixture.experts.down)
                gate, up, down = (part.chunk(mixture.router.experts)[expert] for part in parts)
                row = row + weight * ((nn.functional.silu(token @ gate) * (token @ up)) @ down)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(("capacity", "room"), [(2.0, 24), (1.0, 12), (0.5, 6)])
def test_a_mixture_is_that_of_its_tokens_experts(capacity: float, room: int) -> None:
    torch.manual_seed(0)
    mixture = moe.MoE(replace(moe.moe_tiny(), capacity=capacity))
    enliven(mixture)
    x = torch.randn(2, 12, 32)
    expected = mixture_by_hand(mixture, x.flatten(0, 1), room)
    assert_alike(mixture(x).flatten(0, 1), expected)
    dropped = int((mixture.router(x.flatten(0, 1)).places == 4 * room).sum())
    assert (dropped > 0) == (capacity <= 1)
