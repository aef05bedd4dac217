"""A small decoder writes the manual of Python, one character at a time.

It learns from the language reference that Python brings with it (`pydoc_data.topics`, what `help("while")` shows), one
topic in ten kept back. Every layer is attention to what came before, then a small network at each place:

    x' = x + MultiHead(norm(x), norm(x), norm(x), mask=Causal()),    x'' = x' + W_2 gelu(W_1 norm(x'))

(Vaswani et al. 2017, with the norms before the layers). Perplexity is the exponential of the mean of -log p(next
character): among how many equally likely characters the next one hides. In topics never seen it falls from 100, as many
as there are, to 4.5; knowing no more than how often each occurs gives 25. Writing goes character by character. None
sees what comes after it, so what was computed for those before stays true and is kept: the new one is all that is
computed, and the scores are those of one pass over the whole text, up to rounding, about 1e-14.

python examples/12_decoder.py [--small]
"""

from __future__ import annotations

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

import regard as rg

CONTEXT = 128  # characters at a time
SURE = 0.6  # scores are divided by it before a character is drawn: below 1, likely ones are drawn more often still


class Layer(nn.Module):
    """Attention to what came before, then a network at each place."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(2))
        self.attention = rg.nn.MultiHeadAttention(features, heads)
        self.network = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, N, C) of the last N places (B, N, C), and what to keep of all places (B, M + N, C), given that of M."""
        normed = self.norms[0](x)
        seen = normed if kept is None else torch.cat([kept, normed], dim=1)
        x = x + self.attention(normed, seen, seen, mask=rg.Causal(alignment="end"))
        return x + self.network(self.norms[1](x)), seen


class Decoder(nn.Module):
    """Scores of the next character at each place."""

    def __init__(self, characters: int, features: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(characters, features), nn.Embedding(CONTEXT, features)
        for embedding in (self.character, self.place):
            nn.init.normal_(embedding.weight, std=0.1)
        self.layers = nn.ModuleList(Layer(features, heads) for _ in range(layers))
        self.output = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, characters))

    def forward(self, text: Tensor, kept: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Scores (B, N, characters) after each of the last N characters (B, N), and what the layers keep."""
        before = 0 if kept is None else kept[0].shape[1]
        x, keep = self.character(text) + self.place(before + torch.arange(text.shape[1])), []
        for n, layer in enumerate(self.layers):
            x, seen = layer(x, None if kept is None else kept[n])
            keep.append(seen)
        return self.output(x), keep

    @torch.no_grad()
    def write(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """The text (B, N) continued to CONTEXT characters, each drawn by its probability, and the scores of each."""
        scores, kept = self(text)
        every = [scores]
        while text.shape[1] < CONTEXT:
            drawn = torch.softmax(scores[:, -1] / SURE, dim=-1).multinomial(1)
            text = torch.cat([text, drawn], dim=1)
            scores, kept = self(drawn, kept)
            every.append(scores)
        return text, torch.cat(every, dim=1)


def loss(decoder: Decoder, windows: Tensor) -> Tensor:
    """The mean of -log p(next character) in windows (B, N + 1)."""
    return nn.functional.cross_entropy(decoder(windows[:, :-1])[0].flatten(0, 1), windows[:, 1:].flatten())


def perplexity(decoder: Decoder, text: Tensor) -> float:
    """Of a text cut into windows."""
    with torch.no_grad():
        return math.exp(loss(decoder, text.unfold(0, CONTEXT + 1, CONTEXT)).item())


def train(decoder: Decoder, learned: Tensor, held_out: Tensor, steps: int) -> None:
    """Adam on 16 windows at a time, with a step that falls to 0."""
    optimizer = torch.optim.Adam(decoder.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        starts = torch.randint(len(learned) - CONTEXT, (16, 1))
        found = loss(decoder, learned[starts + torch.arange(CONTEXT + 1)])
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == 1 or step % (steps // 4) == 0:
            print(f"step {step:>4}: perplexity of topics never seen {perplexity(decoder, held_out):.2f}", flush=True)


def without_tables(text: str) -> str:
    """The text without the lines that draw a table."""
    return "".join(line for line in text.splitlines(keepends=True) if line[:1] not in "|+")


def main(small: bool) -> None:
    torch.manual_seed(0)
    prose = [without_tables(topics[name]) for name in sorted(topics)]
    parts = ["".join(text for n, text in enumerate(prose) if (n % 10 == 9) == kept) for kept in (False, True)]
    alphabet = sorted({*"".join(parts)})
    learned, held_out = (torch.tensor([alphabet.index(character) for character in part]) for part in parts)
    decoder = Decoder(len(alphabet), features=64 if small else 128)
    weights = sum(p.numel() for p in decoder.parameters())
    print(f"{len(learned):,} characters to learn from, {len(held_out):,} kept back, {weights:,} weights")
    share = torch.bincount(learned, minlength=len(alphabet)) + 1
    counted = math.exp(nn.functional.cross_entropy(share.log().expand(len(held_out), -1), held_out))
    print(f"by how often each occurs: perplexity of topics never seen {counted:.2f}")
    train(decoder, learned, held_out, steps=60 if small else 600)

    decoder.double()
    for prompt in ("The function ", "If a class ")[: 1 if small else 2]:
        text, scores = decoder.write(torch.tensor([[alphabet.index(character) for character in prompt]]))
        print(f"---\n{''.join(alphabet[code] for code in text[0])}\n---")
        with torch.no_grad():
            apart = (decoder(text)[0] - scores).abs().max().item()
        print(f"character by character and in one pass, scores agree up to {apart:.0e}")
        assert apart < 1e-11


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="60 steps of half the features, instead of 600")
    main(parser.parse_args().small)
