"""Train a small model of OPT's architecture on a text, so that the paper's family can be served where no hub is.

    python scripts/train_opt.py OUT --text tinyshakespeare.txt.gz --vocab opt_gpt2-vocab.json.gz --merges ...

OUT becomes a Hugging Face folder: config.json, model.safetensors, and OPT's tokenizer as vocab.json and merges.txt. It
needs torch and transformers (the extra `golden`) and some minutes. The last tenth of the text is held out: the
perplexity on it is printed, and kept as `held_out.json`, beside that of guessing each token by how often it came
before. The same seed and machine give the same weights.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import OPTConfig, OPTForCausalLM

BEGIN = 2
"""`</s>`, which OPT puts before every text."""
LENGTH = 128
"""Tokens of a training example."""
BATCH = 4
LEARNING_RATE = 3e-3
"""The highest, after 50 steps; from there it falls to a twentieth."""
EVALUATED = 24
"""Batches of the held-out text on which the trained model is judged."""


def config(vocab_size: int) -> OPTConfig:
    """OPT's own choices at a size that learns in minutes."""
    return OPTConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        ffn_dim=512,
        max_position_embeddings=512,
        word_embed_proj_dim=128,
        dropout=0.0,
        bos_token_id=BEGIN,
        eos_token_id=BEGIN,
        pad_token_id=None,
        tie_word_embeddings=True,
    )


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def write_tokenizer(folder: Path, vocab: str, merges: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(vocab)
    (folder / "merges.txt").write_text(merges)
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False}
    settings |= {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


class Rows:
    """Tokens that never occur share one row of the embedding while the model is trained: it is a quarter as large.

    Since that row's logit counts once for each of them, the loss is the one over the whole vocabulary.
    """

    def __init__(self, tokens: torch.Tensor, vocab_size: int) -> None:
        kept = torch.cat([tokens, torch.tensor([BEGIN])]).unique()
        self.count = len(kept) + 1
        self.of_token = torch.full((vocab_size,), len(kept)).index_copy_(0, kept, torch.arange(len(kept)))
        """[vocab_size]"""
        self.weight = torch.zeros(self.count).index_fill_(
            0, torch.tensor([len(kept)]), math.log(vocab_size - len(kept))
        )
        """[count], added to logits."""

    def spread(self, model: OPTForCausalLM, vocab_size: int) -> OPTForCausalLM:
        """The model with a row for each token."""
        state = model.state_dict()
        for name in ("model.decoder.embed_tokens.weight", "lm_head.weight"):
            state[name] = state[name][self.of_token].clone()
        whole = OPTForCausalLM(config(vocab_size))
        whole.load_state_dict(state)
        return whole.eval()


def examples(tokens: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """`[BATCH, LENGTH + 1]`: windows at random places, each after BEGIN."""
    starts = torch.randint(len(tokens) - LENGTH, (BATCH, 1), generator=rng)
    return after_begin(tokens[starts + torch.arange(LENGTH)])


def after_begin(windows: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full((len(windows), 1), BEGIN), windows], dim=1)


@torch.inference_mode()
def held_out_loss(model: OPTForCausalLM, tokens: torch.Tensor) -> float:
    """Nats per token over the whole vocabulary, of consecutive windows."""
    windows = after_begin(tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH))
    losses = [
        torch.nn.functional.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        for batch in windows.split(BATCH)[:EVALUATED]
    ]
    return torch.stack(losses).mean().item()


def frequency_loss(tokens: torch.Tensor, held_out: torch.Tensor, vocab_size: int) -> float:
    """Nats per token of guessing by frequency alone; every token counts once more than it occurs."""
    counts = torch.bincount(tokens, minlength=vocab_size).double() + 1
    return -(counts / counts.sum()).log()[held_out].mean().item()


def train(tokens: torch.Tensor, vocab_size: int, num_steps: int, seed: int) -> OPTForCausalLM:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    rows = Rows(tokens, vocab_size)
    model = OPTForCausalLM(config(rows.count)).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(num_steps):
        decay = (1 + math.cos(math.pi * step / num_steps)) / 2
        rate = LEARNING_RATE * min(1.0, (step + 1) / 50) * (0.05 + 0.95 * decay)
        for group in optimiser.param_groups:
            group["lr"] = rate
        batch = rows.of_token[examples(tokens, rng)]
        logits = model(batch[:, :-1]).logits + rows.weight
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}", flush=True)
    return rows.spread(model, vocab_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    for name in ("text", "vocab", "merges"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    vocab, merges = read(args.vocab), read(args.merges)
    write_tokenizer(args.out, vocab, merges)
    tokenizer = ByteLevelBPETokenizer(str(args.out / "vocab.json"), str(args.out / "merges.txt"))
    vocab_size = -(-len(json.loads(vocab)) // 16) * 16
    tokens = torch.tensor(tokenizer.encode(read(args.text)).ids)
    tokens, held_out = tokens[: -len(tokens) // 10], tokens[-len(tokens) // 10 :]
    model = train(tokens, vocab_size, args.steps, args.seed)
    model.save_pretrained(args.out)
    found = {
        "steps": args.steps,
        "perplexity": math.exp(held_out_loss(model, held_out)),
        "perplexity_by_frequency": math.exp(frequency_loss(tokens, held_out, vocab_size)),
    }
    (args.out / "held_out.json").write_text(json.dumps(found, indent=1))
    print(found)


if __name__ == "__main__":
    main()
