"""BERT, RoBERTa, DistilBERT, ELECTRA and ModernBERT give transformers' logits and gradients. fp32: 1e-5 and 1e-4."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from tests.interop.peers import ENCODERS, VOCAB, build, gradients, load, ours, positions, rows
from zoo.blocks.api import Context
from zoo.interop import hf_electra
from zoo.registry import ConfigError


def compare(model: Any, grads: dict[str, Tensor], tolerance: float = 1e-4, floor: float = 1e-3) -> None:
    parameters = dict(model.named_parameters())
    assert grads.keys() == parameters.keys()
    for name, grad in grads.items():
        assert grad.abs().max() > floor, f"{name} has no gradient to compare"
        torch.testing.assert_close(
            parameters[name].grad, grad, rtol=0, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


def weighted(outputs: list[Tensor]) -> Tensor:
    """A sum of all outputs with random weights, of O(1)."""
    generator = torch.Generator().manual_seed(2)
    return sum(  # type: ignore[return-value]
        (y * torch.randn(y.shape, generator=generator).to(y)).sum() / len(y) ** 0.5 for y in outputs
    )


def inputs(name: str, peer: Any, padding: str) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Ids, mask, and further inputs of theirs and of ours."""
    ids, mask = rows(padding)
    ids = torch.where(mask, ids, peer.config.pad_token_id)
    theirs: dict[str, Tensor] = {"attention_mask": mask.long()}
    mine: dict[str, Tensor] = {} if padding == "none" else {"token_mask": mask}
    if name.startswith(("bert", "electra")):
        types = (torch.arange(ids.shape[1]) > 6).long().expand_as(ids)
        theirs |= {"token_type_ids": types}
        mine |= {"token_types": types}
    if not name.startswith(("roberta", "distilbert")):  # RoBERTa derives them from the ids
        theirs |= {"position_ids": positions(mask)}
    return ids, mask, theirs, mine


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in ("bert", "bert relu trunk")])
def test_masked_logits_and_gradients_equal_transformers(name: str, padding: str) -> None:
    if name == "distilbert" and padding == "left":
        padding = "right"  # transformers' DistilBERT counts padding on the left as positions
    peer = build(name)
    model, family = ours(peer)
    ids, mask, theirs, mine = inputs(name, peer, padding)
    expected, found = peer(ids, **theirs).logits[mask], model(ids, **mine)[mask]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weighted([expected]).backward()
    weighted([found]).backward()
    compare(model, family.from_huggingface(gradients(peer), model.config), floor=0.0 if "roberta" in name else 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_both_heads_of_bert_and_all_gradients_equal_transformers(padding: str, dtype: torch.dtype) -> None:
    peer = build("bert").to(dtype)
    model, family = ours(peer)
    ids, mask, theirs, mine = inputs("bert", peer, padding)
    if padding == "left":  # its pooler reads the first place, ours the first real token
        peer.bert.pooler.forward = lambda hidden: _pool(peer.bert.pooler, hidden, mask)
    answer = peer(ids, **theirs)
    expected = [answer.prediction_logits[mask], answer.seq_relationship_logits]
    context = Context(token_mask=mine.get("token_mask"))
    x = model.features(ids, context, mine["token_types"])
    found = [model.head(x)[mask], model.sentence_logits(x, context)]
    exact = dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11 if exact else 1e-5)
    weighted(expected).backward()
    weighted(found).backward()
    compare(model, family.from_huggingface(gradients(peer), model.config), tolerance=1e-10 if exact else 1e-4)


def _pool(pooler: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    first = mask.long().argmax(-1)
    return torch.tanh(pooler.dense(hidden[torch.arange(len(hidden)), first]))


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_class_logits_and_gradients_equal_transformers(name: str) -> None:
    torch.manual_seed(1)
    base = build("roberta" if name == "roberta" else "bert").config
    kind = hf.RobertaForSequenceClassification if name == "roberta" else hf.BertForSequenceClassification
    base.num_labels = 3
    peer = kind(base).eval()
    model, family = ours(peer)
    ids, _, theirs, mine = inputs(name, peer, "right")
    expected, found = peer(ids, **theirs).logits, model(ids, **mine)
    assert found.shape == (3, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weighted([expected]).backward()
    weighted([found]).backward()
    compare(model, family.from_huggingface(gradients(peer), model.config), floor=0.0)


def test_a_trunk_without_heads_equals_transformers() -> None:
    peer = build("bert relu trunk")
    model, _ = ours(peer)
    ids, mask, theirs, mine = inputs("bert", peer, "right")
    answer = peer(ids, **theirs)
    x = model(ids, **mine)
    torch.testing.assert_close(x[mask], answer.last_hidden_state[mask], rtol=0, atol=1e-5)
    torch.testing.assert_close(model.pooled(x, Context(token_mask=mask)), answer.pooler_output, rtol=0, atol=1e-5)


def electra_pair(embedding: int = 24) -> tuple[Any, Any]:
    """A discriminator of width 32 and a generator of half its width, with the same embeddings."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": 32, "embedding_size": embedding}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    large = hf.ElectraConfig(**sizes, hidden_size=32, num_attention_heads=4, intermediate_size=40)
    small = hf.ElectraConfig(**sizes, hidden_size=16, num_attention_heads=2, intermediate_size=20)
    peers = hf.ElectraForPreTraining(large).eval(), hf.ElectraForMaskedLM(small).eval()
    with torch.no_grad():
        for peer in peers:
            for parameter in peer.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            table = getattr(peers[0].electra.embeddings, name).weight
            getattr(peers[1].electra.embeddings, name).weight.copy_(table)
    return peers


@pytest.mark.parametrize("embedding", [24, 32])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_discriminator_and_generator_of_electra_equal_transformers(padding: str, embedding: int) -> None:
    large, small = electra_pair(embedding)
    config = hf_electra.config_from_pair(large.config.to_dict(), small.config.to_dict())
    model: Any = config.build().eval()
    load(model, hf_electra.from_pair(large.state_dict(), small.state_dict(), config))
    ids, mask, theirs, mine = inputs("electra", large, padding)
    expected = [large(ids, **theirs).logits[mask], small(ids, **theirs).logits[mask]]
    found = [model(ids, **mine)[mask], model.generator(ids, **mine)[mask]]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weighted(expected).backward()
    weighted(found).backward()
    grads, other = (hf_electra.ELECTRA.canonical(gradients(peer)) for peer in (large, small))
    for name in other.keys() & grads.keys():
        if "embeddings." in name and "LayerNorm" not in name:  # what both read has the sum of both gradients
            grads[name] = other[name] = grads[name] + other[name]
    compare(model, hf_electra.from_pair(grads, other, config))


def test_an_electra_whose_two_parts_have_other_embeddings_is_refused() -> None:
    large, small = electra_pair()
    config = hf_electra.config_from_pair(large.config.to_dict(), small.config.to_dict())
    changed = {name: tensor + 1 for name, tensor in small.state_dict().items()}
    with pytest.raises(ConfigError, match="differs between discriminator and generator"):
        hf_electra.from_pair(large.state_dict(), changed, config)
