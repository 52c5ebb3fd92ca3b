"""A model of any mixers is a model like others: it is saved, loaded, copied, moved, pickled and exported."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import torch

import zoo

MIXERS = [name for name in zoo.list_mixers() if not name.startswith("hybrid")]
IDS = torch.arange(20).view(2, 10) % 12


def test_a_model_of_all_mixers_is_saved_loaded_copied_moved_and_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mixer = {"name": "hybrid", "pattern": "+".join(MIXERS)}
    sizes = {"vocab_size": 12, "max_len": 32, "dim": 16, "depth": len(MIXERS), "heads": 2}
    model = zoo.create_model("gpt", mixer=mixer, **sizes).eval()
    with torch.no_grad():
        logits = model(IDS)
        zoo.save_pretrained(model, tmp_path)
        for twin in (zoo.load_pretrained(tmp_path), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(twin.eval()(IDS), logits)
        assert copy.deepcopy(model).to("meta")(IDS.to("meta")).shape == logits.shape
        program = torch.export.export(model, (IDS,))
        torch.testing.assert_close(program.module()(IDS), logits, rtol=0, atol=1e-5)
