"""Train a small model of OPT's architecture on a text, so that the paper's family can be served where no hub is.

    python scripts/train_opt.py OUT --text tinyshakespeare.txt.gz --vocab opt_gpt2-vocab.json.gz --merges ...

OUT becomes a Hugging Face folder: config.json, model.safetensors, and OPT's tokenizer as vocab.json and merges.txt. It
needs torch and transformers (the extra `golden`) and some minutes; the last tenth of the text is held out, and its loss
printed beside the training's. The same seed and machine give the same weights.
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
BATCH = 8


def config(vocab_size: int) -> OPTConfig:
    """OPT's own choices at a size that learns in minutes."""
    return OPTConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        ffn_dim=768,
        max_position_embeddings=512,
        word_embed_proj_dim=192,
        dropout=0.0,
        bos_token_id=BEGIN,
        eos_token_id=BEGIN,
        pad_token_id=1,
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


def examples(tokens: torch.Tensor, rng: torch.Generator, count: int) -> torch.Tensor:
    """`[count, LENGTH + 1]`: windows at random places, each after BEGIN."""
    starts = torch.randint(len(tokens) - LENGTH, (count, 1), generator=rng)
    windows = tokens[starts + torch.arange(LENGTH)]
    return torch.cat([torch.full((count, 1), BEGIN), windows], dim=1)


def loss_of(model: OPTForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(tokens: torch.Tensor, vocab_size: int, num_steps: int, seed: int) -> OPTForCausalLM:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    held_out = tokens[-len(tokens) // 10 :]
    tokens = tokens[: -len(held_out)]
    model = OPTForCausalLM(config(vocab_size)).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(num_steps):
        decay = (1 + math.cos(math.pi * step / num_steps)) / 2
        rate = 3e-3 * min(1.0, (step + 1) / 50) * (0.05 + 0.95 * decay)
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = loss_of(model, examples(tokens, rng, BATCH))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.2f}", flush=True)
    model.eval()
    with torch.no_grad():
        unseen = loss_of(model, examples(held_out, rng, 32)).item()
    print(f"{num_steps} steps; loss {loss.item():.2f}, held out {unseen:.2f} (perplexity {math.exp(unseen):.0f})")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    for name in ("text", "vocab", "merges"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    vocab, merges = read(args.vocab), read(args.merges)
    write_tokenizer(args.out, vocab, merges)
    tokenizer = ByteLevelBPETokenizer(str(args.out / "vocab.json"), str(args.out / "merges.txt"))
    vocab_size = -(-len(json.loads(vocab)) // 16) * 16
    tokens = torch.tensor(tokenizer.encode(read(args.text)).ids)
    train(tokens, vocab_size, args.steps, args.seed).save_pretrained(args.out)


if __name__ == "__main__":
    main()
